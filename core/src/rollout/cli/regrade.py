"""`rollout regrade JOB_DIR`: verify the trials of an earlier job again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollout.core.config.job import VerifierConfig
    from rollout.core.job.regrade import Regraded


_WORDS = {"regraded": "regraded", "unchanged": "as they were", "impossible": "cannot be verified again", "failed": "failed"}


@click.command("regrade")
@click.argument("job_dir", type=click.Path(path_type=Path), metavar="JOB_DIR")
@click.option(
    "--verifier",
    metavar="FILE_OR_NAME",
    help="Another verifier: a file with a `verifier:` block (a job file), or the name of a verifier or a reward function.",
)
@click.option("--agent", "agents", multiple=True, metavar="GLOB", help="Only trials of agents that match. Repeatable.")
@click.option("--task", "tasks", multiple=True, metavar="GLOB", help="Only trials of tasks that match. Repeatable.")
@click.option("-n", "--n-concurrent", type=click.IntRange(min=1), default=4, show_default=True, help="How many at once.")
@click.option("--again", is_flag=True, help="Verify also what the same verifier and tests have verified before.")
@click.option(
    "--env-file", type=click.Path(path_type=Path), metavar="FILE", help="Take variables from a file of NAME=value lines."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each trial.")
def command(
    job_dir: Path,
    verifier: str | None,
    agents: tuple[str, ...],
    tasks: tuple[str, ...],
    n_concurrent: int,
    again: bool,
    env_file: Path | None,
    as_json: bool,
) -> int:
    """Verify the trials of an earlier job again, with today's tests or with another verifier.

    It works from what was kept: the agent's answer, its episode, its logs and artifacts. A verifier that needs an
    environment gets a fresh one where the trial had a separate verifier; otherwise the trial is listed with the
    reason why it cannot be verified again. The old verdicts stay in the records. An interrupted regrade is resumed
    by the same command.

    \b
    Exit code: 0 every trial has a verdict of this verifier; 1 some have not; 2 nothing
    was started; 130 interrupted.
    """
    import os
    import sys

    import msgspec

    from rollout.cli.dotenv import read_env_file
    from rollout.cli.signals import EXIT_INTERRUPTED, run_interruptible
    from rollout.core.job.regrade import RegradeOptions, regrade

    environ = {**os.environ, **(read_env_file(env_file) if env_file else {})}
    options = RegradeOptions(
        verifier=_verifier(verifier) if verifier is not None else None,
        agents=agents,
        tasks=tasks,
        again=again,
        concurrency=n_concurrent,
    )

    def show(outcome: Regraded) -> None:
        if as_json:
            click.echo(msgspec.json.encode(outcome))
        elif outcome.what != "unchanged":
            click.echo(_line(outcome))

    outcomes = run_interruptible(lambda: regrade(job_dir, options, environ, show), lambda text: print(text, file=sys.stderr))
    if outcomes is None:
        return EXIT_INTERRUPTED
    counts = {what: sum(outcome.what == what for outcome in outcomes) for what in _WORDS}
    if not as_json:
        changed = sum(outcome.what == "regraded" and outcome.before != outcome.after for outcome in outcomes)
        said = [f"{counts['regraded']} {_WORDS['regraded']} ({changed} changed)"]
        said += [f"{count} {_WORDS[what]}" for what, count in counts.items() if count and what != "regraded"]
        click.echo(", ".join(said))
    return 1 if counts["impossible"] or counts["failed"] else 0


def _line(outcome: Regraded) -> str:
    from rollout.cli.display.text import one_line

    if outcome.what == "regraded":
        return one_line(f"{outcome.trial_id}: {_reward(outcome.before)} -> {_reward(outcome.after)}")
    what = "cannot be verified again" if outcome.what == "impossible" else "failed"
    return one_line(f"{outcome.trial_id}: {what}: {outcome.reason}")


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _verifier(text: str) -> VerifierConfig:
    """The verifier that a file or a name means.

    Raises:
        UsageError and its kinds
    """
    import msgspec

    from rollout.core.config.document import read_document
    from rollout.core.config.job import VerifierConfig
    from rollout.core.config.rewards import RewardConfig
    from rollout.core.errors import ConfigError, UsageError
    from rollout.core.plugins import list_plugins

    path = Path(text)
    if path.is_file():
        document = read_document(path)
        block = document.get("verifier", document) if isinstance(document, dict) else document
        try:
            return msgspec.convert(block, VerifierConfig)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}: verifier: {error}") from error
    if any(info.name == text for info in list_plugins("verifiers")):
        return VerifierConfig(type=text)
    if any(info.name == text for info in list_plugins("rewards")):
        return VerifierConfig(rewards=[RewardConfig(type=text)])
    raise UsageError(f"--verifier {text}: neither a file, nor a verifier, nor a reward function; see `rollout plugins rewards`")
