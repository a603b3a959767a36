"""`--fail-under`: a threshold that a job's figures have to reach."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from rollout.cli.display.text import figure
from rollout.core.errors import UsageError
from rollout.core.job.events import Event, MetricReport
from rollout.core.types import MetricValue

EXIT_GATE_FAILED = 3
_GATE = re.compile(r"(?:(?P<agent>[^=\[\]]+):)?(?P<metric>[^=:\[\]]+)(?:\[(?P<key>[^\]]+)\])?=(?P<value>[^=]+)")


class Gate(msgspec.Struct, frozen=True):
    """`AGENT:METRIC[KEY]=VALUE`: every figure that it selects has to be at least `value`."""

    text: str
    metric: str
    """A metric's name in the job (`mean`), or one of its figures (`pass@5`)."""
    value: float
    agent: str = "*"
    """A glob."""
    key: str = "reward"


class GateChecked(Event, frozen=True, kw_only=True):
    """The line of `--json` for each `--fail-under`."""

    gate: str
    passed: bool
    reason: str


def parse_gate(text: str) -> Gate:
    """Read one `--fail-under`.

    Raises:
        UsageError: it is not of that form.
    """
    match = _GATE.fullmatch(text.strip())
    try:
        value = float(match["value"]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not math.isfinite(value):
        raise UsageError(f"--fail-under {text!r}: write METRIC=NUMBER, AGENT:METRIC=NUMBER or METRIC[REWARD KEY]=NUMBER")
    return Gate(text.strip(), match["metric"].strip(), value, (match["agent"] or "*").strip(), match["key"] or "reward")


def check_selects(gates: Iterable[Gate], agents: Sequence[str], figures: Sequence[str]) -> None:
    """Refuse a gate that names an agent or a figure that the job does not have. A k of pass@k may turn up later.

    Raises:
        UsageError
    """
    families = {name.partition("@")[0] for name in figures if "@" in name}
    for gate in gates:
        if not any(fnmatchcase(agent, gate.agent) for agent in agents):
            raise UsageError(f"--fail-under {gate.text}: no agent {gate.agent!r} in the job; it has {', '.join(agents)}")
        family, at, _ = gate.metric.partition("@")
        if gate.metric not in figures and not (at and family in families):
            raise UsageError(f"--fail-under {gate.text}: the job has no metric {gate.metric!r}; it has {', '.join(figures)}")


def judge(gate: Gate, metrics: Iterable[MetricReport]) -> list[str]:
    """Why the gate fails, a line each; empty when it is passed.

    Where a metric has a figure with errors counted as 0, that one decides: breaking the environment must not help.
    """
    selected = [report for report in metrics if fnmatchcase(report.agent, gate.agent)]
    keys = {report.key for report in selected}
    if gate.key == "reward" and len(keys) == 1:
        gate = msgspec.structs.replace(gate, key=keys.pop())
    reasons, seen = [], 0
    for report in selected:
        if report.key != gate.key:
            continue
        for value in _deciding(report, gate.metric):
            seen += 1
            if value.value is None or value.value < gate.value:
                where = f"{report.agent} on {report.dataset}"
                reasons.append(f"{where}: {value.name} is {figure(value.value)} (n={value.n}), below {gate.value:g}")
    if not seen:
        reasons.append(f"there is no figure {gate.metric} of the reward key {gate.key!r}")
    return reasons


def _deciding(report: MetricReport, metric: str) -> Iterable[MetricValue]:
    """The figures of a report that a gate on `metric` looks at, one per name."""
    chosen: dict[str, MetricValue] = {}
    for value in report.values:
        if metric in (report.metric, value.name) and (value.name not in chosen or value.basis == "all"):
            chosen[value.name] = value
    return chosen.values()
