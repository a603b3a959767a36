"""Every fenced block of the documentation is decoded or checked, every link leads somewhere, every table is current."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec
import pytest
import tomli
import yaml

from pages import ROOT, Block, anchors, blocks, links, pages
from rollout.cli.main import rollout
from rollout.core.atif import decode_atif
from rollout.core.config.load import load_dataset_file, load_job, load_task_config
from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.errors import UsageError
from rollout.core.plugins import decode_options, find, named
from rollout.core.records import ErrorInfo
from rollout.core.sandbox.recipe import parse
from rollout.core.tasks.registry import Origin, registry_of
from rollout.core.trial.rewards import parse_reward_json
from rollout.core.trial.verify_function import evaluate
from rollout_agents import ManifestAgent

UNCHECKED = {"text", "markdown"}
"""Output of programs, pictures and prose."""

_EXAMPLE = tomli.loads((ROOT / "tests/example_plugin/pyproject.toml").read_text())["project"]["entry-points"]
"""What the pages name besides the built-in plugins: those of the example that they show."""

_JOB_REST: dict[str, Any] = {"agents": [{"name": "oracle"}], "datasets": [{"path": "."}]}


def of(*languages: str) -> Any:
    chosen = [block for block in blocks() if block.language in languages]
    assert chosen, f"no block of {languages}: this test would prove nothing"
    return pytest.mark.parametrize("block", chosen, ids=str)


def test_every_block_is_of_a_language_that_is_checked() -> None:
    known = UNCHECKED | {"sh", "bash", "yaml", "json", "toml", "python", "dockerfile"}
    assert [f"{block}: {block.language!r}" for block in blocks() if block.language not in known] == []


@of("yaml")
def test_yaml_is_a_job_file_or_a_part_of_one(block: Block, tmp_path: Path) -> None:
    document = yaml.safe_load(block.text)
    assert isinstance(document, dict), block
    path = tmp_path / "job.yaml"
    # A part is completed, so that what the page shows is decoded in its place.
    missing = {key: value for key, value in _JOB_REST.items() if key not in document}
    path.write_text(block.text + yaml.safe_dump(missing) if missing else block.text)
    job = load_job(path, environ={})
    assert job.warnings == ()
    config = job.config
    decode_options(find("environments", config.environment.type), config.environment.options, "environment")
    for metric in config.metrics:
        if metric.type not in _EXAMPLE["rollout.metrics"]:
            decode_options(find("metrics", metric.type), metric.options, "metrics")
    if (chosen := config.verifier.chosen()) is not None:
        verifier = find("verifiers", chosen[0])
        verifier.cls(decode_options(verifier, chosen[1], "verifier"))
    for agent in config.agents:
        if not agent.inline and agent.plugin not in _EXAMPLE["rollout.agents"]:
            options = agent.plugin_options
            if agent.manifest is not None:
                [file] = [other for other in blocks() if (other.page, f"./{other.title}") == (block.page, agent.manifest)]
                options = {**options, "manifest": tomli.loads(file.text)}
            name, options = named("agents", agent.plugin, options)
            plugin = find("agents", name)
            decoded = decode_options(plugin, options, "agents")
            if isinstance(plugin.cls, type) and issubclass(plugin.cls, ManifestAgent):
                assert plugin.cls.of(decoded).execute


@of("json")
def test_json_is_what_its_title_says(block: Block) -> None:
    document = json.loads(block.text)
    if block.title == "registry.json":
        assert registry_of(document, Origin("registry.json")).datasets
    elif block.title == "reward.json":
        assert parse_reward_json(block.text.encode())
    elif block.title == "trajectory.json":
        assert decode_atif(block.text.encode()).usage()
    else:
        msgspec.convert(document, ErrorInfo)


@of("toml")
def test_toml_is_a_task_or_parses(block: Block, tmp_path: Path) -> None:
    tomli.loads(block.text)
    path = tmp_path / "page.toml"
    path.write_text(block.text)
    if block.title == "task.toml":
        assert load_task_config(path)[1] == ()
    elif block.title == "dataset.toml":
        assert load_dataset_file(path)[1] == ()


@of("dockerfile")
def test_dockerfiles_can_be_carried_out_by_the_local_environment(block: Block) -> None:
    assert parse(block.text, Path("Dockerfile")).steps


@of("python")
def test_python_compiles_and_its_imports_exist(block: Block) -> None:
    compile(block.text, str(block), "exec")
    for statement in re.findall(r"^(?:from rollout(?:\.[\w.]+)? import .+|import rollout.*)$", block.text, re.MULTILINE):
        exec(statement, {})


def test_the_data_set_of_the_page_runs(tmp_path: Path) -> None:
    """Its blocks are files: together they are a data set, a flow and a job, which gives full reward."""
    inside = ("dataset.toml", "data/test.jsonl", "instruction.md.tpl", "tests/evaluate.py")
    for block in blocks():
        if block.page == "docs/datasets.md" and block.title:
            path = tmp_path / ("sums" if block.title in inside else "") / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    environ = {**os.environ, "ROLLOUT_CACHE_DIR": str(tmp_path / "cache")}
    run = [sys.executable, "-m", "rollout", "job.yaml", "--fail-under", "mean=1.0"]
    done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1.000 (n=2)" in done.stdout
    script = next(block.text for block in blocks() if block.page == "docs/datasets.md" and "BenchmarkLoader" in block.text)
    said = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert said.stdout.split() == ["True", "1.0", "1.0", "{1:", "1.0,", "2:", "1.0}", "0"], said.stderr


def test_python_verifiers_of_the_pages_give_verdicts(tmp_path: Path) -> None:
    shown = [block for block in blocks() if block.title == "tests/evaluate.py" and "sandbox" not in block.text]
    assert shown
    for number, block in enumerate(shown):
        file = tmp_path / f"{number}.py"
        file.write_text(block.text)
        for answer, reward in (("42", 1.0), ("41", 0.0)):
            task = Task(id="t", instruction="Q", metadata={"ground_truth": "42"}).to_dict()
            episode = Episode(trajectories=[Trajectory(output=answer)]).to_dict()
            verdict = evaluate(file=str(file), module=None, function="evaluate", task=task, episode=episode, sandbox=False)
            assert verdict.reward == reward, block


@of("bash")
def test_bash_has_no_syntax_error(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@of("sh")
def test_shell_lines_name_commands_and_options_that_exist(block: Block) -> None:
    for line in block.text.splitlines():
        for part in re.split(r" && ", line):
            words = shlex.split(part, comments=True)
            if words:
                check_command(words, ROOT / Path(block.page).parent)


def check_command(words: list[str], folder: Path) -> None:
    program, *arguments = words
    match Path(program).name:
        case "rollout":
            check_rollout(arguments)
        case "make":
            targets = [word for word in arguments if "=" not in word]
            assert targets
            for target in targets:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make {target}"
        case "pip":
            assert arguments[0] == "install"
            for word in arguments[1:]:
                assert word == "./rollout-example" or (ROOT / word / "pyproject.toml").is_file(), word
        case "python3":
            assert arguments[:2] == ["-m", "venv"]
        case _:
            pytest.fail(f"{program}: a command that no rule of this test knows")


def check_rollout(arguments: list[str]) -> None:
    """Parse the arguments as the command line would. Raises click.UsageError or our own for what it does not know."""
    with pytest.MonkeyPatch.context() as patch:
        # Groups go on to their sub-commands; a command itself does nothing.
        patch.setattr(click.Command, "invoke", lambda self, context: None)
        rollout.main(arguments, prog_name="rollout", standalone_mode=False)


@pytest.mark.parametrize("line", ["run job.yaml --no-such-option", "shwo jobs/x", "run", "tasks chek x", "plugins --chek"])
def test_a_wrong_command_in_a_page_would_be_found(line: str) -> None:
    with pytest.raises((click.UsageError, UsageError)):
        check_rollout(line.split())


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = [target.partition("#")[0] for target in links(page) if "://" not in target]
        waiting += [(page.parent / target).resolve() for target in targets if target.endswith(".md")]
    assert sorted(set((ROOT / "docs").glob("*.md")) - seen) == []


def generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == generator().render(text), "not current: run `make docs`"


def test_documentation_that_the_code_mentions_exists() -> None:
    mentioned = set()
    for source in (ROOT / "core/src").rglob("*.py"):
        mentioned |= set(re.findall(r"docs/[\w/-]+\.md", source.read_text("utf-8")))
    assert [name for name in sorted(mentioned) if not (ROOT / name).is_file()] == []


def test_files_of_the_architecture_page_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    picture = page[page.index("core/src/rollout/\n") : page.index("tests/ docs/")]
    names = set(re.findall(r"(\w+\.py|\w+/)(?=\s|$)", picture))
    assert len(names) > 20
    there = {path.name + "/" * path.is_dir() for path in (ROOT / "core/src/rollout").rglob("*")} | {"rollout/"}
    assert sorted(names - there) == []


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    """Those that are set inside of sandboxes or by the shell's completion are others."""
    read = set()
    for source in (ROOT / "core/src/rollout").rglob("*.py"):
        if "testing" not in source.parts:
            read |= set(re.findall(r'"(ROLLOUT_[A-Z_]+)"', source.read_text("utf-8")))
    described = (ROOT / "docs/cli.md").read_text("utf-8")
    others = {"ROLLOUT_TASK_INSTRUCTION", "ROLLOUT_TASK_INSTRUCTION_FILE", "ROLLOUT_MCP_CONFIG", "ROLLOUT_SKILLS_DIR"}
    assert "ROLLOUT_CACHE_DIR" in read
    assert sorted(name for name in read - others if f"`{name}`" not in described) == []


@pytest.mark.needs("local")
def test_quickstart_page_can_be_followed(tmp_path: Path) -> None:
    page = [block for block in blocks() if block.page == "docs/quickstart.md"]
    commands = {line for block in page if block.language == "sh" for line in block.text.splitlines()}
    env = {**os.environ, "ROLLOUT_CACHE_DIR": str(tmp_path / "cache")}

    def follow(line: str) -> str:
        assert line in commands
        argv = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    follow("rollout tasks init hello")
    assert "0 errors, 0 warnings" in follow("rollout tasks check hello")
    for block in page:
        if block.title.startswith("hello/"):
            assert (tmp_path / block.title).read_text() == block.text
        elif block.title:
            (tmp_path / block.title).write_text(block.text)
    follow("rollout job.yaml")
    result = json.loads((tmp_path / "jobs/mine/result.json").read_text())
    assert (result["completed_trials"], result["mean_reward"]) == (2, 1.0)
    assert (tmp_path / "jobs/mine/reader/hello/hello__1/logs/agent/what-i-wrote.txt").read_text() == "Hello, world!\n"
    follow("rollout show jobs/mine")


def test_generator_says_which_pages_are_not_current(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
