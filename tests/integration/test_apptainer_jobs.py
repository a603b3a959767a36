"""Whole jobs under `type: apptainer`: the quickstart's tasks, as root and as an ordinary user; what a killed job leaves."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout
import rollout_apptainer
from pages import blocks
from require import APPTAINER, require, unavailable
from rollout.core.errors import EnvironmentLostError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import run
from rollout_apptainer.backend import ApptainerBackend
from rollout_apptainer.options import ApptainerOptions

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples" / "quickstart" / "tasks"
USER = "rollout-apptainer"
PROGRAM = str(APPTAINER / "usr/bin/apptainer")


@pytest.fixture(autouse=True, scope="module")
def _apptainer() -> None:
    require("apptainer")


def python_of(who: str) -> list[str]:
    """The beginning of a command that runs as that user, in a Python that it may read."""
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if who == "root" or os.geteuid() != 0:
        return [sys.executable]
    if shutil.which("setpriv") is None:
        unavailable("apptainer", "there is no setpriv to become an ordinary user with")
    found = importlib.util.find_spec("msgspec")
    assert found is not None and found.origin is not None and rollout.__file__ and rollout_apptainer.__file__
    search = [Path(found.origin).parents[1], Path(rollout.__file__).parents[1], Path(rollout_apptainer.__file__).parents[1]]
    home = f"HOME={APPTAINER}/home"
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "env", home, f"USER={USER}"]
    drop += [f"PYTHONPATH={os.pathsep.join(map(str, search))}", "PYTHONDONTWRITEBYTECODE=1"]
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([*drop, python, "-c", "import rollout, msgspec, yaml"], capture_output=True, cwd="/").returncode == 0:
            return [*drop, python]
    return unavailable("apptainer", "no Python that an ordinary user may use can import Rollout")


@pytest.fixture(params=["root", "user"])
def become(request: pytest.FixtureRequest) -> list[str]:
    return python_of(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not tmp_path: pytest closes the folder above to others."""
    path = Path(tempfile.mkdtemp(prefix="rollout-apptainer-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def apptainer_options(folder: Path) -> dict[str, object]:
    bases = {"python:3.12-bookworm": str(APPTAINER / "lean.sif")}
    return {"program": PROGRAM, "bases": bases, "cache": str(folder / "cache"), "scratch": str(folder / "scratch")}


def job_file(folder: Path, name: str, **changes: object) -> Path:
    environment = {"type": "apptainer", "options": apptainer_options(folder)}
    job = {"name": name, "n_concurrent_trials": 2, "environment": environment, **changes}
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def rollout_job(become: list[str], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*become, "-m", "rollout", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def instances() -> str:
    return subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout


@pytest.mark.timeout(700)
def test_the_quickstart_is_solved_by_the_oracle_and_by_nobody_else(folder: Path) -> None:
    """As an ordinary user, who builds the images, and as root, who finds them."""
    shutil.copytree(TASKS, folder / "tasks")
    agents = [{"name": "oracle"}, {"name": "nop"}]
    tasks = len(list(TASKS.glob("*/task.toml")))
    built: dict[str, int] = {}
    for who in ("user", "root") if os.geteuid() == 0 else ("user",):
        options = {"environment": {"type": "apptainer", "delete": False, "options": apptainer_options(folder)}}
        job_file(folder, who, agents=agents, datasets=[{"path": str(folder / "tasks")}], n_concurrent_trials=4, **options)
        process = rollout_job(python_of(who), folder, "job.json")
        output, _ = process.communicate(timeout=340)
        assert process.returncode == 0, output
        lines = (folder / "jobs" / who / "trials.jsonl").read_text().splitlines()
        scores = sorted((record["agent_name"], record["reward"]) for record in map(json.loads, lines))
        assert scores == [("nop", 0.0)] * tasks + [("oracle", 1.0)] * tasks
        assert list((folder / "scratch").iterdir()) == []
        images = {path.name: path.stat().st_ino for path in (folder / "cache").glob("*.sif")}
        assert images
        assert images == (built := built or images)


def small_task(folder: Path, name: str, test: str, **environment: str) -> None:
    """A task in busybox, or with these files in its `environment` folder."""
    task = folder / "tasks" / name
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Wait.")
    image = "" if environment else f'[environment]\ndocker_image = "{APPTAINER}/small.sif"\n'
    (task / "task.toml").write_text(f'version = "1.0"\n{image}')
    (task / "tests" / "test.sh").write_text(f"#!/bin/sh\nif {test}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n")
    for file, text in environment.items():
        (task / "environment").mkdir(exist_ok=True)
        (task / "environment" / file).write_text(text)


def rewards(folder: Path, name: str) -> list[float | None]:
    lines = (folder / "jobs" / name / "trials.jsonl").read_text().splitlines()
    return list({record["trial_id"]: record["reward"] for record in map(json.loads, lines)}.values())


@pytest.mark.parametrize("who", ["root", "fakeroot", "user"])
def test_a_definition_file_is_built_by_whoever_runs_the_job(folder: Path, who: str) -> None:
    """Root has subordinate ids here: `fakeroot` needs them, and so does a root that has not every capability."""
    post = "  echo built > /etc/built\n  chown 5:5 /etc/built\n"
    files = {"image.def": f"Bootstrap: localimage\nFrom: {APPTAINER}/small.sif\n%post\n{post}"}
    small_task(folder, "defined", """[ "$(stat -c %u /etc/built)" = 5 ] && touch /etc/more && chown 7 /etc/more""", **files)
    options = {**apptainer_options(folder), "fakeroot": who == "fakeroot"}
    environment = {"environment": {"type": "apptainer", "options": options}}
    job_file(folder, who, agents=[{"name": "nop"}], datasets=[{"path": str(folder / "tasks")}], **environment)
    become = python_of("user" if who == "user" else "root")
    if os.geteuid() == 0:
        given = "".join(Path("/etc/subuid").read_text().splitlines(keepends=True))
        (folder / "ids").write_text(f"root:1000000:65536\n{given}")
        bind = f"mount --bind {folder}/ids /etc/subuid && mount --bind {folder}/ids /etc/subgid"
        become = ["unshare", "--mount", "sh", "-c", f'{bind} && exec "$@"', "sh", *become]
    output, _ = rollout_job(become, folder, "job.json").communicate(timeout=100)
    assert rewards(folder, who) == [1.0], output


def test_root_is_told_before_the_job_starts_what_fakeroot_needs(folder: Path) -> None:
    small_task(folder, "one", "true")
    options = {**apptainer_options(folder), "fakeroot": True}
    environment = {"environment": {"type": "apptainer", "options": options}}
    job_file(folder, "refused", agents=[{"name": "nop"}], datasets=[{"path": str(folder / "tasks")}], **environment)
    (folder / "none").touch()
    hide = ["unshare", "--mount", "sh", "-c", f'mount --bind {folder}/none /etc/subuid && exec "$@"', "sh"]
    process = rollout_job([*hide, *python_of("root")], folder, "job.json")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 2, output
    assert "`fakeroot: true` needs a line `root:1000000:65536` in /etc/subuid" in output


def test_two_machines_that_build_the_same_image_at_once_share_the_work(folder: Path) -> None:
    """They have a folder in common, and neither sees the other's processes."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two machines")
    counting = folder / "apptainer"
    counting.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\nexec {PROGRAM} "$@"\n')
    counting.chmod(0o755)
    dockerfile = "FROM python:3.12-bookworm\nRUN sleep 1 && echo built > /etc/built\n"
    small_task(folder, "one", "[ -e /etc/built ]", Dockerfile=dockerfile)
    processes = []
    for name in ("node1", "node2"):
        options = {**apptainer_options(folder), "program": str(counting), "scratch": str(folder / name)}
        options["bases"] = {"python:3.12-bookworm": str(APPTAINER / "small.sif")}
        environment = {"environment": {"type": "apptainer", "delete": False, "options": options}}
        path = job_file(folder, name, agents=[{"name": "nop"}], datasets=[{"path": str(folder / "tasks")}], **environment)
        path = path.rename(folder / f"{name}.json")
        apart = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        become = [*apart, "sh", "-c", f'hostname {name} && exec "$@"', "sh", sys.executable]
        processes.append(rollout_job(become, folder, path.name))
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [rewards(folder, name) for name in ("node1", "node2")] == [[1.0], [1.0]], outputs
    assert sum(line.startswith("sif new") for line in (folder / "calls").read_text().splitlines()) == 1
    assert [path.suffix for path in (folder / "cache").iterdir() if path.is_file()] == [".sif"]


def test_a_trial_whose_instance_is_killed_is_tried_again(folder: Path) -> None:
    small_task(folder, "one", "[ -e /tmp/worked ]")
    agents = [{"name": "works", "execute": "#!/bin/sh\nsleep 1\ntouch /tmp/worked\n"}]
    retry = {"max_retries": 1, "min_wait_sec": 0.1}
    job_file(folder, "again", agents=agents, datasets=[{"path": str(folder / "tasks")}], retry=retry)
    process = rollout_job([sys.executable], folder, "job.json")
    deadline = time.monotonic() + 60
    while not (found := list((folder / "scratch").glob("*/*/monitor"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(int(found[0].with_name("pid").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert rewards(folder, "again") == [1.0]
    assert "environment_" in output, output
    assert list((folder / "scratch").iterdir()) == []


def test_the_recipe_of_the_documentation_works_without_root_and_network(folder: Path) -> None:
    """Its files as they stand, as an ordinary user: built on a login node, run on nodes that have no network."""
    written = {block.title: block.text for block in reversed(blocks()) if block.page == "docs/hpc.md" and block.title}
    for title, text in written.items():
        (folder / title).write_text(text)
    other = [block.text for block in blocks() if block.page == "docs/hpc.md" and block.title == "job.yaml"][1]
    (folder / "other.yaml").write_text(other + "agents: [{name: oracle}]\ndatasets: [{path: others}]\n")
    for number, base in enumerate(["debian:trixie-slim"] * 3 + ["python:3.12-bookworm"]):
        name = f"t{number}"
        small_task(folder, name, "[ -e /app/solved ]", Dockerfile=f"FROM {base}\nWORKDIR /app\nRUN echo {number} > built\n")
        (folder / "tasks" / name / "solution").mkdir()
        (folder / "tasks" / name / "solution" / "solve.sh").write_text("#!/bin/sh\ncp /app/built /app/solved\n")
    (folder / "others").mkdir()
    (folder / "tasks" / "t3").rename(folder / "others" / "t3")
    (folder / "images").mkdir()
    for image in ("debian_trixie-slim", "our-python"):
        (folder / "images" / f"{image}.sif").symlink_to(APPTAINER / "small.sif")
    become = python_of("user")
    (folder / "rollout").write_text(f'#!/bin/sh\nexec {" ".join(become)} -m rollout "$@"\n')
    (folder / "rollout").chmod(0o755)
    path = f"PATH={folder}:{APPTAINER}/usr/bin:{os.environ['PATH']}"
    offline = ["unshare", "--net"] if os.geteuid() == 0 else []

    def run(*command: str) -> None:
        done = subprocess.run(
            ["env", path, f"TMPDIR={folder}", *command], cwd=folder, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr

    prepare = next(block.text for block in blocks() if block.page == "docs/hpc.md" and "--agent nop" in block.text)
    run("sh", "-ec", prepare)
    built = {file.name: file.stat().st_ino for file in (folder / "cache").glob("*.sif")}
    assert len(built) == 3
    for index in ("0", "1"):
        run(*offline, "env", f"SLURM_ARRAY_TASK_ID={index}", "SLURM_ARRAY_TASK_COUNT=2", "bash", "array.sh")
    assert rewards(folder, "part-0") + rewards(folder, "part-1") == [1.0] * 3
    assert {file.name: file.stat().st_ino for file in (folder / "cache").glob("*.sif")} == built
    records = (folder / "jobs" / "part-0" / "trials.jsonl").read_text()
    again = ["env", f"TMPDIR={folder}/elsewhere", "SLURM_ARRAY_TASK_ID=0", "SLURM_ARRAY_TASK_COUNT=2", "bash", "array.sh"]
    run(*again)  # on a node where the scratch folder is another one
    assert (folder / "jobs" / "part-0" / "trials.jsonl").read_text() == records
    assert '"sif:' in (folder / "jobs" / "part-0" / "lock.json").read_text()
    run(*offline, "rollout", "other.yaml", "--name", "other")
    assert rewards(folder, "other") == [1.0]


@pytest.mark.parametrize("servers_too", [False, True], ids=["rollout", "everything"])
def test_a_killed_job_leaves_nothing_after_clean(become: list[str], folder: Path, servers_too: bool) -> None:
    small_task(folder, "slow", "true")
    mark = f"killed-{os.urandom(4).hex()}"
    agents = [{"name": "waits", "execute": "#!/bin/sh\nsleep 600\n"}]
    job_file(folder, mark, n_attempts=2, agents=agents, datasets=[{"path": str(folder / "tasks")}])
    process = rollout_job(become, folder, "job.json")
    try:
        deadline = time.monotonic() + 120
        while instances().count(f"[rollout-{mark}") < 2 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        time.sleep(0.5)
        if servers_too:
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            for pid in children:
                os.kill(int(pid), signal.SIGKILL)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    cleaning = rollout_job(become, folder, "clean", str(folder / "jobs" / mark))
    output, _ = cleaning.communicate(timeout=100)
    assert cleaning.returncode == 0, output
    assert f"[rollout-{mark}" not in instances()
    assert list((folder / "scratch").iterdir()) == []


@pytest.mark.parametrize("victim", ["first process", "monitor"])
async def test_an_instance_that_is_killed_is_lost_and_leaves_nothing(tmp_path: Path, victim: str) -> None:
    options = ApptainerOptions(program=PROGRAM, image=str(APPTAINER / "small.sif"), scratch=str(tmp_path / "scratch"))
    context = BackendContext(job_id=f"lost-{victim[0]}", work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=2)
    backend = ApptainerBackend(options, context)
    spec = EnvironmentSpec(task_name="task", directory=None, digest="d")
    environment = await backend.start(spec, await backend.prepare(spec))
    (pid_file,) = (tmp_path / "scratch").glob("*/*/pid")
    pid = int(pid_file.read_text())
    if victim == "monitor":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    running = asyncio.ensure_future(run(environment, "sleep 600"))
    assert (await run(environment, "echo alive")).stdout == b"alive\n"
    os.kill(pid, signal.SIGKILL)
    if victim == "first process":
        with pytest.raises(EnvironmentLostError):
            await running
        with pytest.raises(EnvironmentLostError):
            await run(environment, "true")
    await environment.stop()
    await asyncio.gather(running, return_exceptions=True)
    assert list((tmp_path / "scratch" / f"rollout-{os.geteuid()}-lost-{victim[0]}").iterdir()) == []
    assert await backend.reap(f"lost-{victim[0]}") == []
    await backend.aclose()


async def test_instances_on_other_machines_are_named(tmp_path: Path) -> None:
    said: list[str] = []
    context = BackendContext(
        job_id="here", work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=2, warn=said.append
    )
    (tmp_path / "work" / "instances").mkdir(parents=True)
    (tmp_path / "work" / "instances" / "one.json").write_text(json.dumps({"host": "node17", "folder": "/tmp/x"}))
    backend = ApptainerBackend(ApptainerOptions(program=PROGRAM, scratch=str(tmp_path / "scratch")), context)
    assert await backend.reap("here") == []
    assert said == ["1 instances of this job may still run on node17: run `rollout clean` there too"]
    await backend.aclose()
