"""Between an agent and its verifier: what the agent may have left behind is killed, removed and locked away.

    default     stale rewards and /tests are removed before the tests are brought
    users       and the agent works as a user of its own, who may not enter the verifier's folders
    strict      and everything that the agent started is killed before its work is verified
    separate    the agent's environment is left, and its artifacts are verified in a fresh one

A task that names a user for its agent has the verifier's folders locked at every level.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence

from rollout.core.errors import RolloutError, StartError, VerifierError
from rollout.core.protocols import Environment, SharedProcesses
from rollout.core.records import ISOLATIONS, Isolation
from rollout.core.trial.paths import (
    AGENT_LOGS,
    ARTIFACTS,
    INSTRUCTION_FILE,
    INSTRUCTION_IMAGES,
    LOGS,
    ORACLE,
    RLLM_FOLDER,
    SCRIPTS,
    TESTS,
    VERIFIER_LOGS,
)
from rollout.core.types import Command

AGENT_USER = "agent"
"""Whom agents work as at `users` and `strict` when neither task nor job names a user. Made where the image has none."""

NOBODY = "65534:65534"
"""Whom artifacts belong to in the environment of a separate verifier."""

ROOT_NAMES = (None, "root", "0", "root:root", "0:0")
"""Users that nothing can be kept from."""

OWN_USER: tuple[Isolation, ...] = ("users", "strict")
"""Levels at which the agent must not be root."""

# $1: mode of what is the verifier's alone; $2: its owner, or empty where owners cannot be set.
_LOCK = """
mode=$1 owner=$2
shift 2
lock() {
    if [ -L "$1" ] || [ ! -d "$1" ]; then rm -rf -- "$1" && mkdir -p -m 700 -- "$1" || exit 1; fi
    if [ -n "$owner" ]; then chown "$owner" "$1" || exit 1; fi
    chmod "$mode" "$1" || exit 1
}
"""

# Runs before the agent; an image may have brought folders of these names. The instruction is on stdin.
# $1: `keep` when /tests is the verifier's already. Who owns a folder's parent can put another folder in its place.
_SET_UP = f"""{_LOCK}
set -e
if [ "$1" != keep ]; then rm -rf {TESTS}; fi
rm -rf {ORACLE}
if [ "$mode" = 700 ]; then
    if [ -L {LOGS} ]; then rm {LOGS}; fi
    mkdir -p {LOGS} /tmp
    if [ "$(id -u)" = 0 ]; then chown 0:0 {LOGS} /tmp; fi
    chmod 755 {LOGS}
    chmod 1777 /tmp
    lock {RLLM_FOLDER}
fi
mkdir -p {AGENT_LOGS} {ARTIFACTS}
chmod 777 {AGENT_LOGS} {ARTIFACTS}
lock {VERIFIER_LOGS}
cat > {INSTRUCTION_FILE}
chmod 644 {INSTRUCTION_FILE}
"""

# $1: the agent's user; $2: `make` when it may be made. Prints the working directory if it is the user's from now on.
# Folders of the system stay root's: whoever owns them is root.
_ADMIT = """
set -e
user=$1
if [ "$2" = make ] && ! grep -q "^$user:" /etc/passwd; then
    number=52000
    while cut -d: -f3 /etc/passwd /etc/group | grep -qx "$number"; do number=$((number + 1)); done
    shell=/bin/sh
    if [ -x /bin/bash ]; then shell=/bin/bash; fi
    for file in /etc/passwd /etc/group; do
        if [ -s $file ] && [ -n "$(tail -c 1 $file)" ]; then echo >> $file; fi
    done
    echo "$user:x:$number:$number::/home/$user:$shell" >> /etc/passwd
    echo "$user:x:$number:" >> /etc/group
    mkdir -p "/home/$user"
    chown "$number:$number" "/home/$user"
fi
workdir=$(pwd -P)
case $workdir in
    / | /bin | /bin/* | /boot | /dev | /dev/* | /etc | /etc/* | /home | /lib | /lib/* | /lib64 | /logs | /logs/*) ;;
    /media | /mnt | /opt | /proc | /proc/* | /root | /run | /sbin | /sbin/* | /srv | /sys | /sys/* | /tests | /tests/*) ;;
    /tmp | /usr | /usr/bin | /usr/lib | /usr/lib/* | /usr/local | /usr/local/bin | /usr/local/lib | /usr/sbin) ;;
    /var | /var/lib) ;;
    *) chown -Rh "$user" "$workdir"; printf %s "$workdir" ;;
esac
"""

# As the agent's user, $1: its working directory, or empty. Prints where programs of the verifier could be exchanged.
_CHECK_USER = """
if [ "$(id -u)" = 0 ]; then echo "is root" >&2; exit 1; fi
if [ -n "$1" ] && ! { cd "$1" && [ -w . ]; }; then echo "cannot work in $1" >&2; exit 1; fi
if command -v sudo > /dev/null && sudo -n true 2> /dev/null; then echo "can become root with sudo" >&2; exit 1; fi
for path in / /etc /root /usr /bin; do
    if [ -w $path ]; then echo "can write to $path" >&2; exit 1; fi
done
IFS=:
for path in $PATH; do
    if [ -w "$path" ]; then echo "$path"; fi
done
"""

# Runs between agent and verifier: removes the other arguments and sees that they are gone, whatever the agent made of them.
_CLEAR = f"""{_LOCK}
lock {VERIFIER_LOGS}
for path in "$@"; do
    case $path in {RLLM_FOLDER}/*) lock {RLLM_FOLDER} ;; esac
    rm -rf -- "$path"
    if [ -e "$path" ] || [ -L "$path" ]; then echo "cannot remove $path" >&2; exit 1; fi
done
if [ "$mode" = 700 ]; then lock {TESTS}; fi
"""

_LOCK_TESTS = f'{_LOCK}lock "$1"'

# As the agent's user: signal 9 to every process of the PID namespace that belongs to it, whatever it runs with by now.
_KILL_ALL = "kill -9 -1"

_GIT = {"core.hooksPath": "/dev/null", "core.fsmonitor": "false"}


def stricter(one: Isolation, other: Isolation) -> Isolation:
    return max(one, other, key=ISOLATIONS.index)


def without_git_hooks(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep git from running what a repository says, added to those that set it up already."""
    try:
        count = int(env.get("GIT_CONFIG_COUNT", "0"))
    except ValueError:
        count = 0
    added = {"GIT_CONFIG_COUNT": str(count + len(_GIT))}
    for number, (key, value) in enumerate(_GIT.items(), start=count):
        added |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**env, **added}


class Walls:
    """The steps that separate an agent from its verifier in one environment."""

    def __init__(
        self,
        environment: Environment,
        *,
        root: str | None,
        agent_user: str | None = None,
        verifier_user: str | None = None,
    ) -> None:
        """`root`: the user that owns `/tests` and `/logs/verifier`, None when the backend cannot choose users.
        `agent_user`: whom the agent works as. A user who is not root may not enter the verifier's folders; they belong to
        `verifier_user`, by default to root."""
        self._environment = environment
        self._root = root
        self._agent_user = agent_user
        self._locked = root is not None and agent_user not in ROOT_NAMES
        self._lock = ("700", verifier_user or root or "") if self._locked else ("777", "")

    async def set_up(self, instruction: bytes, *, keep_tests: bool = False) -> None:
        """Make the log folders and the instruction file, before anything of the agent runs.

        Raises:
            StartError
        """
        arguments = (*self._lock, "keep" if keep_tests else "")
        await self._shell(_SET_UP, arguments, StartError, "preparing the environment", instruction)

    async def admit_agent(self, workdir: str | None, warn: Callable[[str], None]) -> None:
        """Make the agent's user where the image has none, give it the working directory, and see that it is not root.

        Raises:
            StartError: the user is root, may become root, or cannot work where the task is.
        """
        user = self._agent_user or AGENT_USER
        make = "make" if user == AGENT_USER else ""
        doing = f"preparing the user {user}"
        own = (await self._shell(_ADMIT, (user, make), StartError, doing, cwd=workdir)).decode("utf-8", "surrogateescape")
        if not own:
            warn(f"the working directory is the system's, and stays root's: {user} cannot write there")
        said = await self._shell(_CHECK_USER, (own,), StartError, f"the user {user}", user=user)
        for path in said.decode("utf-8", "replace").splitlines():
            warn(f"{user} can write to {path}, where the verifier looks for programs too")

    async def clear(self, reward_files: Sequence[str], *, keep_tests: bool = False) -> None:
        """Remove stale rewards and `/tests`; what cannot be removed makes the verdict worthless.

        Raises:
            VerifierError
        """
        stale = reward_files if keep_tests else (*reward_files, TESTS)
        await self._shell(_CLEAR, (*self._lock, *stale), VerifierError, "clearing the way for the verifier")

    async def lock_tests(self) -> None:
        """See to it that the agent's user cannot read the tests that were just brought.

        Raises:
            VerifierError
        """
        if self._locked:
            await self._shell(_LOCK_TESTS, (*self._lock, TESTS), VerifierError, "locking the tests")

    async def forget(self) -> None:
        """Remove what `set_up` made and what scripts left in its folders: the environment is to be started from.

        Raises:
            StartError
        """
        paths = (LOGS, INSTRUCTION_FILE, INSTRUCTION_IMAGES, SCRIPTS)
        await self._shell('rm -rf -- "$@"', paths, StartError, "clearing the environment")

    async def kill_everything(self) -> None:
        """Kill all that the agent's user runs in the environment; what root started for the task stays.

        Raises:
            EnvironmentLostError
        """
        if isinstance(self._environment, SharedProcesses):
            await self._environment.kill_everything()
            return
        doing = "killing what the agent left running"
        await self._shell(_KILL_ALL, (), VerifierError, doing, check=False, user=self._agent_user)

    async def _shell(
        self,
        script: str,
        arguments: tuple[str, ...],
        error_type: type[RolloutError],
        doing: str,
        stdin: bytes | None = None,
        *,
        check: bool = True,
        cwd: str | None = "/",
        user: str | None = None,
    ) -> bytes:
        argv = ("sh", "-c", script, "sh", *arguments)
        command = Command(argv=argv, stdin=stdin, cwd=cwd, user=self._root if user is None else user)
        result = await self._environment.exec(command)
        if check and result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip().splitlines()
            raise error_type(f"{doing}: {said[-1] if said else f'exit code {result.exit_code}'}")
        return result.stdout


def host_place(path: str) -> str:
    """Where a path of an environment lies below a folder of the host that stands for its root."""
    return posixpath.normpath(path).lstrip("/")
