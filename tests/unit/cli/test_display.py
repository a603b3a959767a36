"""What the displays show of a stream of events."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from rollout.cli.display.display import Guarded, Silent, choose
from rollout.cli.display.jsonlines import JsonLines
from rollout.cli.display.live import LiveDisplay
from rollout.cli.display.log import LogDisplay
from rollout.cli.display.plain import EACH_TRIAL_UP_TO, PlainDisplay
from rollout.cli.display.progress import Progress
from rollout.core.errors import UsageError
from rollout.core.job.events import (
    Event,
    JobFinished,
    JobStarted,
    MetricReport,
    MetricsUpdated,
    TrialRetried,
    TrialStarted,
    WarningRaised,
)
from rollout.core.records import ErrorInfo
from rollout.core.types import MetricValue
from unit.job_folder import NOW, finished, trial


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started(total: int = 4, **more: Any) -> JobStarted:
    return JobStarted(
        time=NOW,
        job_id="demo-1",
        job_name="demo",
        directory="/jobs/demo",
        total_trials=total,
        kept_trials=more.pop("kept_trials", 0),
        concurrency=2,
        agents=["oracle"],
        datasets=["tools"],
        **more,
    )


def mean(value: float, n: int, *, of_all: float, n_all: int, agent: str = "oracle", key: str = "reward") -> MetricReport:
    values = [MetricValue(name="mean", value=value, n=n), MetricValue(name="mean", value=of_all, n=n_all, basis="all")]
    return MetricReport(agent=agent, dataset="tools", key=key, metric="mean", values=values)


ENDED = JobFinished(
    time=NOW,
    job_id="demo-1",
    directory="/jobs/demo",
    exit_code=1,
    cancelled=False,
    scored=2,
    unscored=0,
    errored=1,
    not_run=1,
    duration_sec=7.25,
)

STORY: list[Event] = [
    started(rerun={"errored": 1}, kept_trials=1),
    WarningRaised(time=NOW, message="FROM is not used:\nthe machine is the base"),
    TrialStarted(time=NOW, trial_id="oracle/tools/a__1"),
    TrialStarted(time=NOW, trial_id="oracle/tools/b__1"),
    finished(trial("a", 1.0)),
    MetricsUpdated(time=NOW, metrics=[mean(1.0, 1, of_all=1.0, n_all=1)]),
    TrialRetried(
        time=NOW,
        trial_id="oracle/tools/b__1",
        try_number=1,
        error=ErrorInfo(type="environment_lost", message="gone", retryable=True),
        wait_sec=2.0,
    ),
    TrialStarted(time=NOW, trial_id="oracle/tools/b__1", try_number=2),
    finished(trial("b", error="environment_lost", message="gone\nfor good \x1b[31m")),
    TrialStarted(time=NOW, trial_id="oracle/tools/c__1"),
]


def tell(display: Any, events: list[Event]) -> None:
    for event in events:
        display.on_event(event)


def test_plain_lines_of_a_small_job() -> None:
    out = io.StringIO()
    clock = Clock()
    display = PlainDisplay(out, Progress(clock))
    tell(display, STORY)
    clock.now += 11
    display.on_event(MetricsUpdated(time=NOW, metrics=[mean(1.0, 1, of_all=0.5, n_all=2)]))
    display.refresh()
    assert out.getvalue().splitlines() == [
        "job demo: 4 trials (1 kept, 1 again (errored)), 2 at once",
        "warning: FROM is not used: the machine is the base",
        "2/4  oracle/tools/a__1  1.000 (1.5 s)",
        "oracle on tools: mean 1.000 (n=1)",
        "oracle/tools/b__1: environment_lost, trying again in 2 s",
        "3/4  oracle/tools/b__1  environment_lost: gone for good \\x1b[31m (1.5 s)",
        "oracle on tools: mean 1.000 (n=1), errors as 0: 0.500 (n=2)",
    ]


def test_plain_shows_only_errors_and_the_pace_of_a_large_job() -> None:
    out = io.StringIO()
    clock = Clock()
    display = PlainDisplay(out, Progress(clock))
    display.on_event(started(total=EACH_TRIAL_UP_TO * 2))
    for index in range(100):
        display.on_event(finished(trial(f"t{index}", 1.0)))
    display.on_event(finished(trial("bad", error="verifier_timeout", message="late")))
    clock.now += 10.1
    display.refresh()
    display.refresh()
    assert out.getvalue().splitlines()[1:] == [
        " 101/1000  oracle/tools/bad__1  verifier_timeout: late (1.5 s)",
        "101/1000 trials, 1 errored, about 1:29 left",
    ]


def test_plain_stops_listing_errors_when_there_are_too_many() -> None:
    out = io.StringIO()
    display = PlainDisplay(out)
    display.on_event(started(total=100_000))
    for index in range(5000):
        display.on_event(finished(trial(f"t{index}", error="environment_lost")))
    lines = out.getvalue().splitlines()
    assert len(lines) < 150
    assert lines[-1] == "further errors are counted only; `rollout show` lists them"


def test_rewards_without_a_primary_one_are_all_shown() -> None:
    out = io.StringIO()
    display = PlainDisplay(out)
    tell(display, [started(), finished(trial("a", rewards={"speed": 2.5, "accuracy": 1.0}))])
    assert "speed 2.500, accuracy 1.000" in out.getvalue()


def test_log_lines_have_a_time_and_one_event_each() -> None:
    out = io.StringIO()
    display = LogDisplay(out)
    tell(display, [*STORY, ENDED])
    stamp = "2026-01-02T03:04:05.000Z"
    assert out.getvalue().splitlines() == [
        f"{stamp} job demo: 4 trials, 1 kept, 2 at once",
        f"{stamp} warning: FROM is not used: the machine is the base",
        f"{stamp} oracle/tools/a__1: started",
        f"{stamp} oracle/tools/b__1: started",
        f"{stamp} oracle/tools/a__1: reward 1.000 (2/4)",
        f"{stamp} oracle on tools: mean 1.000 (n=1)",
        f"{stamp} oracle/tools/b__1: environment_lost: gone; trying again in 2 s",
        f"{stamp} oracle/tools/b__1: started (try 2)",
        f"{stamp} oracle/tools/b__1: errored, environment_lost: gone for good \\x1b[31m (3/4)",
        f"{stamp} oracle/tools/c__1: started",
        f"{stamp} job finished after 7.2 s: 2 scored, 0 unscored, 1 errored, 1 not run; results in /jobs/demo",
    ]


def live(width: int = 80, height: int = 24, encoding: str = "utf-8") -> tuple[LiveDisplay, Console, Clock]:
    clock = Clock()
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, height=height, color_system=None, force_terminal=False, highlight=False)
    return LiveDisplay(stream, Progress(clock), console), console, clock


def drawn(display: LiveDisplay, console: Console) -> list[str]:
    with console.capture() as capture:
        console.print(display.view())
    return [line.rstrip() for line in capture.get().splitlines()]


def test_live_view_shows_progress_metrics_errors_and_running_trials() -> None:
    display, console, clock = live()
    tell(display, STORY)
    clock.now += 8
    display.on_event(MetricsUpdated(time=NOW, metrics=[mean(1.0, 1, of_all=0.5, n_all=2)]))
    lines = drawn(display, console)
    assert lines[0].startswith("demo ")
    assert lines[0].endswith("3/4  8.0 s  about 4.0 s left  1 kept  1 retry")
    assert lines[1:] == [
        "oracle  tools  mean 1.000 (n=1), errors as 0: 0.500 (n=2)",
        "errors: environment_lost 1",
        "  8.0 s  oracle/tools/c__1",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_live_view_fits_narrow_terminals_and_poor_encodings(width: int, encoding: str) -> None:
    display, console, clock = live(width=width, encoding=encoding)
    name = "a-task-with-a-name-that-goes-on-and-on-" * 4
    tell(display, [started(total=1000), *(TrialStarted(time=NOW, trial_id=f"oracle/tools/{name}{i}__1") for i in range(50))])
    display.on_event(finished(trial("x", error="environment_image_pull_failed")))
    display.on_event(
        MetricsUpdated(time=NOW, metrics=[mean(0.5, 3, of_all=0.25, n_all=6, agent=f"agent-{i}") for i in range(40)])
    )
    clock.now += 5
    lines = drawn(display, console)
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= 24
    "\n".join(lines).encode(encoding)


def test_live_view_before_the_plan_is_there() -> None:
    display, console, _ = live()
    assert drawn(display, console) == ["planning ..."]


def test_markup_in_names_is_shown_as_it_is() -> None:
    display, console, _ = live()
    tell(display, [started(), TrialStarted(time=NOW, trial_id="a/b/[red]x[/red]__1")])
    assert any("[red]x[/red]" in line for line in drawn(display, console))


def test_a_live_display_that_is_opened_is_closed_without_a_trace() -> None:
    stream = io.StringIO()
    display = LiveDisplay(stream, console=Console(file=stream, force_terminal=True, width=80, color_system=None))
    with Guarded(display) as guarded:
        tell(guarded, STORY)
        guarded.refresh()
        guarded.message("a note")
    written = stream.getvalue()
    assert "a note" in written
    assert "oracle/tools/b__1: environment_lost: gone for good" in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


def test_json_lines_are_the_events() -> None:
    out, messages = io.StringIO(), io.StringIO()
    display = JsonLines(out, messages)
    tell(display, [*STORY, ENDED])
    display.message("a note")
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["event"] for record in records][:3] == ["job_started", "warning_raised", "trial_started"]
    assert records[4]["result"]["reward"] == 1.0
    assert records[-1] == {
        "event": "job_finished",
        "time": "2026-01-02T03:04:05Z",
        "job_id": "demo-1",
        "directory": "/jobs/demo",
        "exit_code": 1,
        "cancelled": False,
        "scored": 2,
        "unscored": 0,
        "errored": 1,
        "not_run": 1,
        "stopped": None,
        "duration_sec": 7.25,
    }
    assert messages.getvalue() == "a note\n"


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_terminal_that_goes_away_does_not_stop_the_job() -> None:
    for display in (PlainDisplay(Gone()), LogDisplay(Gone()), JsonLines(Gone(), Gone()), Silent(Gone())):
        with Guarded(display) as guarded:
            tell(guarded, STORY)
            guarded.message("a note")
            guarded.refresh()


class Faulty(Silent):
    def on_event(self, event: Event) -> None:
        raise ValueError("cannot count")


def test_a_display_with_a_bug_says_so_once_and_the_job_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with Guarded(Faulty(io.StringIO())) as guarded:
        tell(guarded, STORY)
    assert capsys.readouterr().err == "rollout: the display failed: ValueError: cannot count; the job goes on without it\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("flag", "environ", "stream", "expected"),
    [
        (None, {}, Terminal(), "rich"),
        (None, {}, io.StringIO(), "plain"),
        (None, {"TERM": "dumb"}, Terminal(), "plain"),
        ("auto", {}, Terminal(), "rich"),
        (None, {"ROLLOUT_DISPLAY": "log"}, Terminal(), "log"),
        ("none", {"ROLLOUT_DISPLAY": "log"}, Terminal(), "none"),
        ("rich", {}, io.StringIO(), "rich"),
        (None, {"ROLLOUT_DISPLAY": ""}, io.StringIO(), "plain"),
    ],
)
def test_which_display_a_run_gets(flag: str | None, environ: dict[str, str], stream: io.StringIO, expected: str) -> None:
    assert choose(flag, environ, stream) == expected


def test_a_display_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="ROLLOUT_DISPLAY: 'fancy' is no display"):
        choose(None, {"ROLLOUT_DISPLAY": "fancy"}, io.StringIO())


def test_state_follows_running_trials_not_finished_ones() -> None:
    progress = Progress()
    progress.on_event(started(total=10_000))
    for index in range(10_000):
        name = f"t{index}"
        progress.on_event(TrialStarted(time=NOW, trial_id=f"oracle/tools/{name}__1"))
        progress.on_event(finished(trial(name, 1.0)))
    assert progress.running == {}
    assert progress.done == 10_000
    assert progress.remaining_sec == 0
