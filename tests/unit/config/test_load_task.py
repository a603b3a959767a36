"""task.toml in both dialects; what is doubtful is a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.core.config.load import load_task_config
from rollout.core.config.task import TaskConfig
from rollout.core.errors import ConfigError
from rollout.core.quantity import parse_bytes, parse_cpus

DATA = Path(__file__).parents[2] / "data"


def load(folder: Path, text: str) -> tuple[TaskConfig, tuple[str, ...]]:
    path = folder / "task.toml"
    path.write_text(text, "utf-8")
    return load_task_config(path)


def test_the_task_of_the_format_description_loads_as_written() -> None:
    config, warnings = load_task_config(DATA / "spec_task.toml")
    assert config.version == "1.0"
    assert config.metadata["author_name"] == "Steve Jobs"
    assert config.metadata["tags"] == ["trivial"]
    assert (config.verifier.timeout_sec, config.agent.timeout_sec, config.environment.build_timeout_sec) == (120, 120, 600)
    assert config.environment.docker_image == "some-org/some-name:some-tag"
    assert (config.environment.cpus, config.environment.memory, config.environment.storage) == ("1", "2048", "10240")
    assert [warning.partition(":")[0] for warning in warnings] == ["environment.memory", "environment.storage"]
    assert warnings[0].endswith("read as 2048Mi")


def test_an_empty_task_has_the_documented_defaults(tmp_path: Path) -> None:
    config, warnings = load(tmp_path, "")
    assert config == TaskConfig()
    assert (config.verifier.timeout_sec, config.agent.timeout_sec, config.agent.install_timeout_sec) == (600, 600, 600)
    assert warnings == ('`version` is missing; write version = "1.0"',)


def test_a_task_in_harbors_dialect_loads_without_a_warning(tmp_path: Path) -> None:
    text = """
        schema_version = "1.4"
        source = "somewhere"
        artifacts = ["/app/out"]
        [task]
        name = "org/name"
        authors = [{ name = "A", email = "a@b.c" }]
        [metadata]
        created = 2024-01-02
        [agent]
        user = "agent"
        timeout_sec = 1800
        [verifier]
        user = 0
        environment_mode = "shared"
        [verifier.env]
        KEY = "${KEY:-none}"
        [environment]
        cpus = 2
        memory_mb = 4096
        storage_mb = 10240
        gpus = 0
        os = "linux"
        network_mode = "no-network"
        allowed_hosts = []
        mcp_servers = [{name = "tools", transport = "streamable-http", url = "http://tools:8000/mcp"}]
        workdir = "/app"
        [solution.env]
        A = "b"
    """
    config, warnings = load(tmp_path, text)
    assert warnings == ()
    assert config.version == "1.4"
    assert (config.environment.cpus, config.environment.memory_mb, config.environment.storage_mb) == (2, 4096, 10240)
    assert (config.agent.user, config.verifier.user) == ("agent", 0)
    assert config.metadata == {"created": "2024-01-02"}
    assert config.unsupported() == []


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("agnt = 1", "agnt: unknown key; did you mean `agent`?"),
        ("[agent]\ntimeut_sec = 1", "agent.timeut_sec: unknown key; did you mean `timeout_sec`?"),
        ("[environment]\nuser = 'x'", "environment.user: unknown key; it belongs to `agent`"),
        ("[[zzz]]\na = 1", "zzz: unknown key"),
        ("version = 1.0", "version: 1.0 is a number; read as text"),
        ('version = "2.0"', "version: '2.0' is not 1.x, which is what is read"),
        ("[environment]\nmemory = 2048", "environment.memory: 2048 has no unit and is too small for bytes: read as 2048Mi"),
    ],
)
def test_what_is_doubtful_is_a_warning(tmp_path: Path, text: str, warning: str) -> None:
    _, warnings = load(tmp_path, text if text.startswith("version") else f'version = "1"\n{text}')
    assert warnings == (warning,)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("agent = 1", "agent: expected a mapping, got 1"),
        ("[agent]\ntimeout_sec = '120'", "agent.timeout_sec: expected a number, got '120'; remove the quotes"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec: expected a number above 0, got 0"),
        ("[verifier]\ntimeout_sec = -1.5", "verifier.timeout_sec: expected a number above 0, got -1.5"),
        ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec: not a finite number"),
        ("[verifier]\nuser = []", "verifier.user: expected a number or text, got a list"),
        ("[verifier.env]\nA = true", "verifier.env.A: expected text, got a boolean; quote it"),
        ("[verifier.env]\nA = '${'", "verifier.env.A: `${` at character 1"),
        ("[environment]\ncpus = 0", "environment.cpus: 0 is not a number of CPUs above 0"),
        ("[environment]\ncpus = true", "environment.cpus"),
        ("[environment]\nmemory = '2 G'", "environment.memory: '2 G' is not a quantity"),
        ("[environment]\nmemory_mb = 0", "environment.memory_mb: expected a whole number above 0, got 0"),
        ("[environment]\nstorage_mb = '10G'", "environment.storage_mb: expected a whole number, got '10G'"),
        (
            "[environment]\ndocker_image = 1.2\nallow_internet = 'no'",
            "environment.allow_internet: expected true or false, got 'no'",
        ),
        ("[environment]\nallowed_hosts = 'a'", "environment.allowed_hosts: expected a list, got 'a'"),
        ("metadata = []", "metadata: expected a mapping, got a list"),
        ("version = '1'\nschema_version = '1'", "schema_version: means the same as `version`"),
        ("version = ['1']", "version: expected text, got a list"),
        ("[agent]\n[agent]", "task.toml:2: is not TOML"),
        ("version = ", "task.toml:1: is not TOML"),
    ],
)
def test_what_is_wrong_is_an_error_with_file_and_key(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "task.toml"))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


GI, MI = 2**30, 2**20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2G", 2 * 10**9),
        ("2Gi", 2 * GI),
        ("2g", None),
        ("2 G", None),
        ("512M", 512 * 10**6),
        ("1.5G", 1_500_000_000),
        ("100m", 1),
        ("1048576", 1048576),
        ("2048", 2048 * MI),
        ("1e9", 10**9),
        ("2Kb", None),
        ("2E", 2 * 10**18),
        ("abc", None),
    ],
)
def test_sizes_are_kubernetes_quantities_and_small_bare_numbers_mebibytes(tmp_path: Path, text: str, size: int | None) -> None:
    for key in ("memory", "storage"):
        toml = f'version = "1"\n[environment]\n{key} = "{text}"'
        if size is None:
            with pytest.raises(ConfigError, match=rf"environment\.{key}: '{text}' is not a quantity"):
                load(tmp_path, toml)
        else:
            value = getattr(load(tmp_path, toml)[0].environment, key)
            assert parse_bytes(value)[0] == size


@pytest.mark.parametrize(("written", "cpus"), [('"1"', 1), ('"500m"', 0.5), ("0.5", 0.5), ("4", 4), ('"1e1"', 10)])
def test_cpus_may_be_fractions(tmp_path: Path, written: str, cpus: float) -> None:
    config, warnings = load(tmp_path, f'version = "1"\n[environment]\ncpus = {written}')
    assert config.environment.cpus is not None
    assert parse_cpus(config.environment.cpus) == cpus
    assert warnings == ()


toml_scalars = st.one_of(
    st.booleans().map(lambda flag: "true" if flag else "false"),
    st.integers(-5, 10**20).map(str),
    st.sampled_from(["0.5", "nan", "-inf", "2024-01-01", '""', '"2G"', '"${"', "[]", "[1]", "{}", '{a = "b"}', '"\\u0000"']),
)
toml_keys = st.sampled_from(
    [
        "version",
        "schema_version",
        "source",
        "metadata",
        "agent",
        "verifier",
        "environment",
        "task",
        "steps",
        "artifacts",
        "timeout_sec",
        "env",
        "user",
        "cpus",
        "memory",
        "storage",
        "memory_mb",
        "docker_image",
        "allow_internet",
        "os",
        "solution",
        "rllm",
        "env.A",
        "agent.env",
        "verifier.env",
        "environment.env.B",
        "x",
    ]
)
toml_lines = st.one_of(
    st.tuples(toml_keys, toml_scalars).map(" = ".join),
    st.sampled_from(["[agent]", "[verifier]", "[environment]", "[verifier.env]", "[metadata]", "[[steps]]", "[x]", "[", "a ="]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.lists(toml_lines, max_size=8))
def test_any_task_toml_is_a_config_or_a_refusal(tmp_path: Path, lines: list[str]) -> None:
    try:
        config, warnings = load(tmp_path, "\n".join(lines))
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 500 + len(str(tmp_path))
    else:
        shown: Any = config.unsupported()
        assert isinstance(shown, list)
        assert all("\n" not in warning for warning in warnings)


@pytest.mark.parametrize(("text", "size"), [("4 GiB", 4 * 2**30), ("4GB", 4 * 10**9), ("512 MiB", 512 * 2**20), ("1KiB", 1024)])
def test_sizes_may_say_byte(text: str, size: int) -> None:
    assert parse_bytes(text) == (size, None)
