"""What `mode: host` runs on a host: scripts for any POSIX shell, with coreutils and GNU tar.

A script arrives on the standard input of a shell whose command line says how long it is, so that nothing of it (variables hold
secrets) can be read from a command line. What follows on standard input belongs to the command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rollout_ssh import control_groups

LEASE = "/tmp/.rollout-lease"
"""Made by whoever has the host for himself, removed by him."""
READY, BUSY, REFUSED, BEAT, DONE = "ready", "busy", "refused", "beat", "done"

_ULIMIT_BYTES = 512
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Kills every process of the sandbox: those of its control group, or where there is none those whose environment says so.
_KILL_ALL = """
members() {
    if [ -n "$group" ]; then cat "$group/cgroup.procs" 2>/dev/null; return; fi
    for d in /proc/[0-9]*; do
        case $(tr '\\0' ' ' < "$d/environ" 2>/dev/null) in *"ROLLOUT_SANDBOX=$token "*) echo "${d#/proc/}";; esac
    done
}
kill_all() {
    i=0
    while [ $i -lt 1000 ]; do
        left=
        for p in $(members); do
            read -r _ _ state _ < "/proc/$p/stat" 2>/dev/null || continue
            [ "$state" = Z ] && continue
            kill -9 "$p" 2>/dev/null && left=1
        done
        [ -z "$left" ] && return
        i=$((i+1))
        sleep 0.01 2>/dev/null || sleep 1
    done
}
"""

# Holds the lease while it is told that somebody wants it, then puts the host back: $1 token, $2 seconds of silence, $3 network,
# $4 to $6 limits of control groups, $7 a folder to make for the trial, or nothing.
# What is new in the folders of `listing` when the lease ends was made by the trial.
HOLDER = f"""
trap '' HUP PIPE
exec 2>/dev/null
token=$1 silence=$2 network=$3 lease={LEASE} group= groups= net=none
{_KILL_ALL}
{control_groups.SHELL}
listing() {{
    for d in / /opt /srv /tmp /var/tmp /home /usr/local /usr/local/* "$HOME"; do
        [ -d "$d" ] && [ ! -L "$d" ] || continue
        for p in "${{d%/}}"/* "${{d%/}}"/.[!.]* "${{d%/}}"/..?*; do [ ! -e "$p" ] && [ ! -L "$p" ] || printf '%s\\n' "$p"; done
    done | LC_ALL=C sort -u
}}
put_back() {{
    rest=none
    read -r rest < "$lease/group"
    [ "$rest" != none ] || rest=
    group=${{rest%% *}} # which has all processes
    kill_all
    i=0
    while [ -n "$rest" ] && [ $i -lt 200 ]; do
        rmdir $rest
        all=$rest rest=
        for p in $all; do [ ! -d "$p" ] || rest="$rest $p"; done
        [ -z "$rest" ] || sleep 0.01
        i=$((i+1))
    done
    read -r net < "$lease/net" && kill -9 "$net"
    [ -f "$lease/before" ] && listing | LC_ALL=C comm -13 "$lease/before" - | while IFS= read -r path; do
        case $path in */.|*/..|*/|"$lease"|*/systemd-private-*) continue;; esac
        rm -rf --one-file-system -- "$path"
    done
    rm -rf "$lease"
}}
stale() {{
    read -r owner < "$lease/owner" || {{ sleep 1; read -r owner < "$lease/owner" || return 0; }}
    case $(tr '\\0' ' ' < "/proc/$owner/cmdline") in *rollout-holder*) return 1;; esac
}}
[ -w / ] || {{ echo "{REFUSED} it takes a user who may write to /, such as root"; exit 0; }}
until mkdir "$lease"; do
    [ -d "$lease" ] || {{ echo "{REFUSED} $lease cannot be made"; exit 0; }}
    if stale; then
        read -r token < "$lease/token"
        put_back
        token=$1
    else
        echo {BUSY}
        [ "$(timeout 1 head -c 1; echo :$?)" != :0 ] || exit 0 # who waited has gone
    fi
done
echo $$ > "$lease/owner"
echo "$token" > "$lease/token"
for p in /logs /tests /oracle /solution; do
    [ -e "$p" ] || [ -L "$p" ] || continue
    rm -rf "$lease"
    echo "{REFUSED} there is $p already, which is made and removed by each trial: move it away"
    exit 0
done
enforce "rollout-$token" "$4" "$5" "$6"
IFS=:
echo ${{groups:-none}} > "$lease/group"
unset IFS
if [ "$network" = none ]; then
    unshare --net sh -c 'ip link set lo up && echo $$ && exec sleep 2147483647' < /dev/null > "$lease/net" &
    i=0
    while [ ! -s "$lease/net" ] && [ $i -lt 500 ]; do i=$((i+1)); sleep 0.01; done
    read -r net < "$lease/net" || {{ put_back; echo "{REFUSED} it cannot cut the network off"; exit 0; }}
fi
mkdir -m 711 "$lease/run"
[ -d /tmp ] && [ -d /var/tmp ] || mkdir -p /tmp /var/tmp
# What is missing in the list is taken for the trial's and removed: half a list, of a full disk for instance, must never be used.
listing > "$lease/listed" && mv "$lease/listed" "$lease/before" || {{
    put_back; echo "{REFUSED} $lease cannot be written"; exit 0; }}
[ -n "$7" ] && mkdir -p -- "$7" && made=made || made=none
echo "{READY} $(id -u) $(uname -m) ${{groups:-none}} $net ${{enforced:-none}} $made"
while [ -n "$(timeout "$silence" head -c 1)" ]; do echo {BEAT}; done
put_back
echo {DONE}
"""

# Runs a command with pipes of its own for its output, so that what it leaves running may go on printing, and its streams can be
# opened by name. Writes notes: its process (which leads a session) on stderr, the exit code on both.
# It ends when its input has: sshd ends the whole connection when an end of input comes for a channel that it has closed.
# The code of a command during which the kernel killed for memory begins with `oom`.
# Its own variables are `_r` and a letter, so that those of the command do not get in the way.
_RUN = f"""
exec 9>&2 2>/dev/null
_rkills() {{ _ra=0; [ ! -r "$_ro" ] || while read -r _rt _rv; do [ "$_rt" != oom_kill ] || _ra=$_rv; done < "$_ro"; }}
_rkills; _rb=$_ra
_rd={LEASE}/run/$$
[ ! -e "$_rd.o" ] || rm -f "$_rd.o" "$_rd.e"
mkfifo -m 666 "$_rd.o" "$_rd.e" || {{ echo "rollout: the host is not leased any more" >&9; exit 126; }}
(cat; exec cat > /dev/null) < "$_rd.o" 9>&- &
(cat; exec cat > /dev/null) < "$_rd.e" >&9 9>&- &
exec > "$_rd.o" 9> "$_rd.e"
printf '%s%s\\n' "$_rm" $$; printf '%s%s\\n' "$_rm" $$ >&9
"""
_END = """_rc=$?; _rkills; [ "$_ra" = "$_rb" ] || _rm=${_rm}oom
printf '%s%s\\n' "$_rm" "$_rc"; printf '%s%s\\n' "$_rm" "$_rc" >&9
while read -r _rt; do :; done; exit "$_rc"
"""

# Who the command runs as: $_ru, perhaps with a group after a colon. Sets HOME.
_BECOME = f"""
_rr=$(command -v chroot)
_rn=${{_ru%%:*}} _rw=${{_ru#*:}}
case $_rn in
*[!0-9]*) _ri=$(id -u -- "$_rn") && _rk=$(id -g -- "$_rn") && _rl=$(id -G -- "$_rn" | tr ' ' ,) && eval "HOME=~$_rn" ||
    {{ echo "rollout: no user $_rn on this host" >&9; (exit 126); {_END} }} ;;
*)  _ri=$_rn _rk=0 _rl=
    if _rn=$(id -un -- "$_rn"); then
        _rk=$(id -g -- "$_rn") _rl=$(id -G -- "$_rn" | tr ' ' ,)
        eval "HOME=~$_rn"
    else HOME=/; fi ;;
esac
[ "$_rw" = "$_ru" ] || _rk=$_rw
case $_rk in *[!0-9]*) _rk=$(id -g -- "$_rk") ;; esac
"""

KILL = """
exec 2>/dev/null
while :; do
    left=
    for d in /proc/[0-9]*; do
        state=Z sid=
        while read -r key value rest; do
            case $key in State:) state=$value;; NSsid:) sid=${rest##*[ 	]}; sid=${sid:-$value}; break;; esac
        done < "$d/status"
        case $state in Z|X|x) continue;; esac
        if [ "$sid" = "$1" ]; then kill -9 "${d#/proc/}"; left=1; fi
    done
    [ -z "$left" ] && exit 0
    sleep 0.01 || sleep 1
done
"""

_TAR_IN = "exec tar -xpf - -C / --same-owner --numeric-owner --no-overwrite-dir --keep-directory-symlink"

# $1 folder, $2 name in it, $3 the largest file in bytes. Larger ones are left out, where `find` can tell which these are.
# $1 folder, $2 name in it, $3 the largest file in bytes: larger ones are left out, and named on stderr with a NUL after each.
_TAR_OUT = """
cd -- "$1" && { [ -e "$2" ] || [ -L "$2" ]; } || exit 3
[ -d "$2" ] && [ ! -L "$2" ] || exec tar -cf - -- "$2"
cd -- "$2" || exit 1
command -v find > /dev/null || exec tar -cf - .
find . -type f -size "+$3c" -print0 >&2
find . ! -type s ! \\( -type f -size "+$3c" \\) -print0 | tar -cf - --null --no-recursion -T -
"""


def command_line(script: str, *words: str) -> tuple[str, bytes]:
    """What is given to the login shell, and what goes to standard input before anything else. `words`: $0 and arguments."""
    data = script.encode("utf-8", "surrogateescape")
    reading = f'eval "$(head -c {len(data)})"'
    return f'exec env -i PATH={_PATH} HOME="$HOME" sh -c {shlex.quote(reading)} {shlex.join(words or ("rollout",))}', data


def whole(script: str) -> str:
    """A script that needs no input: it begins when its input has ended, for the reason that `run` ends no earlier."""
    return f"while read -r _rt; do :; done\n{script}"


def run(
    argv: Sequence[str],
    *,
    mark: str,
    token: str,
    groups: Sequence[str],
    file_bytes: int | None,
    env: Mapping[str, str],
    workdir: str,
    cwd: str | None,
    user: str | None,
    net: str | None,
) -> str:
    """The script that runs a command. `user` None stays who logged in; `net` is a process whose network to use; `groups` are the
    control groups that it joins, and `file_bytes` is the largest file that it may write.

    Raises:
        ValueError: a variable that no shell can hold.
    """
    oom = control_groups.oom_file(tuple(groups)) or ""
    lines = [f"_rg={shlex.quote(' '.join(groups))} _ro={shlex.quote(oom)} _rm={shlex.quote(mark)}", _RUN]
    if user is not None:
        lines += [f"_ru={shlex.quote(user)}", _BECOME]
    if file_bytes is not None:
        lines.append(f"ulimit -f {-(-file_bytes // _ULIMIT_BYTES)} 2>/dev/null")
    lines.append(f"export PATH HOME LANG=C.UTF-8 ROLLOUT_SANDBOX={shlex.quote(token)}")
    for name, value in env.items():
        if not name.isidentifier() or not name.isascii() or "\0" in value:
            raise ValueError(f"mode: host cannot set the variable {name!r}: a shell cannot hold it")
        lines.append(f"{name}={shlex.quote(value)}; export {name}")
    lines.append(f"set -- {shlex.join(argv)}")
    there = f"cd -- {shlex.quote(workdir)}" + (f" && cd -- {shlex.quote(cwd)}" if cwd else "")
    start = f'{there} && exec "$@"'
    words = []
    if net is not None:
        lines.append("_rs=$(command -v nsenter)")
        words.append(f'"$_rs" --target {int(net)} --net --')
    if user is not None:
        words.append('"$_rr" --userspec="$_ri:$_rk" --groups="$_rl" /')
    if words:  # who it becomes has to be allowed to go there
        start = f'exec {" ".join(words)} /bin/sh -c {shlex.quote(start)} sh "$@"'
    # only what the trial runs joins its groups: a trial that has all the processes it may have must not stop our own
    lines.append(f'(for _rf in $_rg; do echo 0 > "$_rf/cgroup.procs"; done; exec 2>&9 9>&-; {start})')
    lines.append(_END)
    return "\n".join(lines)


def tar_in() -> list[str]:
    return ["sh", "-c", _TAR_IN]


def tar_out(folder: str, name: str, max_file_bytes: int) -> list[str]:
    return ["sh", "-c", _TAR_OUT, "sh", folder, name, str(max_file_bytes)]


def kill_all(token: str, groups: Sequence[str]) -> str:
    """The script that kills everything of a sandbox."""
    group = groups[0] if groups else ""
    return f"exec 2>/dev/null\ntoken={shlex.quote(token)} group={shlex.quote(group)}\n{_KILL_ALL}\nkill_all"
