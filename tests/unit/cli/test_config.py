"""`rollout config` and `rollout schema`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from rollout.cli.config import command as config
from rollout.cli.schema import command as schema
from rollout.core.config.load import load_job

JOB = """\
agents:
- name: a
  install: |
    #!/bin/bash
    # set up
    true
  execute: "echo hi\\n\\n"
  env: {MY_KEY: sk-literal, MODEL: m, OTHER_KEY: "${OTHER_KEY_UNSET}", N: 1.50}
datasets:
- path: tasks
  task_names: ['yes', "a: b", "# x", "ä*", ""]
environment:
  options: {deep: [[1, 2], [], {}, {x: null}], token: hidden-too}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ROLLOUT_JOBS_DIR", "ROLLOUT_N_ATTEMPTS", "OTHER_KEY_UNSET"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "job.yaml"
    path.write_text(JOB, "utf-8")
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(config, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_printed_job_is_a_job_file_of_the_same_meaning(job: Path) -> None:
    printed = run(str(job), "--set", "n_attempts=3")
    resolved = msgspec.to_builtins(load_job(job, sets=["n_attempts=3"]).config)
    resolved["agents"][0]["env"]["MY_KEY"] = "[not shown]"
    resolved["environment"]["options"]["token"] = "[not shown]"
    assert yaml.safe_load(printed) == resolved


def test_every_value_has_its_origin_behind_it(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_JOBS_DIR", "elsewhere")
    printed = run(str(job), "--set", "n_attempts=3")
    for line in (
        "n_attempts: 3 # --set",
        "jobs_dir: elsewhere # ROLLOUT_JOBS_DIR",
        "log_level: error # default",
        "- name: a # job.yaml:2",
        "install: | # job.yaml:3",
        "N: '1.50' # job.yaml:8",
        "OTHER_KEY: ${OTHER_KEY_UNSET} # job.yaml:8, not set here: OTHER_KEY_UNSET",
    ):
        assert line in re.sub(" +", " ", printed)


def test_literal_secrets_are_not_shown(job: Path) -> None:
    for printed in (run(str(job)), run(str(job), "--json")):
        assert "sk-literal" not in printed
        assert "hidden-too" not in printed
        assert "${OTHER_KEY_UNSET}" in printed


def test_json_has_value_and_origin_of_each_leaf(job: Path) -> None:
    printed: dict[str, Any] = json.loads(run(str(job), "--json"))
    assert printed["agents"][0]["name"] == {"value": "a", "origin": "job.yaml:2"}
    assert printed["environment"]["options"]["deep"][0][1] == {"value": 2, "origin": "job.yaml:13"}
    assert printed["n_attempts"] == {"value": 1, "origin": "default"}


@pytest.mark.parametrize(("what", "key"), [("job", "n_concurrent_trials"), ("task", "metadata"), ("result", "reward")])
def test_schemas_are_json(what: str, key: str) -> None:
    result = CliRunner().invoke(schema, [what], catch_exceptions=False)
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert key in printed["$defs"][printed["$ref"].rpartition("/")[2]]["properties"]
