"""What `rollout run` does: plan a job, run what is left of it, show how it went."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rollout.cli.display.display import REFRESH_EVERY_SEC, Guarded, choose, make
from rollout.cli.display.text import one_line
from rollout.cli.dotenv import read_env_file
from rollout.cli.gate import EXIT_GATE_FAILED, Gate, GateChecked, check_selects, judge, parse_gate
from rollout.cli.junit import check_writable, write_junit
from rollout.cli.logs import logging_to
from rollout.cli.outcome import print_interrupted, print_outcome, print_plan
from rollout.cli.signals import EXIT_INTERRUPTED, run_interruptible
from rollout.core.config.load import JobFile, load_job
from rollout.core.job.plan import Plan
from rollout.core.job.planner import PlanOptions, plan_job
from rollout.core.job.report import load_report
from rollout.core.job.results import JobResult
from rollout.core.job.scheduler import JobOutcome, run_job


@dataclass(frozen=True)
class RunFlags:
    """What the command line says, one field per flag."""

    file: Path
    n_concurrent: int | None
    n_attempts: int | None
    agents: tuple[str, ...]
    tasks: tuple[str, ...]
    sets: tuple[str, ...]
    env_file: Path | None
    jobs_dir: str | None
    name: str | None
    fresh: bool
    offline: bool
    skip_invalid: bool
    fail_under: tuple[str, ...]
    dry_run: bool
    display: str | None
    as_json: bool
    junit: Path | None
    quiet: bool

    def settings(self) -> list[str]:
        """The flags that are keys of the job file, as `--set` entries, so that `rollout config` would tell their origin."""
        given = {
            "n_concurrent_trials": self.n_concurrent,
            "n_attempts": self.n_attempts,
            "jobs_dir": self.jobs_dir,
            "name": self.name,
        }
        return [*self.sets, *(f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None)]


def run(flags: RunFlags) -> int:
    """Run the job that the flags describe and return the exit code."""
    gates = [parse_gate(text) for text in flags.fail_under]
    name = choose("none" if flags.quiet else flags.display, os.environ, sys.stderr)
    if flags.junit is not None:
        check_writable(flags.junit)
    environ = {**os.environ, **(read_env_file(flags.env_file) if flags.env_file else {})}
    job = load_job(flags.file, sets=flags.settings(), environ=environ)
    if flags.dry_run:
        plan = run_interruptible(lambda: _plan_only(job, flags, environ, gates), lambda text: print(text, file=sys.stderr))
        if plan is None:
            return EXIT_INTERRUPTED
        print_plan(plan, as_json=flags.as_json)
        return 0
    started = _Started()
    with make(name, as_json=flags.as_json) as display, logging_to(display.message, job.config.log_level):
        outcome = run_interruptible(lambda: _run(job, flags, environ, gates, display, started), display.message)
    table = not flags.as_json and (flags.quiet or name != "none")
    if outcome is None:
        if table and started.directory is not None:
            print_interrupted(started.directory, fresh=flags.fresh)
    elif table:
        print_outcome(outcome.result, started.directory, fresh=flags.fresh)
    if flags.junit is not None and started.directory is not None:
        write_junit(load_report(started.directory), flags.junit)
    if outcome is None:
        return EXIT_INTERRUPTED
    return outcome.exit_code or _judge(gates, outcome.result, as_json=flags.as_json)


@dataclass
class _Started:
    """What is known of a run once it is planned."""

    directory: Path | None = None


async def _plan(job: JobFile, flags: RunFlags, environ: dict[str, str], gates: list[Gate]) -> Plan:
    def check(plan: Plan) -> None:
        figures = [name for name, _, _ in plan.metrics]
        figures += [value.name for _, plugin, decoded in plan.metrics for value in plugin.cls(decoded).values()]
        check_selects(gates, [agent.spec.name for agent in plan.agents], list(dict.fromkeys(figures)))

    options = PlanOptions(
        fresh=flags.fresh,
        offline=flags.offline,
        skip_invalid=flags.skip_invalid,
        agents=flags.agents,
        tasks=flags.tasks,
        dry_run=flags.dry_run,
        check=check,
    )
    return await plan_job(job, options, environ)


async def _plan_only(job: JobFile, flags: RunFlags, environ: dict[str, str], gates: list[Gate]) -> Plan:
    plan = await _plan(job, flags, environ, gates)
    await plan.aclose()
    return plan


async def _run(
    job: JobFile, flags: RunFlags, environ: dict[str, str], gates: list[Gate], display: Guarded, started: _Started
) -> JobOutcome:
    drawing = asyncio.ensure_future(_draw(display))
    try:
        plan = await _plan(job, flags, environ, gates)
        started.directory = plan.directory
        return await run_job(plan, display.on_event)
    finally:
        drawing.cancel()


async def _draw(display: Guarded) -> None:
    while True:
        await asyncio.sleep(REFRESH_EVERY_SEC)
        display.refresh()


def _judge(gates: list[Gate], result: JobResult, *, as_json: bool) -> int:
    """EXIT_GATE_FAILED when a gate fails, saying why; 0 otherwise."""
    failed = False
    for gate in gates:
        reasons = judge(gate, result.metrics)
        failed = failed or bool(reasons)
        if as_json:
            event = GateChecked(time=datetime.now(UTC), gate=gate.text, passed=not reasons, reason="; ".join(reasons))
            print(msgspec.json.encode(event).decode(), flush=True)
        else:
            for reason in reasons:
                print(f"rollout: --fail-under {one_line(gate.text)}: {one_line(reason)}", file=sys.stderr)
    return EXIT_GATE_FAILED if failed else 0
