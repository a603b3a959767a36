"""Between an agent and its verifier: what the agent may have left behind is killed, removed and locked away."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.core.errors import RolloutError, StartError, VerifierError
from rollout.core.protocols import Environment, SharedProcesses
from rollout.core.trial.paths import (
    AGENT_LOGS,
    ARTIFACTS,
    INSTRUCTION_FILE,
    LOGS,
    ORACLE,
    RLLM_FOLDER,
    SCRIPTS,
    TESTS,
    VERIFIER_LOGS,
)
from rollout.core.types import Command

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
_SET_UP = f"""{_LOCK}
set -e
rm -rf {TESTS} {ORACLE}
mkdir -p {AGENT_LOGS} {ARTIFACTS}
chmod 777 {AGENT_LOGS} {ARTIFACTS}
lock {VERIFIER_LOGS}
cat > {INSTRUCTION_FILE}
chmod 644 {INSTRUCTION_FILE}
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

# Signal 9 to every process of the PID namespace but its init and the sender.
_KILL_ALL = "kill -9 -1"


class Isolation:
    """The steps that separate an agent from its verifier in one environment."""

    def __init__(self, environment: Environment, *, root: str | None, locked: bool, verifier_user: str | None = None) -> None:
        """`root`: the user that owns `/tests` and `/logs/verifier`, None when the backend cannot choose users.
        `locked`: the agent runs as a user of its own, who may not enter the verifier's folders; they belong to
        `verifier_user`, by default to root."""
        self._environment = environment
        self._root = root
        self._locked = locked
        self._lock = ("700", verifier_user or root or "") if locked else ("777", "")

    async def set_up(self, instruction: bytes) -> None:
        """Make the log folders and the instruction file, before anything of the agent runs.

        Raises:
            StartError
        """
        await self._shell(_SET_UP, self._lock, StartError, "preparing the environment", instruction)

    async def clear(self, reward_files: Sequence[str]) -> None:
        """Remove stale rewards and `/tests`; what cannot be removed makes the verdict worthless.

        Raises:
            VerifierError
        """
        await self._shell(_CLEAR, (*self._lock, *reward_files, TESTS), VerifierError, "clearing the way for the verifier")

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
        paths = (LOGS, INSTRUCTION_FILE, SCRIPTS)
        await self._shell('rm -rf -- "$@"', paths, StartError, "clearing the environment")

    async def kill_everything(self) -> None:
        """Kill all that runs in the environment but its init."""
        if isinstance(self._environment, SharedProcesses):
            await self._environment.kill_everything()
            return
        await self._shell(_KILL_ALL, (), VerifierError, "killing what the agent left running", check=False)

    async def _shell(
        self,
        script: str,
        arguments: tuple[str, ...],
        error_type: type[RolloutError],
        doing: str,
        stdin: bytes | None = None,
        *,
        check: bool = True,
    ) -> None:
        command = Command(argv=("sh", "-c", script, "sh", *arguments), stdin=stdin, cwd="/", user=self._root)
        result = await self._environment.exec(command)
        if check and result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip().splitlines()
            raise error_type(f"{doing}: {said[-1] if said else f'exit code {result.exit_code}'}")
