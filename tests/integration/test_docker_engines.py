"""Engines that are reached in other ways: TLS, ssh, contexts; and several at once, of which one is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines import IMAGE, Dockerd, Sshd, certificates, engine, free_port
from integration.jobs import command, environ, rollout, trial_results, write_job, write_task
from require import unavailable
from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError, TeardownError
from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec
from rollout.testing.environment import ok
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions, HostOptions, TlsOptions

pytestmark = pytest.mark.needs("docker-engines")

NewBackend = Callable[..., DockerBackend]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "certs")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def first(certs: Path, port: int) -> Iterator[Dockerd]:
    """Listens with TLS too."""
    tls = [f"--tlscacert={certs}/ca.pem", f"--tlscert={certs}/server.pem", f"--tlskey={certs}/server-key.pem"]
    with engine("-H", f"tcp://127.0.0.1:{port}", "--tlsverify", *tls) as started:
        yield started


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("ssh") / "d")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ssh(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sshd:
    """An `ssh` whose configuration knows the server as `engines`."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {sshd.config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return sshd


@pytest_asyncio.fixture
async def new_backend(tmp_path: Path) -> AsyncIterator[NewBackend]:
    made: list[DockerBackend] = []

    def make(options: DockerOptions, warnings: list[str] | None = None, concurrency: int = 4) -> DockerBackend:
        context = BackendContext(
            job_id=f"engines-{os.urandom(4).hex()}",
            work_dir=tmp_path / "work",
            cache_dir=tmp_path / "cache",
            base_dir=tmp_path,
            concurrency=concurrency,
            warn=(warnings if warnings is not None else []).append,
        )
        made.append(DockerBackend(options, context))
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()


def spec(**changes: object) -> EnvironmentSpec:
    fields: dict[str, object] = {"task_name": "t", "directory": None, "digest": os.urandom(8).hex(), "docker_image": IMAGE}
    return EnvironmentSpec(**{**fields, **changes})  # type: ignore[arg-type]


async def use(backend: DockerBackend) -> None:
    """Everything that goes over the wire in another way: calls, streams, half-closed streams, archives."""
    wanted = spec()
    backend.check(wanted)
    environment = await backend.start(wanted, await backend.prepare(wanted))
    try:
        assert await ok(environment, "echo out; echo err >&2") == "out\n"
        data = os.urandom(300_000)
        result = await environment.exec(Command(argv=("cat",), stdin=data))
        assert result.stdout == data
        process = await environment.open(Command(argv=("sh", "-c", "while read line; do echo got $line; done; echo end")))
        await process.write(b"one\n")
        await process.close_stdin()
        assert b"".join([chunk async for chunk in process.output()]) == b"got one\nend\n"
        assert await process.wait() == 0
        source = backend._context.base_dir / "up"
        source.write_bytes(data)
        await environment.upload(source, "/tmp/file")
        await environment.download("/tmp/file", source.with_name("down"))
        assert source.with_name("down").read_bytes() == data
    finally:
        await environment.stop()


async def test_an_engine_behind_tls_by_files_beside_the_job_file(
    first: Dockerd, certs: Path, port: int, new_backend: NewBackend, tmp_path: Path
) -> None:
    (tmp_path / "tls").symlink_to(certs)
    tls = TlsOptions(ca_file="tls/ca.pem", cert_file="tls/cert.pem", key_file="tls/key.pem")
    await use(new_backend(DockerOptions(host=f"tcp://127.0.0.1:{port}", tls=tls, pull="never")))


async def test_an_engine_behind_tls_by_the_docker_commands_variables(
    first: Dockerd, certs: Path, port: int, new_backend: NewBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certs))
    await use(new_backend(DockerOptions(pull="never")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ca": "ca.pem"}, "certificate required|bad certificate"),
        ({"ca": "cert.pem", "cert": "cert.pem", "key": "key.pem"}, "certificate verify failed"),
        ({"ca": "gone.pem"}, "the TLS file .*gone.pem is not there"),
        ({"ca": "ext"}, "cannot be used"),
    ],
)
def test_what_is_wrong_with_tls_is_said(
    first: Dockerd, certs: Path, port: int, new_backend: NewBackend, given: dict[str, str], said: str
) -> None:
    tls = TlsOptions(**{f"{key}_file": str(certs / name) for key, name in given.items()})
    with pytest.raises(SandboxError, match=said) as caught:
        new_backend(DockerOptions(host=f"tcp://127.0.0.1:{port}", tls=tls)).check(spec())
    assert "\n" not in str(caught.value)


async def test_an_engine_of_a_docker_context(
    first: Dockerd, certs: Path, port: int, new_backend: NewBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    files = ",".join(f"{key}={certs}/{key}.pem" for key in ("ca", "cert", "key"))
    first.docker("context", "create", "far", "--docker", f"host=tcp://127.0.0.1:{port},{files}")
    await use(new_backend(DockerOptions(context="far", pull="never")))
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    await use(new_backend(DockerOptions(pull="never")))
    with pytest.raises(SandboxError, match="there is no docker context 'near'; `docker context ls`"):
        new_backend(DockerOptions(context="near")).check(spec())


async def test_an_engine_over_ssh(first: Dockerd, ssh: Sshd, new_backend: NewBackend) -> None:
    backend = new_backend(DockerOptions(host=f"ssh://engines{first.socket}", pull="never"))
    await use(backend)
    await backend.aclose()
    assert not [line for line in _processes() if str(ssh.config) in line], "an ssh was left behind"


@pytest.mark.parametrize("way", ["tls", "ssh"])
async def test_what_the_docker_command_does_reaches_the_same_engine(
    first: Dockerd, certs: Path, port: int, ssh: Sshd, new_backend: NewBackend, tmp_path: Path, way: str
) -> None:
    if subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode != 0:
        unavailable("docker", "the docker command has no buildx")
    tls = TlsOptions(**{f"{key}_file": f"{certs}/{key}.pem" for key in ("ca", "cert", "key")})
    options = {
        "tls": DockerOptions(host=f"tcp://127.0.0.1:{port}", tls=tls),
        "ssh": DockerOptions(host=f"ssh://engines{first.socket}"),
    }
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/Dockerfile").write_text(f"FROM {IMAGE}\nRUN --mount=type=cache,target=/c echo {way} > /mark\n")
    backend = new_backend(options[way])
    image = await backend.prepare(spec(docker_image=None, directory=str(tmp_path / "environment")))
    assert first.docker("run", "--rm", "--network", "none", image, "cat", "/mark") == way
    await backend.remove(image)
    assert not first.docker("images", "-q", image)


async def test_a_tunnel_that_broke_is_made_again(first: Dockerd, ssh: Sshd, new_backend: NewBackend) -> None:
    backend = new_backend(DockerOptions(host=f"ssh://engines{first.socket}", pull="never"))
    wanted = spec()
    environment = await backend.start(wanted, await backend.prepare(wanted))
    running = asyncio.ensure_future(environment.exec(Command(argv=("sh", "-c", "echo began > /tmp/began; sleep 600"))))
    while "began" not in await ok(environment, "cat /tmp/began 2>/dev/null || true"):
        await asyncio.sleep(0.05)
    ssh.stop()
    ssh.start()
    with pytest.raises(EnvironmentLostError):
        await running
    assert await ok(environment, "cat /tmp/began") == "began\n"
    await environment.stop()


async def test_a_killed_process_leaves_no_ssh(first: Dockerd, ssh: Sshd, tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time; from rollout_docker.tunnel import Tunnel; "
        "Tunnel(sys.argv[1], pathlib.Path(sys.argv[2])).open(); print('open', flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", script, f"ssh://engines{first.socket}", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    socket = str(tmp_path / "engine.sock")
    assert [line for line in _processes() if socket in line and line.startswith("/usr/bin/ssh")]
    process.kill()
    await process.wait()
    async with asyncio.timeout(60):
        while [line for line in _processes() if socket in line]:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ssh://nobody@engines", "Permission denied.*It needs a key"),
        ("ssh://root@127.0.0.1:{port}", "Host key verification failed.*accept it"),
        ("ssh://root@127.0.0.1:1", "refused"),
        ("ssh://engines/no/such.sock", "hung up|Connection reset|refused|aborted|no HTTP"),
    ],
)
def test_why_ssh_does_not_get_there_is_said(ssh: Sshd, new_backend: NewBackend, address: str, said: str) -> None:
    with pytest.raises(SandboxError, match=said) as caught:
        new_backend(DockerOptions(host=address.format(port=ssh.port))).check(spec())
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def second() -> Iterator[Dockerd]:
    with engine() as started:
        yield started


async def test_trials_are_spread_over_the_hosts_by_their_load(first: Dockerd, second: Dockerd, new_backend: NewBackend) -> None:
    warnings: list[str] = []
    hosts: list[str | HostOptions] = [HostOptions(host=first.url, slots=1), HostOptions(host=second.url, slots=2)]
    backend = new_backend(DockerOptions(hosts=hosts, pull="never"), warnings)
    wanted = spec()
    backend.check(wanted)
    assert [warning for warning in warnings if "4 trials at once" in warning and "3 slots" in warning]
    image = await backend.prepare(wanted)
    environments = [await backend.start(wanted, image) for _ in range(3)]
    fourth = asyncio.ensure_future(backend.start(wanted, image))
    ours = ("ps", "-q", "--filter", f"label=rollout.job={backend._context.job_id}")
    assert [len(engine.docker(*ours).split()) for engine in (first, second)] == [1, 2]
    assert not fourth.done()
    await environments[0].stop()
    environments.append(await fourth)
    await asyncio.gather(*(environment.stop() for environment in environments))


async def test_an_image_is_built_on_each_host_that_needs_it_and_removed_there(
    first: Dockerd, second: Dockerd, new_backend: NewBackend, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {os.urandom(4).hex()} > /mark\n")
    wanted = spec(docker_image=None, directory=str(tmp_path))
    backend = new_backend(DockerOptions(hosts=[first.url, second.url]))
    image = await backend.prepare(wanted)
    environments = await asyncio.gather(*(backend.start(wanted, image) for _ in range(4)))
    assert len({await ok(environment, "cat /mark") for environment in environments}) == 1
    assert all(engine.docker("images", "-q", image) for engine in (first, second))
    await asyncio.gather(*(environment.stop() for environment in environments))
    await backend.remove(image)
    assert not any(engine.docker("images", "-q", image) for engine in (first, second))


async def test_what_was_on_a_lost_host_is_lost_as_such_and_the_next_starts_elsewhere(
    first: Dockerd, new_backend: NewBackend
) -> None:
    warnings: list[str] = []
    wanted = spec()
    with engine() as dying:
        backend = new_backend(DockerOptions(hosts=[first.url, dying.url], pull="never"), warnings)
        image = await backend.prepare(wanted)
        environments = [await backend.start(wanted, image) for _ in range(2)]
        waiting = [asyncio.ensure_future(each.exec(Command(argv=("sleep", "600")))) for each in environments]
        for each in environments:
            await ok(each, "true")
        dying.kill()
        with pytest.raises(HostLostError, match="is lost"):
            await waiting[1]
        assert [warning for warning in warnings if "is lost" in warning and dying.url in warning]
        third = await backend.start(wanted, image)
        assert len(first.docker("ps", "-q", "--filter", f"label=rollout.job={backend._context.job_id}").split()) == 2
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        await asyncio.gather(environments[0].stop(), third.stop())


async def test_hosts_that_do_not_answer_at_first_are_noted_and_without_any_the_job_does_not_start(
    first: Dockerd, new_backend: NewBackend, tmp_path: Path
) -> None:
    warnings: list[str] = []
    absent = f"unix://{tmp_path}/no.sock"
    backend = new_backend(DockerOptions(hosts=[absent, first.url], pull="never"), warnings)
    await use(backend)
    assert [warning for warning in warnings if absent in warning and "set aside" in warning]
    with pytest.raises(TeardownError, match=rf"not all looked for: {absent} does not answer"):
        await backend.reap("no-such-job")
    with pytest.raises(SandboxError, match="none of the engines in `hosts` can be used") as caught:
        new_backend(DockerOptions(hosts=[absent, "tcp://127.0.0.1:1"])).check(spec())
    assert absent in str(caught.value) and "tcp://127.0.0.1:1" in str(caught.value)


def _processes() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_text().replace("\0", " "))
        except OSError:
            continue
    return lines


def test_a_job_goes_on_when_one_of_its_engines_dies(first: Dockerd, tmp_path: Path) -> None:
    for number in range(2):
        task = write_task(tmp_path / "tasks" / f"t{number}", tests="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    with engine() as dying:
        write_job(
            tmp_path,
            {
                "n_attempts": 6,
                "n_concurrent_trials": 4,
                "environment": {"type": "docker", "options": {"hosts": [{"host": first.url, "slots": 4}, dying.url]}},
                "agents": [{"name": "waits", "execute": "#!/bin/sh\nsleep 5\n"}],
            },
        )
        stop = threading.Event()

        def kill_when_used() -> None:
            while not stop.wait(0.2):
                trials = dying.docker("ps", "-q", "--filter", "label=rollout.trial").split()
                with contextlib.suppress(AssertionError):  # that one has just ended
                    if any("sleep" in dying.docker("top", trial) for trial in trials):
                        dying.kill()
                        return

        thread = threading.Thread(target=kill_when_used)
        thread.start()
        done = rollout(tmp_path, "job.json", timeout=300)
        stop.set()
        thread.join()
    assert done.returncode == 0, done.stdout + done.stderr
    results = trial_results(tmp_path / "jobs" / "job")
    assert [record["rewards"] for record in results.values()] == [{"reward": 1.0}] * 12
    events = [json.loads(line) for line in (tmp_path / "jobs" / "job" / "events.jsonl").read_text().splitlines()]
    lost = [event for event in events if (event.get("error") or {}).get("type") == "environment_host_lost"]
    assert lost, "the engine died before it had a trial: nothing was tested"
    assert "is lost" in done.stdout + done.stderr


def test_a_job_survives_the_restart_of_its_engine(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks" / "t", tests="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    job = write_job(
        tmp_path,
        {
            "n_attempts": 4,
            "n_concurrent_trials": 2,
            "retry": {"max_retries": 5, "min_wait_sec": 1},
            "agents": [{"name": "waits", "execute": "#!/bin/sh\nsleep 5\n"}],
        },
    )
    with engine() as restarting:
        document = json.loads(job.read_text())
        document["environment"] = {"type": "docker", "options": {"host": restarting.url}}
        job.write_text(json.dumps(document))
        process = subprocess.Popen(command("job.json"), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while len(restarting.docker("ps", "-q").split()) < 2:
            assert time.monotonic() < deadline, "no two trials started"
            time.sleep(0.1)
        restarting.restart()
        stdout, _ = process.communicate(timeout=200)
        assert process.returncode == 0, stdout
        results = trial_results(tmp_path / "jobs" / "job")
        assert [record["reward"] for record in results.values()] == [1.0] * 4
        tries = [earlier["error"] for record in results.values() for earlier in record["tries"]]
        assert tries, "the engine was restarted between two trials: nothing was tested"
        assert restarting.docker("ps", "-aq") == ""


def test_an_agent_that_fills_the_engine_s_disk_costs_its_own_trial_and_no_other(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "tasks" / "t", tests="#!/bin/sh\ngrep -q 42 /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n"
    )
    (task / "task.toml").write_text(f'[environment]\ndocker_image = "{IMAGE}"\n')
    solves = "echo 42 > /app/answer.txt"
    agents = [
        {"name": "fills", "execute": f"#!/bin/sh\ncat /dev/zero > /fill; {solves}\n"},
        {"name": "solves", "execute": f"#!/bin/sh\n{solves}\n"},
    ]
    with engine(disk="64m") as small:
        options = {"host": small.url, "pull": "never"}
        job = {"agents": agents, "n_concurrent_trials": 1, "environment": {"type": "docker", "options": options}}
        done = rollout(tmp_path, write_job(tmp_path, job))
        results = trial_results(tmp_path / "jobs" / "job")
        full, fine = results["fills/tasks/t__1"], results["solves/tasks/t__1"]
        assert (full["status"], full["error"]["type"]) == ("errored", "environment_transfer_failed"), done.stdout
        assert "no space left on device" in full["error"]["message"]
        assert "No space left on device" in (tmp_path / "jobs/job/fills/tasks/t__1/agent/stderr.txt").read_text()
        assert fine["reward"] == 1.0
        assert small.docker("ps", "-aq") == ""
