"""The `script` verifier: runs the task's tests/test.sh and reads the reward file that it wrote."""

from __future__ import annotations

from rollout.core.errors import RewardInvalidError, RewardMissingError, VerifierError
from rollout.core.protocols import API_VERSION, NoOptions, TrialView
from rollout.core.trial.paths import LOGS, TESTS
from rollout.core.trial.rewards import MAX_REWARD_BYTES, choose_rewards, read_reward_file
from rollout.core.trial.script import interpreter
from rollout.core.types import Command, TransferLimits, TransferReport, VerifyResult

_REWARD_LIMITS = TransferLimits(max_file_bytes=MAX_REWARD_BYTES, max_total_bytes=MAX_REWARD_BYTES, max_files=1)


class ScriptVerifier:
    """Runs `/tests/test.sh` in the task's working directory; its exit code is recorded, the reward file decides."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions) -> None:
        pass

    async def verify(self, trial: TrialView) -> VerifyResult:
        """Raises RewardMissingError and RewardInvalidError, both naming the exit code of the script."""
        script = trial.task_directory / "tests" / "test.sh"
        if not script.is_file():
            raise VerifierError(f"{script} is missing")
        argv = (*interpreter(script.read_bytes()), f"{TESTS}/test.sh")
        command = Command(argv=argv, env=trial.env, cwd=trial.workdir, user=trial.user)
        result = await trial.environment.exec(command, trial.sink)
        report = await trial.collect_logs()
        candidates = {name: await self._read(trial, name, report) for name in trial.reward_files}
        chosen = choose_rewards(candidates)
        if chosen is None:
            wanted = " nor ".join(trial.reward_files)
            raise RewardMissingError(f"tests/test.sh exited with code {result.exit_code} and wrote neither {wanted}")
        source, rewards, warnings = chosen
        return VerifyResult(rewards=rewards, exit_code=result.exit_code, source=source, warnings=tuple(warnings))

    async def _read(self, trial: TrialView, name: str, report: TransferReport) -> dict[str, float] | None:
        """The rewards of one file: from the logs just collected, or fetched when it lies elsewhere or was left out there."""
        inside = name.removeprefix(f"{LOGS}/")
        copy = trial.trial_dir / "logs" / inside
        if inside == name or (report.skipped_count and not copy.exists()):
            copy = trial.log_dir / name.rsplit("/", 1)[-1]
            try:
                fetched = await trial.environment.download(name, copy, _REWARD_LIMITS)
            except FileNotFoundError:
                return None
            if fetched.skipped:
                raise RewardInvalidError(f"{name} is not usable as a reward file: {fetched.skipped[0][1]}")
        return read_reward_file(copy, name)
