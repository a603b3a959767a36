"""The verification of an earlier trial's work, without its agent."""

from __future__ import annotations

from pathlib import Path

from rollout.core.aio import run_shielded
from rollout.core.trial.artifacts import read_manifest
from rollout.core.trial.recorded import read_episode
from rollout.core.trial.rollout import Rollout
from rollout.core.types import AgentTurn, VerifyResult


class Reverification(Rollout):
    """Its spec is the earlier trial's with a directory of its own, which gets what the verifier prints."""

    async def verify_again(self, trial_dir: Path) -> VerifyResult:
        """Verify in a fresh environment, from the artifacts and logs that `trial_dir` keeps; it stays as it is.

        Raises:
            RolloutError and its kinds: there is no verdict.
        """
        self._read_task()
        self._turn = AgentTurn(episode=read_episode(trial_dir))
        self._artifacts = trial_dir / "artifacts"
        try:
            await self._open_for_verifier(read_manifest(self._artifacts), trial_dir / "logs")
            await self.verify()
        finally:
            await run_shielded(self.cleanup())
        assert self._verdict is not None, "the verifier is disabled"
        return self._verdict
