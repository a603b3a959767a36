"""The corpus of bad input: each case damages a good job beside a good task, and says what the message has to name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.jobs import write_task

JOB = "environment: {type: local}\nagents:\n- name: oracle\ndatasets:\n- path: tasks\n"
"""Five lines: what is appended starts on line 6."""


@dataclass(frozen=True)
class Link:
    """A symbolic link, as the content of a file."""

    target: str


Content = str | bytes | Link | Callable[[Path], object] | None
"""A file's text or bytes, a link, something that makes it, or None: it is removed."""


@dataclass(frozen=True)
class Case:
    """One bad input."""

    files: Mapping[str, Content] = field(default_factory=dict)
    """Path below the folder to content; the folder holds `job.yaml` and `tasks/one` already."""
    says: tuple[str, ...] = ()
    """What the message has to hold: what is wrong, and where."""
    args: tuple[str, ...] = ("job.yaml",)
    environ: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, folder: Path) -> None:
        """Make the good job and damage it."""
        write_task(folder / "tasks" / "one")
        (folder / "job.yaml").write_text(JOB)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None or isinstance(content, Link):
                path.unlink(missing_ok=True)
            if isinstance(content, Link):
                path.symlink_to(content.target)
            elif callable(content):
                content(path)
            elif content is not None:
                path.write_bytes(content.encode() if isinstance(content, str) else content)


def job(addition: str, *says: str) -> Case:
    """The good job with lines added."""
    return Case({"job.yaml": JOB + addition}, says)


def whole_job(content: str | bytes, *says: str) -> Case:
    return Case({"job.yaml": content}, says)


def agents(text: str, *says: str) -> Case:
    return Case({"job.yaml": f"environment: {{type: local}}\nagents: {text}\ndatasets:\n- path: tasks\n"}, says)


def datasets(text: str, *says: str) -> Case:
    return Case({"job.yaml": f"environment: {{type: local}}\nagents: [{{name: oracle}}]\ndatasets: {text}\n"}, says)


def task(toml: str | bytes, *says: str) -> Case:
    """The good task with another task.toml."""
    return Case({"tasks/one/task.toml": toml}, ("one/task.toml", *says))


def in_task(name: str, content: Content, *says: str) -> Case:
    return Case({f"tasks/one/{name}": content}, says)


def registry(content: Any, *says: str, name: str = "d", version: str | None = None) -> Case:
    """A registry beside the job, which takes a dataset from it. Text and bytes are the file, anything else is made JSON."""
    document = content if isinstance(content, str | bytes) else json.dumps(content)
    version_text = f", version: '{version}'" if version is not None else ""
    job_text = datasets(f"[{{registry: {{path: r.json}}, name: {name}{version_text}}}]").files["job.yaml"]
    return Case({"job.yaml": job_text, "r.json": document}, says)


def flags(*arguments: str, says: tuple[str, ...]) -> Case:
    return Case({}, says, ("run", "job.yaml", *arguments))


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20_000_000)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
ENTRY = {"name": "d", "version": "1", "tasks": [{"name": "one", "path": "tasks/one"}]}

JUDGE = "{type: llm_judge, options: {model: claude-x, criteria: [good]}}"

CASES: dict[str, Case] = {
    # The job file as a file.
    "job missing": Case({}, ("none.yaml: no such file",), ("none.yaml",)),
    "job is a folder": Case({}, ("tasks: is a folder",), ("run", "tasks")),
    "job is a broken link": Case({"job.yaml": Link("nowhere.yaml")}, ("job.yaml: no such file", "link to nothing")),
    "job is a pipe": Case({"pipe.yaml": os.mkfifo}, ("pipe.yaml: is not a regular file",), ("pipe.yaml",)),
    "job of 300 characters": Case({}, ("name too long",), ("run", "a" * 300 + ".yaml")),
    "job of another suffix": Case({"job.txt": JOB}, ("job.txt: cannot tell its format",), ("run", "job.txt")),
    "job empty": whole_job("", "job.yaml: is empty"),
    "job of comments": whole_job("# later\n", "job.yaml: is empty"),
    "job binary": whole_job(b"\x7fELF\0\0\0", "job.yaml:1: holds NUL bytes"),
    "job utf-16": whole_job(JOB.encode("utf-16"), "job.yaml: is UTF-16"),
    "job latin-1": whole_job(JOB.encode() + b"name: caf\xe9\n", "job.yaml:6: is not UTF-8"),
    "job huge": Case({"job.yaml": _sparse}, ("job.yaml: 20.0 MB are too much",)),
    "job of tabs": whole_job("agents:\n\t- name: x\n", "job.yaml:2: a tab"),
    "job of two documents": job("---\nname: x\n", "job.yaml:6: a second document"),
    "job bomb": whole_job(BOMB, "job.yaml:6: its aliases expand"),
    "job of deep lists": whole_job("[" * 50_000, "job.yaml:1: nested too deeply"),
    "job of deep json": Case({"j.json": '{"a":' * 50_000}, ("j.json: nested too deeply",), ("j.json",)),
    "job with a python tag": job("name: !!python/object/apply:os.getcwd []\n", "job.yaml:6: the tag"),
    "job with an open quote": job('name: "x\n', "job.yaml:7: is not YAML"),
    "job with a duplicate key": job("name: a\nname: b\n", "job.yaml:7: the key 'name' is given twice (first on line 6)"),
    "job as json with a comma": Case({"j.json": '{"agents": [],}'}, ("j.json:1: is not JSON",), ("j.json",)),
    "job as json with a duplicate key": Case(
        {"j.json": '{"a": 1,\n"a": 2}'}, ("j.json:2: the key 'a' is given twice",), ("j.json",)
    ),
    "job as json with NaN": Case({"j.json": '{"n_attempts": NaN}'}, ("j.json: NaN",), ("j.json",)),
    "job as broken toml": Case({"j.toml": "name = \n"}, ("j.toml:1: is not TOML",), ("j.toml",)),
    # The job file as a job.
    "list": whole_job("- a\n", "job.yaml: is a list; a job is a mapping"),
    "text": whole_job("run everything\n", "job.yaml: is a single value"),
    "unknown key": job("n_atempts: 2\n", "job.yaml:6: n_atempts: unknown key; did you mean `n_attempts`?"),
    "two unknown keys": job("n_atempts: 2\nverifyer: {}\n", "line 7: verifyer: unknown key"),
    "harbor's orchestrator": job("orchestrator: {n_concurrent_trials: 2}\n", "job.yaml:6: orchestrator", "`n_concurrent_trials`"),
    "number as a key": job("1: x\n", "job.yaml:6: the key '1' is a number"),
    "wrong type": job("n_attempts: many\n", "job.yaml:6: n_attempts: expected a whole number, got 'many'"),
    "zero attempts": job("n_attempts: 0\n", "job.yaml:6: n_attempts: expected a whole number of at least 1"),
    "negative timeout": job("verifier: {max_timeout_sec: -5}\n", "job.yaml:6: verifier.max_timeout_sec"),
    "zero multiplier": job("timeout_multiplier: 0\n", "job.yaml:6: timeout_multiplier: expected a number above 0"),
    "infinite multiplier": job("timeout_multiplier: .inf\n", "job.yaml:6: timeout_multiplier: not a finite number"),
    "log level": job("log_level: loud\n", "job.yaml:6: log_level: expected one of debug"),
    "name as a number": job("name: 2024\n", "job.yaml:6: name: expected text, got 2024; quote it"),
    "name of 301 characters": job(f"name: {'n' * 301}\n", "job.yaml:6: name: 301 characters are too many"),
    "name with NUL": job('name: "a\\0b"\n', "job.yaml:6: name: a NUL character"),
    "memory": job("environment: {override_memory: lots}\n", "job.yaml:6: the key 'environment' is given twice"),
    "quantity": whole_job(
        JOB.replace("type: local", "type: local, override_memory: lots"), "override_memory: 'lots' is not a quantity"
    ),
    "no agents": agents("[]", "job.yaml:2: agents: the list is empty"),
    "agents missing": whole_job(
        "datasets: [{path: tasks}]\n", "job.yaml: `agents` is missing, and no dataset.toml names a default_agent"
    ),
    "no datasets": datasets("[]", "job.yaml:3: datasets: the list is empty"),
    "two agents of one name": agents(
        "[{name: oracle}, {name: oracle, type: nop}]", "job.yaml:2: agents[1].name: 'oracle' is the name of agents[0]"
    ),
    "agent without execute": agents("[{name: a, install: 'true'}]", "agents[0]: `install` without `execute`"),
    "agent's env as boolean": agents(
        "[{name: a, execute: x, env: {A: yes}}]", "job.yaml:2: agents[0].env.A: expected text, got a boolean"
    ),
    "agent's env with a broken reference": agents(
        "[{name: a, execute: x, env: {A: '${B'}}]", "agents[0].env.A: `${` at character 1"
    ),
    "unset variables": agents(
        "[{name: a, execute: x, env: {A: '${UNSET_ONE}', B: '${UNSET_TWO}'}}]",
        "UNSET_ONE (agents[0].env)",
        "UNSET_TWO (agents[0].env)",
    ),
    "glob that is no list": datasets("[{path: tasks, task_names: one}]", "datasets[0].task_names: expected a list"),
    "globs that match nothing": datasets("[{path: tasks, task_names: ['nothing-*']}]", "job.yaml: no task is left to run"),
    "path and registry": datasets(
        "[{path: tasks, registry: {path: r.json}, name: d}]", "datasets[0]: give exactly one of `path` and `registry`"
    ),
    # Plugins.
    "unknown agent": agents("[{name: orakle}]", "'orakle'", "oracle"),
    "unknown environment": whole_job(JOB.replace("local", "locale"), "'locale'", "local"),
    "environment to be installed": whole_job(JOB.replace("local", "kubernetes"), "'kubernetes'"),
    "unknown metric": job("metrics: [{type: median}]\n", "'median'", "mean"),
    "unknown verifier": job("verifier: {type: judge}\n", "'judge'"),
    "no rewards": job("verifier: {rewards: []}\n", "job.yaml:6: verifier.rewards: the list is empty"),
    "rewards and rubric": job("verifier: {rewards: [f1], rubric: {funcs: [f1]}}\n", "job.yaml:6: verifier: give only one of"),
    "unknown reward": job("verifier: {rewards: [f2]}\n", "no reward 'f2' is installed"),
    "weights that are not as many": job("verifier: {rubric: {funcs: [f1], weights: [1, 2]}}\n", "1 `funcs` and 2 `weights`"),
    "weights of nothing": job("verifier: {rubric: {funcs: [f1], weights: [0]}}\n", "a weight above 0"),
    "reward that compares with nothing": job("verifier: {rewards: [f1]}\n", "one/task.toml: nothing says what is expected"),
    "judge without a key": Case(
        {"job.yaml": JOB + "verifier: {rewards: [{type: llm_judge, options: {model: m, criteria: [good]}}]}\n"},
        ("one: the judge has no key", "OPENAI_API_KEY"),
    ),
    "judge whose key is empty": Case(
        {"job.yaml": f"{JOB}verifier: {{rewards: [{JUDGE}], env: {{ANTHROPIC_API_KEY: '${{A_KEY}}'}}}}\n"},
        ("one: the judge has no key", "ANTHROPIC_API_KEY"),
        environ={"A_KEY": ""},
    ),
    "verifier module that no task has": job(
        "verifier: {type: python, options: {module: check.py}}\n", "check.py is not in", "one"
    ),
    "verifier of no module": job(
        "verifier: {type: python, options: {import_path: 'no.such:f'}}\n", "one: there is no Python module `no`"
    ),
    "verifier function that is not there": Case(
        {"tasks/one/task.toml": "[verifier]\nmodule = 'check.py'\n", "tasks/one/check.py": "x = 1\n"},
        ("one/check.py: has no `evaluate`",),
    ),
    "verifier that is not Python": Case(
        {"tasks/one/task.toml": "[verifier]\nmodule = 'check.py'\n", "tasks/one/check.py": "\ndef evaluate(:\n"},
        ("one/check.py:2: is not Python",),
    ),
    "flow that is not there": agents(
        "[{name: flow, options: {import_path: 'flow.py:run'}}]", "job.yaml: agents[0]: ", "flow.py: No such file"
    ),
    "flow of no module": agents("[{name: flow, options: {import_path: 'no.such:run'}}]", "no Python module `no`", "import_path"),
    "flow of other parameters": Case(
        {**agents("[{name: flow, options: {import_path: 'flow.py:go'}}]").files, "flow.py": "def go(question):\n    ...\n"},
        ("flow.py:1: go(question) is no flow",),
    ),
    "oracle without a solution": in_task(
        "solution/solve.sh", None, "one/solution/solve.sh: is missing, and the agent oracle runs it"
    ),
    "unknown executor": job("executor: {type: slrum}\n", "'slrum'"),
    "unknown option": whole_job(
        JOB.replace("type: local", "type: local, options: {msk: [/srv]}"), "environment (local", "'msk'", "mask"
    ),
    "option of the wrong type": whole_job(
        JOB.replace("type: local", "type: local, options: {mask: 3}"), "environment (local", "mask"
    ),
    "option of a metric": job("metrics: [{type: mean, options: {k: 3}}]\n", "metrics[0] (mean", "'k'"),
    "option of an agent": agents("[{name: oracle, options: {speed: 3}}]", "agents[0] (oracle", "'speed'"),
    "unknown registry plugin": datasets("[{registry: {type: ftp}, name: d}]", "'ftp'"),
    # Datasets and tasks.
    "dataset missing": datasets("[{path: taks}]", "taks"),
    "dataset in the home of nobody": datasets("[{path: ~nobody-there/tasks}]", "~nobody-there/tasks"),
    "dataset is a file": datasets("[{path: job.yaml}]", "job.yaml"),
    "dataset is empty": Case({"empty": _folder, "job.yaml": JOB.replace("tasks", "empty")}, ("empty",)),
    "task.toml missing": in_task("task.toml", None, "tasks"),
    "instruction missing": in_task("instruction.md", None, "one/instruction.md: missing"),
    "instruction empty": in_task("instruction.md", " \n", "one/instruction.md: is empty"),
    "instruction binary": in_task("instruction.md", b"a\xff", "one/instruction.md: line 1 is not UTF-8"),
    "instruction huge": in_task("instruction.md", _sparse, "one/instruction.md: is larger"),
    "test script missing": in_task("tests/test.sh", None, "one/tests/test.sh: missing"),
    "link out of the task": in_task("environment/passwd", Link("/etc/passwd"), "one/environment/passwd"),
    "link above the task": in_task("tests/secret", Link("../../../job.yaml"), "one/tests/secret"),
    "pipe in the task": in_task("environment/pipe", os.mkfifo, "one/environment/pipe"),
    "toml syntax": task("version = \n", "task.toml:1: is not TOML"),
    "toml duplicate": task("[agent]\n[agent]\n", "task.toml:2: is not TOML"),
    "toml binary": task(b"\0\1", "holds NUL bytes"),
    "toml utf-16": task("a = 1".encode("utf-16"), "is UTF-16"),
    "toml deep": task(f"a = {'[' * 50_000}", "nested too deeply"),
    "toml huge": Case({"tasks/one/task.toml": _sparse}, ("one/task.toml: 20.0 MB are too much",)),
    "toml type": task("[agent]\ntimeout_sec = 'long'\n", "agent.timeout_sec: expected a number, got 'long'"),
    "toml zero timeout": task("[verifier]\ntimeout_sec = 0\n", "verifier.timeout_sec: expected a number above 0"),
    "toml infinite timeout": task("[verifier]\ntimeout_sec = inf\n", "verifier.timeout_sec: not a finite number"),
    "toml quantity": task("[environment]\nmemory = '2 gigs'\n", "environment.memory: '2 gigs' is not a quantity"),
    "toml env": task("[verifier.env]\nA = true\n", "verifier.env.A: expected text, got a boolean"),
    "toml unset variable": Case({"tasks/one/task.toml": "[verifier.env]\nA = '${UNSET_ONE}'\n"}, ("UNSET_ONE (task one)",)),
    "toml network": Case({"tasks/one/task.toml": "[environment]\nnetwork_mode = 'wifi'\n"}, ("one", "network_mode 'wifi'")),
    "toml of windows": task("[environment]\nos = 'windows'\n", "windows"),
    "toml of steps": Case({"tasks/one/task.toml": "[[steps]]\nname = 'a'\n"}, ("one/steps/a", "instruction.md")),
    # Registries.
    "registry missing": datasets("[{registry: {path: r.json}, name: d}]", "r.json"),
    "registry empty": registry("", "r.json: is empty"),
    "registry syntax": registry("[", "r.json:1: is not JSON"),
    "registry NaN": registry("[NaN]", "r.json: NaN"),
    "registry duplicate key": registry('[{"name": "d",\n"name": "e", "tasks": []}]', "r.json:2: the key 'name' is given twice"),
    "registry is a mapping": registry({"d": []}, "r.json: a registry is a list of datasets"),
    "registry of text": registry(["d"], "r.json", "[0]"),
    "registry without tasks": registry([{"name": "d"}], "r.json", "tasks"),
    "registry with text for tasks": registry([{"name": "d", "tasks": "one"}], "r.json", "tasks"),
    "registry with a number for a path": registry([{"name": "d", "tasks": [{"path": 3}]}], "r.json", "path"),
    "registry of other datasets": registry([{**ENTRY, "name": "dd"}], "dataset 'd' not found in", "dd"),
    "registry of other versions": registry([ENTRY], "version '2' not found", version="2"),
    "registry path upwards": registry([{"name": "d", "tasks": [{"name": "x", "path": "../../etc"}]}], "../../etc"),
    "registry path absolute": registry([{"name": "d", "tasks": [{"name": "x", "path": "/etc"}]}], "/etc"),
    "registry path missing": registry([{"name": "d", "tasks": [{"name": "x", "path": "tasks/two"}]}], "tasks/two"),
    "registry git of an option": registry(
        [{"name": "d", "tasks": [{"name": "x", "path": "a", "git_url": "--upload-pack=touch pwned"}]}], "--upload-pack"
    ),
    "registry git of a command": registry(
        [{"name": "d", "tasks": [{"name": "x", "path": "a", "git_url": "ext::sh -c id"}]}], "ext::"
    ),
    "registry names with NUL": registry(
        '[{"name": "d", "tasks": [{"name": "a\\u0000b", "path": "tasks/one"}]}]', "r.json", "NUL"
    ),
    "registry name of 400 characters": registry(
        [{"name": "d", "tasks": [{"name": "n" * 400, "path": "tasks/one"}]}], "400 characters"
    ),
    # The command line.
    "no such command": Case({}, ("'rn'", "did you mean `rollout run`"), ("rn", "job.yaml")),
    "no such option": flags("--atempts", "3", says=("--atempts",)),
    "no file": Case({}, ("FILE",), ("run",)),
    "two files": Case({}, ("job.yaml",), ("run", "job.yaml", "job.yaml")),
    "attempts as text": flags("-k", "many", says=("-k", "many")),
    "zero attempts by flag": flags("-k", "0", says=("-k", "0")),
    "display": flags("--display", "fancy", says=("--display", "fancy")),
    "set without a value": flags("--set", "n_attempts", says=("--set n_attempts: write KEY=VALUE",)),
    "set of an unknown key": flags("--set", "n_atempts=1", says=("--set n_atempts: unknown key; did you mean `n_attempts`?",)),
    "set beyond a list": flags("--set", "agents.4.name=x", says=("--set agents.4.name: `agents` ends at position 0",)),
    "set through text": flags("--set", "agents.0.name.x=1", says=("`agents[0].name` is a single value",)),
    "set of the wrong type": flags("--set", "n_attempts=x", says=("--set n_attempts: expected a whole number, got 'x'",)),
    "set of broken yaml": flags("--set", "metrics=[{type: sum", says=("--set metrics: the value cannot be read",)),
    "fail-under without a number": flags("--fail-under", "mean=high", says=("--fail-under 'mean=high'",)),
    "fail-under without a metric": flags("--fail-under", "0.5", says=("--fail-under '0.5'",)),
    "fail-under of another metric": flags("--fail-under", "median=0.5", says=("--fail-under", "median")),
    "fail-under of another agent": flags("--fail-under", "nop:mean=0.5", says=("--fail-under", "nop")),
    "no such agent": flags("--agent", "orakel*", says=("--agent orakel*", "oracle")),
    "no such task": flags("--task", "two", says=("no task is left to run",)),
    "env file missing": flags("--env-file", "none.env", says=("none.env",)),
    "env file broken": Case({"x.env": "no assignment\n"}, ("x.env",), ("run", "job.yaml", "--env-file", "x.env")),
    "junit is a folder": flags("--junit", "tasks", says=("--junit tasks: this is a folder",)),
    "jobs dir is a file": Case({"file": "x"}, ("file",), ("run", "job.yaml", "--jobs-dir", "file")),
    "variable of the wrong type": Case(
        {}, ("ROLLOUT_N_ATTEMPTS: n_attempts: expected a whole number, got 'x'",), environ={"ROLLOUT_N_ATTEMPTS": "x"}
    ),
    "config of nothing": Case({}, ("none.yaml: no such file",), ("config", "none.yaml")),
    "schema of nothing": Case({}, ("jobs",), ("schema", "jobs")),
    "show of nothing": Case({}, ("nowhere",), ("show", "nowhere")),
    "show of a folder that is no job": Case({}, ("tasks",), ("show", "tasks")),
    "tasks check of nothing": Case({}, ("nowhere",), ("tasks", "check", "nowhere")),
    "plugins of a kind that is none": Case({}, ("gadgets",), ("plugins", "gadgets")),
    "plugins show of nothing": Case({}, ("orakle", "oracle"), ("plugins", "show", "agents", "orakle")),
    "trial without a spec": Case({}, ("none.json",), ("trial", "run", "none.json")),
    "trial of a job file": Case({}, ("job.yaml",), ("trial", "run", "job.yaml")),
    "datasets of nothing": Case({}, ("none.yaml",), ("datasets", "list", "none.yaml")),
}

SUBPROCESS = (
    "job missing",
    "job bomb",
    "job of deep json",
    "two unknown keys",
    "unknown agent",
    "toml deep",
    "registry git of an option",
    "no such option",
    "jobs dir is a file",
)
"""Run as the installed command too: the rest goes through the same function in this process."""
