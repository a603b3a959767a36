"""`rollout trial run spec.json`: one trial from its spec alone, as executors on other machines start it."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("trial")
def command() -> None:
    """Run a single trial from its spec."""


@command.command("run")
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.json")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def run(spec: Path, as_json: bool) -> int:
    """Run the trial of SPEC.json (a trial's config.json is one) and write its result.json beside its logs.

    \b
    Exit code: 0 it has a verdict or needed none; 1 it errored; 2 nothing was started,
    something is wrong with the input; 130 interrupted.
    """
    import sys

    from rollout.cli.display.text import figure, one_line
    from rollout.cli.signals import EXIT_INTERRUPTED, run_interruptible
    from rollout.core.job.single import read_spec, run_spec
    from rollout.core.records import to_json

    trial = read_spec(spec)
    result = run_interruptible(lambda: run_spec(trial), lambda text: print(text, file=sys.stderr))
    if result is None:
        return EXIT_INTERRUPTED
    if as_json:
        print(to_json(result, indent=0).decode(), end="")
    elif result.error is not None and result.status == "errored":
        print(f"{one_line(result.trial_id)}: {result.error.type}: {one_line(result.error.message)}")
    else:
        outcome = ", ".join(f"{one_line(key)} {figure(value)}" for key, value in result.rewards.items()) or result.status
        print(f"{one_line(result.trial_id)}: {outcome}")
    return 1 if result.status == "errored" else 0
