"""Job files: precedence, origins, dialects, and faults in words."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.core.config.job import JobConfig
from rollout.core.config.load import JobFile, load_job
from rollout.core.errors import ConfigError

DATA = Path(__file__).parents[2] / "data"
MINIMAL = "agents:\n- name: a\n  execute: x\ndatasets:\n- path: tasks\n"
"""Five lines: what is appended starts on line 6."""


def load(folder: Path, text: str, *sets: str, name: str = "job.yaml", **environ: str) -> JobFile:
    path = folder / name
    path.write_text(text, "utf-8")
    return load_job(path, sets=sets, environ=environ)


def refusal(folder: Path, text: str, *sets: str, name: str = "job.yaml", **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *sets, name=name, **environ)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500 + len(str(folder))
    return message.replace(f"{folder}/", "")


def test_the_job_of_the_format_description_loads_as_written() -> None:
    job = load_job(DATA / "spec_job.yaml", environ={})
    config = job.config
    assert job.warnings == ()
    assert (config.name, config.jobs_dir, config.n_attempts, config.n_concurrent_trials) == ("Job name", "jobs", 1, 4)
    assert (config.timeout_multiplier, config.log_level) == (1.0, "error")
    environment = config.environment
    assert (environment.type, environment.force_build, environment.delete) == ("docker", False, True)
    assert (environment.override_cpus, environment.override_memory, environment.override_storage) == (1, "2G", "30G")
    assert (config.verifier.override_timeout_sec, config.verifier.max_timeout_sec, config.verifier.disable) == (0, 0, False)
    assert [metric.type for metric in config.metrics] == ["mean"]
    scripted, oracle = config.agents
    assert (scripted.name, scripted.install, scripted.execute) == ("some-agent", "install bash script", "execute bash script")
    assert scripted.env == {"MY_API_KEY": "${MY_API_KEY}"}
    assert (scripted.plugin, oracle.plugin) == ("script", "oracle")
    folder, file, url = config.datasets
    assert folder.path == "./path-to-dataset"
    assert file.registry is not None
    assert (file.registry.path, file.name, file.version) == ("./path-to-registry", "dataset-name", "dataset-version")
    assert url.registry is not None
    assert url.registry.url == "https://raw.githubusercontent.com/laude-institute/harbor/refs/heads/main/registry.json"


def test_the_agent_of_the_format_description_loads_as_written() -> None:
    (agent,) = load_job(DATA / "spec_agent.yaml", environ={}).config.agents
    assert agent.name == "cpe"
    assert agent.install is not None
    assert agent.install.startswith("#!/bin/bash\nset -euo pipefail\n")
    assert agent.execute is not None
    assert agent.execute.endswith("${ROLLOUT_TASK_INSTRUCTION} 2>&1 | tee /logs/agent/cpe.txt\n")


def test_a_minimal_job_has_the_documented_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL).config
    assert (config.n_attempts, config.n_concurrent_trials, config.timeout_multiplier) == (1, 4, 1.0)
    assert (config.jobs_dir, config.environment.type, config.environment.delete) == ("jobs", "docker", True)
    assert [metric.type for metric in config.metrics] == ["mean"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", '{"agents": [{"name": "oracle"}], "datasets": [{"path": "x"}], "n_attempts": 2}'),
        ("job.toml", 'n_attempts = 2\n[[agents]]\nname = "oracle"\n[[datasets]]\npath = "x"\n'),
        ("job.yml", "{agents: [{name: oracle}], datasets: [{path: x}], n_attempts: 2}"),
    ],
)
def test_json_and_toml_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    job = load(tmp_path, text, name=name)
    assert (job.config.agents[0].plugin, job.config.datasets[0].path, job.config.n_attempts) == ("oracle", "x", 2)
    assert job.origins["n_attempts"].startswith(name)
    assert job.origins["jobs_dir"] == "default"


def test_relative_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "job.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    assert load_job(Path("sub/job.yaml"), environ={}).base_dir == tmp_path / "sub"


def test_variables_win_over_the_file_and_set_wins_over_both(tmp_path: Path) -> None:
    text = MINIMAL + "n_attempts: 2\nlog_level: info\njobs_dir: here\n"
    job = load(
        tmp_path, text, "n_attempts=4", "agents[0].env.X=1",
        ROLLOUT_N_ATTEMPTS="3", ROLLOUT_JOBS_DIR="2024", ROLLOUT_LOG_LEVEL="", ROLLOUT_ENVIRONMENT_TYPE="local",
    )  # fmt: skip
    assert (job.config.n_attempts, job.config.jobs_dir, job.config.log_level) == (4, "2024", "info")
    assert {
        key: job.origins[key] for key in ("n_attempts", "jobs_dir", "log_level", "environment.type", "timeout_multiplier")
    } == {
        "n_attempts": "--set",
        "jobs_dir": "ROLLOUT_JOBS_DIR",
        "log_level": "job.yaml:7",
        "environment.type": "ROLLOUT_ENVIRONMENT_TYPE",
        "timeout_multiplier": "default",
    }
    assert job.origins["agents[0].env.X"] == "--set"
    assert job.origins["agents[0].name"] == "job.yaml:2"
    assert job.origins["agents[0].options"] == "default"


@pytest.mark.parametrize(
    ("assignment", "where", "value"),
    [
        ("agents.0.env.X=1.50", "agents[0].env.X", "1.50"),
        ("agents.0.env.X=true", "agents[0].env.X", "true"),
        ("agents.0.env.X=a: b", "agents[0].env.X", "a: b"),
        ("agents.0.env.X=*.py", "agents[0].env.X", "*.py"),
        ("agents.0.env.X=", "agents[0].env.X", None),
        ("agents.0.env.X='5'", "agents[0].env.X", "5"),
        ("agents.0.env.X=a=b", "agents[0].env.X", "a=b"),
        ("agents.0.env.X=# no comment", "agents[0].env.X", "# no comment"),
        ("name=007", "name", "007"),
        ('name="\\ud83d\\ude00"', "name", "\N{GRINNING FACE}"),
        ('name="open', "name", '"open'),
        ("name=12", "name", "12"),
        ("timeout_multiplier=2", "timeout_multiplier", 2.0),
        ("verifier.disable=yes", "verifier.disable", True),
        ("environment.options={a: [1, {b: x}]}", "environment.options", {"a": [1, {"b": "x"}]}),
        ("environment.options.deep.er=1", "environment.options", {"deep": {"er": 1}}),
        ("metrics=[{type: sum}]", "metrics", ["sum"]),
        ("datasets.0.task_names=[a, b*]", "datasets[0].task_names", ["a", "b*"]),
        ("environment.override_memory=2G", "environment.override_memory", "2G"),
        ("jobs_dir=", "jobs_dir", "jobs"),
    ],
)
def test_set_takes_a_value_as_it_is_meant(tmp_path: Path, assignment: str, where: str, value: Any) -> None:
    if value is None:
        assert "has no value" in refusal(tmp_path, MINIMAL, assignment)
        return
    config: Any = load(tmp_path, MINIMAL, assignment).config
    for part in where.replace("]", "").replace("[", ".").split("."):
        config = config[int(part)] if part.isdecimal() else config[part] if isinstance(config, dict) else getattr(config, part)
    assert (config if where != "metrics" else [metric.type for metric in config]) == value


@pytest.mark.parametrize(
    ("assignment", "what"),
    [
        ("n_attempts", "--set n_attempts: write KEY=VALUE"),
        ("=1", "not a key"),
        ("a..b=1", "not a key"),
        ("agents.1.name=x", "--set agents.1.name: `agents` ends at position 0"),
        ("agents.x.name=x", "write a position"),
        ("agents.99999999999999999999.name=x", "`agents` ends"),
        ("agents.0.name.x=1", "`agents[0].name` is a single value"),
        ("n_attempts=x", "--set n_attempts: expected a whole number, got 'x'"),
        ("n_atempts=1", "--set n_atempts: unknown key; did you mean `n_attempts`?"),
        ("verifier.options=[1", "--set verifier.options: the value cannot be read"),
        ("verifier.options=[1]", "expected a mapping, got a list"),
        ("agents.0.env.X=\udc80", "not UTF-8"),
        ("agents.0.env.X=${", "--set agents.0.env.X: `${` at character 1"),
        ("agents.0={name: b, execut: x}", "--set agents.0: agents[0].execut: unknown key; did you mean `execute`?"),
    ],
)
def test_a_faulty_set_is_refused(tmp_path: Path, assignment: str, what: str) -> None:
    assert what in refusal(tmp_path, MINIMAL, assignment)


def test_a_faulty_variable_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL, ROLLOUT_N_CONCURRENT_TRIALS="many")
    assert message == "ROLLOUT_N_CONCURRENT_TRIALS: n_concurrent_trials: expected a whole number, got 'many'"


def test_harbor_spellings_mean_the_same(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        "job_name: j\nagents: [{name: oracle}]\n"
        "environment: {override_memory_mb: 512, override_storage_mb: 2048}\n"
        "datasets:\n- {registry_path: r.json, name: d}\n- {registry_url: 'https://x/r.json', name: d}\n",
    )
    assert job.config.name == "j"
    assert (job.config.environment.override_memory, job.config.environment.override_storage) == ("512Mi", "2048Mi")
    assert [dataset.registry and dataset.registry.plugin for dataset in job.config.datasets] == ["path", "url"]
    assert job.origins["name"] == "job.yaml:1"
    assert job.origins["environment.override_memory"] == "job.yaml:3"
    assert job.origins["datasets[1].registry.url"] == "job.yaml:6"


def test_empty_keys_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    assert (
        load(tmp_path, MINIMAL + "environment:\nmetrics:\nname:\nn_attempts:\nverifier:\n  env:\n").config
        == load(tmp_path, MINIMAL).config
    )


def test_numbers_in_env_are_the_text_that_was_written(tmp_path: Path) -> None:
    yaml_text = MINIMAL + "verifier:\n  env: {A: 1.50, B: 0x10, C: 1_000, D: 0123, E: 2024-01-01, F: 1e3}\n"
    assert load(tmp_path, yaml_text).config.verifier.env == {
        "A": "1.50", "B": "0x10", "C": "1_000", "D": "0123", "E": "2024-01-01", "F": "1e3",
    }  # fmt: skip
    json_text = '{"agents": [{"name": "a", "env": {"A": 1.50}}], "datasets": [{"path": "x"}]}'
    assert load(tmp_path, json_text, name="j.json").config.agents[0].env == {"A": "1.50"}
    toml_text = '[[agents]]\nname = "a"\nenv = {A = 1.5, B = 3}\n[[datasets]]\npath = "x"\n'
    assert load(tmp_path, toml_text, name="j.toml").config.agents[0].env == {"A": "1.5", "B": "3"}


def test_a_bare_number_for_memory_is_mebibytes_with_a_warning(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, MINIMAL + "environment:\n  override_memory: 2048\n").warnings
    assert "job.yaml:7: environment.override_memory" in warning
    assert "2048Mi" in warning


def test_anchors_and_merges_share_agents(tmp_path: Path) -> None:
    text = "agents:\n- &base {name: a, execute: x, env: {A: b}}\n- {<<: *base, name: c}\ndatasets: [{path: x}]\n"
    first, second = load(tmp_path, text).config.agents
    assert (first.name, second.name, second.env) == ("a", "c", {"A": "b"})


def test_setting_one_of_two_aliased_values_leaves_the_other(tmp_path: Path) -> None:
    text = "agents:\n- {name: a, execute: x, env: &e {A: b}}\n- {name: c, execute: x, env: *e}\ndatasets: [{path: x}]\n"
    first, second = load(tmp_path, text, "agents.0.env.A=z").config.agents
    assert (first.env, second.env) == ({"A": "z"}, {"A": "b"})


FAULTS = {
    "unknown key": ("n_atempts: 1", "job.yaml:6: n_atempts: unknown key; did you mean `n_attempts`?"),
    "unknown inner key": ("environment:\n  typ: x", "job.yaml:7: environment.typ: unknown key; did you mean `type`?"),
    "case": ("N_Attempts: 1", "did you mean `n_attempts`?"),
    "dashes": ("n-attempts: 1", "did you mean `n_attempts`?"),
    "wrong block": ("disable: true", "it belongs to `verifier`"),
    "wrong level": ("environment: {n_attempts: 1}", "it belongs to the top level"),
    "nothing like it": ("zzz: 1", "known here: name, jobs_dir"),
    "harbor orchestrator": ("orchestrator: {n_concurrent_trials: 4}", "`n_concurrent_trials` and `retry` at the top level"),
    "harbor debug": ("debug: true", "write `log_level: debug`"),
    "harbor tasks": ("tasks: [{path: x}]", "write `datasets: [{path: ...}]`"),
    "harbor kwargs": ("environment: {kwargs: {}}", "environment.kwargs: unknown key; write `options`"),
    "harbor import path": ("verifier: {import_path: a:B}", "register the class as a plugin"),
    "harbor multiplier": ("agent_timeout_multiplier: 2", "`timeout_multiplier` scales every timeout"),
    "harbor retry": ("retry: {include_exceptions: [X]}", "write `include`, with error codes"),
    "go retry": ("retry: {max_attempts: 3}", "write `max_retries`"),
    "alias and key": ("name: a\njob_name: b", "job.yaml:7: job_name: means the same as `name`"),
    "alias of a wrong type": ("environment: {override_memory_mb: 2G}", "expected a whole number of MiB"),
    "number for text": ("name: 12", "job.yaml:6: name: expected text, got 12; quote it"),
    "boolean for text": ("name: no", "name: expected text, got false; quote it (YAML reads yes, no"),
    "text for number": ("n_attempts: three", "n_attempts: expected a whole number, got 'three'"),
    "quoted number": ("n_attempts: '3'", "remove the quotes"),
    "fraction": ("n_attempts: 1.5", "expected a whole number, got 1.5"),
    "boolean for number": ("n_attempts: true", "expected a whole number, got true"),
    "zero attempts": ("n_attempts: 0", "of at least 1, got 0"),
    "negative concurrency": ("n_concurrent_trials: -4", "of at least 1, got -4"),
    "zero multiplier": ("timeout_multiplier: 0", "a number above 0, got 0"),
    "negative timeout": ("verifier: {max_timeout_sec: -1}", "of at least 0, got -1"),
    "too many retries": ("retry: {max_retries: 1000}", "of at most 100, got 1000"),
    "infinite multiplier": ("timeout_multiplier: .inf", "not a finite number"),
    "text for boolean": ("verifier: {disable: 'yes'}", "expected true or false, got 'yes'"),
    "literal": ("log_level: wran", "did you mean `warn`?"),
    "literal of another type": ("isolation: true", "expected one of default, separate, strict, users, got true"),
    "text for block": ("environment: docker", "environment: expected a mapping, got 'docker'"),
    "list for block": ("environment: [docker]", "expected a mapping, got a list"),
    "block for list": ("metrics: {type: mean}", "expected a list, got a mapping; start each item with `- `"),
    "text in list of blocks": ("metrics: [mean]", "metrics[0]: expected a mapping, got 'mean'; write `type: mean`"),
    "missing in item": ("metrics: [{}]", "metrics[0]: `type` is missing"),
    "list for text": ("name: [a]", "name: expected text, got a list"),
    "empty text": ("name: ''", "name: may not be empty"),
    "long text": (f"name: {'x' * 301}", "301 characters are too many"),
    "options": ("environment: {options: [a]}", "environment.options: expected a mapping, got a list"),
    "quantity": ("environment: {override_memory: 2Gb}", "environment.override_memory: '2Gb' is not a quantity"),
    "zero cpus": ("environment: {override_cpus: 0}", "environment.override_cpus"),
    "list for quantity": ("environment: {override_cpus: [1]}", "expected a number or text, got a list"),
    "env list": ("verifier: {env: [A=b]}", "verifier.env: expected a mapping, got a list"),
    "env boolean": ("verifier: {env: {A: on}}", "verifier.env.A: expected text, got a boolean; quote it"),
    "env null": ("verifier: {env: {A: }}", 'verifier.env.A: has no value; write "" for an empty one'),
    "env nested": ("verifier: {env: {A: {b: c}}}", "verifier.env.A: expected text, got a mapping"),
    "env name": ("verifier: {env: {'A=B': c}}", "not a name that a variable can have"),
    "env reference": ("verifier: {env: {A: '${B'}}", "verifier.env.A: `${` at character 1 has no closing"),
    "env shell": ("verifier: {env: {A: '${B:?x}'}}", "is not `${NAME}` or `${NAME:-default}`"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "what"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_line_with_place_key_and_advice(tmp_path: Path, text: str, what: str) -> None:
    message = refusal(tmp_path, MINIMAL + text)
    assert message.startswith("job.yaml:")
    assert what in message


WHOLE = {
    "empty": ("", "job.yaml: is empty"),
    "comment": ("# nothing", "job.yaml: is empty"),
    "text": ("hello", "is a single value"),
    "list": ("- name: x", "a registry is named in a job, under `datasets`"),
    "empty agents": ("agents: []\ndatasets: [{path: x}]", "agents: the list is empty"),
    "no datasets": ("agents: [{name: a}]", "`datasets` is missing"),
    "agent without name": ("agents: [{execute: x}]\ndatasets: [{path: x}]", "agents[0]: `name` is missing"),
    "agent as text": ("agents: [oracle]\ndatasets:", "agents[0]: expected a mapping, got 'oracle'; write `name: oracle`"),
    "null agent": ("agents: [~]\ndatasets: [{path: x}]", "agents[0]: expected a mapping, got nothing"),
    "install alone": ("agents: [{name: a, install: x}]\ndatasets: [{path: x}]", "agents[0]: `install` without `execute`"),
    "script and type": ("agents: [{name: a, execute: x, type: b}]\ndatasets: [{path: x}]", "give one or the other"),
    "go scripts": ("agents: [{name: a, run_script: x}]\ndatasets: [{path: x}]", "write `execute`"),
    "model": ("agents: [{name: a, model_name: x}]\ndatasets: [{path: x}]", "one of the agent plugin's `options`"),
    "two agents of one name": (
        "agents:\n- name: oracle\n- name: oracle\n  type: nop\ndatasets: [{path: x}]",
        "job.yaml:3: agents[1].name: 'oracle' is the name of agents[0] (line 2) too",
    ),
    "dataset without source": ("agents: [{name: a}]\ndatasets: [{name: x}]", "give exactly one of `path` and `registry`"),
    "dataset with two sources": (
        "agents: [{name: a}]\ndatasets: [{path: x, registry: {path: y}, name: z}]",
        "give exactly one of `path` and `registry`",
    ),
    "registry without name": ("agents: [{name: a}]\ndatasets: [{registry: {path: y}}]", "needs a `name`"),
    "registry without source": ("agents: [{name: a}]\ndatasets: [{registry: {}, name: z}]", "registry: give exactly one"),
    "registry with two": ("agents: [{name: a}]\ndatasets: [{registry: {path: x, url: y}, name: z}]", "there is path, url"),
    "version of a folder": ("agents: [{name: a}]\ndatasets: [{path: x, version: '1'}]", "`version` goes with `registry`"),
    "unquoted version": ("agents: [{name: a}]\ndatasets: [{registry: {path: x}, name: y, version: 2.0}]", "got 2.0; quote it"),
    "zero tasks": ("agents: [{name: a}]\ndatasets: [{path: x, n_tasks: 0}]", "n_tasks: expected a whole number of at least"),
    "glob as text": ("agents: [{name: a}]\ndatasets: [{path: x, task_names: a*}]", "task_names: expected a list, got 'a*'"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "what"), WHOLE.values(), ids=WHOLE)
def test_a_job_that_is_no_job_is_refused(tmp_path: Path, text: str, what: str) -> None:
    assert what in refusal(tmp_path, text)


def test_all_faults_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL + "n_atempts: 1\nn_attempts: 0\nverifyer: {}\nenvironment: {typ: x}\n")
    assert message == (
        "job.yaml:6: n_atempts: unknown key; did you mean `n_attempts`?"
        " | line 7: n_attempts: expected a whole number of at least 1, got 0"
        " | line 8: verifyer: unknown key; did you mean `verifier`?"
        " | line 9: environment.typ: unknown key; did you mean `type`?"
    )


def test_a_hundred_faults_are_still_one_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL + "".join(f"unknown_{n}: 1\n" for n in range(100)))
    assert " more" in message


def test_no_message_shows_a_secret(tmp_path: Path) -> None:
    text = MINIMAL + "verifier:\n  env: {A: 'hidden ${', B: [hidden]}\nenvironment:\n  options: {}\n  api_key: {x: hidden}\n"
    assert "hidden" not in refusal(tmp_path, text)
    assert "hidden" not in refusal(tmp_path, MINIMAL + "agents_api_key: hidden\n")


def test_a_job_that_loads_means_itself(tmp_path: Path) -> None:
    """What `msgspec` writes of a job is a job file of the same meaning."""
    job = load(tmp_path, MINIMAL + "environment: {env: {A: '1'}, options: {x: [1, 2]}}\n").config
    import msgspec

    assert load(tmp_path, msgspec.json.encode(job).decode(), name="again.json").config == job


VALID = yaml.safe_load((DATA / "spec_job.yaml").read_text("utf-8"))
ODD_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just("${"),
    st.just([[]]), st.just({"name": 1}), st.just("x" * 1000), st.just("\0"), st.integers(10**18, 10**25),
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in parts for place in _places(item, (*path, key)))]


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    """The job of the format description with one to three of its values replaced, removed or added to."""
    job = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(_places(job)[1:] or [()]))
        parent = job
        for key in place[:-1]:
            parent = parent[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace" if place:
                parent[place[-1]] = copy.deepcopy(draw(ODD_VALUES))
            case "remove" if place:
                del parent[place[-1]]
            case _ if isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = copy.deepcopy(draw(ODD_VALUES))
            case _:
                parent.append(copy.deepcopy(draw(ODD_VALUES)))
    return job


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(mutations())
def test_any_mutation_of_a_job_is_a_job_or_a_refusal(tmp_path: Path, job: Any) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job, allow_unicode=True), "utf-8")
    try:
        loaded = load_job(path, environ={})
    except ConfigError as error:
        assert str(error).startswith(f"{path}")
        assert "\n" not in str(error)
        assert len(str(error)) < 500 + len(str(tmp_path))
    else:
        assert isinstance(loaded.config, JobConfig)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 8), st.binary(max_size=4)), min_size=1, max_size=4))
def test_any_damage_to_the_bytes_of_a_job_is_a_job_or_a_refusal(tmp_path: Path, damages: list[tuple[int, int, bytes]]) -> None:
    data = (DATA / "spec_job.yaml").read_bytes()
    for start, length, instead in damages:
        data = data[:start] + instead + data[start + length :]
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    try:
        load_job(path, environ={})
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 500 + len(str(tmp_path))


@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_any_set_is_taken_or_refused(assignment: str) -> None:
    try:
        load_job(DATA / "spec_job.yaml", sets=[assignment], environ={})
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 500 + len(str(DATA))


def test_a_file_that_cannot_be_read_is_refused() -> None:
    """Reading address 0 of a process fails for every user, root included."""
    with pytest.raises(ConfigError, match="/proc/self/mem: cannot be read: Input/output error"):
        load_job(Path("/proc/self/mem"))


@pytest.mark.parametrize(
    ("block", "chosen"),
    [
        ("{}", None),
        ("{type: python, options: {module: a}}", ("python", {"module": "a"})),
        ("{rewards: [f1]}", ("rewards", {"rewards": ["f1"]})),
        (
            "{rubric: {funcs: [f1, {type: math}], weights: [1, 2]}}",
            (
                "rewards",
                {
                    "rewards": [
                        {"type": "f1", "weight": 1.0},
                        {"type": "math", "name": None, "weight": 2.0, "options": {}},
                    ]
                },
            ),
        ),
    ],
)
def test_a_verifier_is_a_plugin_or_reward_functions(tmp_path: Path, block: str, chosen: Any) -> None:
    assert load(tmp_path, f"{MINIMAL}verifier: {block}\n").config.verifier.chosen() == chosen


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("{type: script, rewards: [f1]}", "give only one of `type`, `rewards` and `rubric` (there is type and rewards)"),
        ("{options: {a: 1}}", "`options` belong to a verifier plugin: name it with `type`"),
        ("{rubric: {funcs: [f1], weights: [1, 2]}}", "there are 1 `funcs` and 2 `weights`"),
        ("{rubric: {funcs: [{type: f1, weight: 1}], weights: [1]}}", "weights are given twice"),
        ("{rewards: [{weight: 1}]}", "rewards[0]"),
        ("{rewards: [{type: f1, weight: -1}]}", "rewards[0]"),
    ],
)
def test_a_verifier_that_contradicts_itself_is_refused(tmp_path: Path, block: str, why: str) -> None:
    assert why in refusal(tmp_path, f"{MINIMAL}verifier: {block}\n")
