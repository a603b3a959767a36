"""The `script` verifier: runs the task's tests/test.sh and reads the reward file that it wrote."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from rollout.core.errors import RewardInvalidError, RewardMissingError, VerifierError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.paths import LOGS, TESTS
from rollout.core.trial.rewards import MAX_REWARD_BYTES, choose_rewards, read_reward_file
from rollout.core.trial.script import interpreter
from rollout.core.types import Command, Struct, TransferLimits, TransferReport, VerifyResult

_REWARD_LIMITS = TransferLimits(max_file_bytes=MAX_REWARD_BYTES, max_total_bytes=MAX_REWARD_BYTES, max_files=1)


class ScriptVerifierOptions(Struct, frozen=True, kw_only=True):
    script: Annotated[str, Meta(min_length=1)] = "test.sh"
    """The script, relative to the task's tests."""
    reward_file: str | None = None
    """A file in the environment that is looked at first: absolute, JSON when it ends in `.json`."""

    def __post_init__(self) -> None:
        if self.script.startswith("/") or ".." in self.script.split("/"):
            raise ValueError(f"`script` is {self.script!r}; it must be inside the task's tests")
        if self.reward_file is not None and not self.reward_file.startswith("/"):
            raise ValueError(f"`reward_file` is {self.reward_file!r}; write the absolute path in the environment")


class ScriptVerifier:
    """Runs `/tests/test.sh` in the task's working directory; its exit code is recorded, the reward file decides."""

    api_version = API_VERSION
    options_type = ScriptVerifierOptions

    def __init__(self, options: ScriptVerifierOptions) -> None:
        self._options = options

    @staticmethod
    def reward_files(options: ScriptVerifierOptions) -> tuple[str, ...]:
        return () if options.reward_file is None else (options.reward_file,)

    async def verify(self, trial: TrialView) -> VerifyResult:
        """Raises RewardMissingError and RewardInvalidError, both naming the exit code of the script."""
        name = self._options.script
        script = trial.tests_directory / name
        if not script.is_file():
            raise VerifierError(f"{script} is missing")
        argv = (*interpreter(script.read_bytes()), f"{TESTS}/{name}")
        command = Command(argv=argv, env=trial.env, cwd=trial.workdir, user=trial.user)
        result = await trial.environment.exec(command, trial.sink)
        report = await trial.collect_logs()
        candidates = {file: await self._read(trial, file, report) for file in trial.reward_files}
        chosen = choose_rewards(candidates)
        if chosen is None:
            wanted = " nor ".join(trial.reward_files)
            raise RewardMissingError(f"tests/{name} exited with code {result.exit_code} and wrote neither {wanted}")
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
