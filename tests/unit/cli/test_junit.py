"""JUnit XML of a job."""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.cli.junit import check_writable, write_junit
from rollout.core.errors import StoreError, UsageError
from rollout.core.job.report import load_report
from rollout.core.records import TrialResult
from unit.job_folder import trial, write_job_folder, write_output

# The common schema (Jenkins' junit-10.xsd), as far as it is used: element -> (attributes, children).
SCHEMA = {
    "testsuites": ({"name", "tests", "failures", "errors", "time"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "time"}, {"testcase"}),
    "testcase": ({"name", "classname", "time"}, {"skipped", "error", "failure", "system-out", "system-err"}),
    "failure": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}


def check(element: ET.Element) -> None:
    attributes, children = SCHEMA[element.tag]
    assert set(element.keys()) == attributes, element.tag
    for child in element:
        assert child.tag in children, f"{child.tag} in {element.tag}"
        check(child)
    if element.tag in ("testsuite", "testsuites"):
        cases = list(element.iter("testcase"))
        assert int(element.get("tests", "")) == len(cases)
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            if count in attributes:
                assert int(element.get(count, "")) == len(list(element.iter(tag)))
        assert float(element.get("time", "")) == pytest.approx(sum(float(case.get("time", "")) for case in cases), abs=0.01)


def written(folder: Path, trials: list[TrialResult]) -> ET.Element:
    report = load_report(write_job_folder(folder / "demo", trials))
    write_junit(report, folder / "reports" / "junit.xml")
    root = ET.parse(folder / "reports" / "junit.xml").getroot()
    check(root)
    return root


def test_a_suite_per_agent_and_dataset_and_a_case_per_trial(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        [
            trial("full", 1.0),
            trial("full", 1.0, attempt=2),
            trial("half", 0.5),
            trial("broken", error="agent_install_failed", message='apt said "no" & left <early>'),
            trial("traced", status="unscored"),
            trial("full", 0.0, agent="nop"),
        ],
    )
    assert [suite.get("name") for suite in root] == ["oracle on tools", "nop on tools"]
    cases = {case.get("name"): case for case in root[0]}
    assert list(cases) == ["full", "full (attempt 2)", "half", "broken", "traced"]
    assert [child.tag for child in cases["full"]] == ["system-out"]
    failure = cases["half"].find("failure")
    assert failure is not None
    assert failure.get("message") == "reward 0.5"
    error = cases["broken"].find("error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("agent_install_failed", 'apt said "no" & left <early>')
    assert cases["traced"].find("skipped") is not None
    assert (cases["full"].findtext("system-out") or "").startswith(f"{tmp_path}/demo/oracle/tools/full__1\n")


def test_a_failure_quotes_the_line_that_explains_it(tmp_path: Path) -> None:
    result = trial("low", 0.0)
    write_output(tmp_path / "demo", result, "verifier", "stdout", "expected 42 \x1b[31mgot\x1b[0m \x00\x08 41\n")
    assert (written(tmp_path, [result])[0][0].findtext("failure") or "") == "expected 42 got ?? 41"


def test_trials_with_several_rewards_and_none_of_them_primary_pass(tmp_path: Path) -> None:
    case = written(tmp_path, [trial("a", rewards={"speed": 0.1, "accuracy": 0.2})])[0][0]
    assert [child.tag for child in case] == ["system-out"]
    assert "reward speed: 0.1" in (case.findtext("system-out") or "")


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_any_text_makes_a_valid_document(task: str, agent: str, message: str) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in (task, agent, message)]
    result = trial(texts[0], agent=texts[1], error="environment_lost", message=texts[2])
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), [result])


def test_a_job_without_trials_is_an_empty_document(tmp_path: Path) -> None:
    assert len(written(tmp_path, [])) == 0


def test_a_place_that_cannot_be_written_is_refused_before_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "x.xml"):
        with pytest.raises(UsageError, match="--junit"):
            check_writable(path)
    check_writable(tmp_path / "new" / "folder" / "x.xml")
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_later_is_a_store_error(tmp_path: Path) -> None:
    report = load_report(write_job_folder(tmp_path / "demo", [trial("a", 1.0)]))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        write_junit(report, tmp_path / "file" / "x.xml")
