"""`mode: host`: the control groups of a lease, made by any POSIX shell: its processes are found there, and limited."""

from __future__ import annotations

from rollout.core.sandbox.limits import group_limits
from rollout.core.types import Resources, Struct

_PERIOD_USEC = 100_000
_MIN_QUOTA_USEC = 1000

# `enforce NAME MEMORY CPU PIDS`: makes the groups NAME. Limits are bytes, microseconds of each 100 ms, and a number, or "none".
# Sets `group`, which has all processes; `groups`, all of them with colons between; `enforced`, the limits that hold.
SHELL = """
join() {
    case ":$groups:" in *":$1:"*) return 0;; esac
    mkdir -p "$1" && groups=$groups${groups:+:}$1
}
limit() {
    [ "$2" != none ] || return 0
    if [ -f "$group/$3" ]; then
        echo "$2${4:-}" > "$group/$3" && enforced=$enforced${enforced:+:}$1
        return
    fi
    parent=/sys/fs/cgroup/$1
    [ -f "$parent/cgroup.procs" ] && [ ! -f "$parent/cgroup.controllers" ] && join "$parent/$name" || return 0
    echo "$2" > "$parent/$name/$5" && enforced=$enforced${enforced:+:}$1
}
enforce() {
    name=$1 group= groups= enforced=
    for parent in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/pids /sys/fs/cgroup/systemd; do
        [ -f "$parent/cgroup.procs" ] && join "$parent/$name" && group=$parent/$name && break
    done
    [ -n "$group" ] || return 0
    limit memory "$2" memory.max "" memory.limit_in_bytes
    limit cpu "$3" cpu.max " 100000" cpu.cfs_quota_us
    limit pids "$4" pids.max "" pids.max
    [ ! -f "$group/memory.swap.max" ] || echo 0 > "$group/memory.swap.max"
    [ "$2" = none ] || [ ! -f "/sys/fs/cgroup/memory/$name/memory.memsw.limit_in_bytes" ] ||
        echo "$2" > "/sys/fs/cgroup/memory/$name/memory.memsw.limit_in_bytes"
}
"""

PROBE = f"""
{SHELL}
enforce "rollout-probe-$$" 1073741824 100000 1000 2> /dev/null
echo "limits:${{enforced:-none}}"
for group in $(echo "$groups" | tr : ' '); do rmdir "$group"; done
"""
"""Says, after `limits:`, which limits can be enforced."""


class GroupLimits(Struct, frozen=True, kw_only=True):
    """What the processes of one lease may use. None is no limit."""

    memory_bytes: int | None = None
    cpu_quota_usec: int | None = None
    """Of each 100 ms."""
    pids: int | None = None
    file_bytes: int | None = None
    """The largest file that a command may write."""

    def words(self) -> list[str]:
        """As `enforce` takes them."""
        return [str(value or "none") for value in (self.memory_bytes, self.cpu_quota_usec, self.pids)]


def limits_of(resources: Resources, pids: int | None) -> GroupLimits:
    limits = group_limits(resources, pids)
    quota = max(_MIN_QUOTA_USEC, round(limits["cpu"] * _PERIOD_USEC)) if "cpu" in limits else None
    return GroupLimits(
        memory_bytes=limits.get("memory"),
        cpu_quota_usec=quota,
        pids=limits.get("pids"),
        file_bytes=resources.storage_bytes,
    )


def named(words: str) -> tuple[str, ...]:
    """A list of `enforce`, as words."""
    return () if words in ("", "none") else tuple(words.split(":"))


def oom_file(groups: tuple[str, ...]) -> str | None:
    """The file that counts what the kernel killed in a lease for memory; it may not be there."""
    for group in groups:
        if "/memory/" in group:
            return f"{group}/memory.oom_control"
    return f"{groups[0]}/memory.events" if groups else None
