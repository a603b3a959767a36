"""Between an agent and its verifier: what the agent may have left behind is killed, removed and locked away."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.core.errors import RolloutError, VerifierError
from rollout.core.protocols import Environment
from rollout.core.trial.paths import AGENT_LOGS, ARTIFACTS, INSTRUCTION_FILE, TESTS, VERIFIER_LOGS
from rollout.core.types import Command

# Runs before the agent. $1: mode of the verifier's log folder; $2: the agent's user or empty. The instruction is on stdin.
_SET_UP = f"""
set -e
mkdir -p {AGENT_LOGS} {VERIFIER_LOGS} {ARTIFACTS}
chmod 777 {AGENT_LOGS} {ARTIFACTS}
chmod "$1" {VERIFIER_LOGS}
cat > {INSTRUCTION_FILE}
chmod 644 {INSTRUCTION_FILE}
"""

# Runs between agent and verifier: removes each path given after $1 and sees that it is gone, whatever the agent made of it.
_CLEAR = f"""
mode=$1
shift
if [ -L {VERIFIER_LOGS} ] || [ ! -d {VERIFIER_LOGS} ]; then rm -rf {VERIFIER_LOGS} && mkdir -p {VERIFIER_LOGS} || exit 1; fi
chmod "$mode" {VERIFIER_LOGS} || exit 1
for path in "$@"; do
    rm -rf -- "$path"
    if [ -e "$path" ] || [ -L "$path" ]; then echo "cannot remove $path" >&2; exit 1; fi
done
"""

# Signal 9 to every process of the PID namespace but its init and the sender.
_KILL_ALL = "kill -9 -1"


class Isolation:
    """The steps that separate an agent from its verifier in one environment."""

    def __init__(self, environment: Environment, *, root: str | None, locked: bool) -> None:
        """`root`: the user that owns `/tests` and `/logs/verifier`, None when the backend cannot choose users.
        `locked`: the agent runs as a user of its own, who may not enter the verifier's folder."""
        self._environment = environment
        self._root = root
        self._mode = "700" if locked else "777"

    async def set_up(self, instruction: bytes) -> None:
        """Make the log folders and the instruction file, before anything of the agent runs."""
        await self._shell(_SET_UP, (self._mode,), RolloutError, "preparing the environment", instruction)

    async def clear(self, reward_files: Sequence[str]) -> None:
        """Remove stale rewards and `/tests`; what cannot be removed makes the verdict worthless.

        Raises:
            VerifierError
        """
        await self._shell(_CLEAR, (self._mode, *reward_files, TESTS), VerifierError, "clearing the way for the verifier")

    async def kill_everything(self) -> None:
        """Kill all that runs in the environment but its init."""
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
