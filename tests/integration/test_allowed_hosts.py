"""`network_mode`: what agents and verifiers reach when a task lists the hosts, and when it says something else for each phase."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import command, environ, rollout, write_job, write_task
from require import DOCKER_IMAGE

# Tries as many ways as there are to a server of this machine, from a place that should know of one port alone.
REACH = """
import json, os, socket, sys, urllib.error, urllib.request

def answer(port, *, proxied):
    opener = urllib.request.build_opener(*([] if proxied else [urllib.request.ProxyHandler({})]))
    try:
        return opener.open(f"http://{HOST}:{port}/", timeout=1.5).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        print(port, proxied, repr(error))
        return "no"

def direct(address, port):
    try:
        with socket.create_connection((address, port), timeout=1.5):
            return "yes"
    except OSError:
        return "no"

def known(name):
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    try:
        return bool(socket.getaddrinfo(name, 80))
    except OSError:
        return False

HOST, allowed, other, machine = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
print(json.dumps({
    "allowed": [answer(allowed, proxied=True), answer(allowed, proxied=False)],
    "other": [answer(other, proxied=True), answer(other, proxied=False)],
    "by address": direct(machine, other),
    "strange name": known("secret.example.com"),
}))
"""


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two servers on every address of this machine."""
    servers = [ThreadingHTTPServer(("0.0.0.0", 0), Answer) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield servers[0].server_address[1], servers[1].server_address[1]
    for server in servers:
        server.shutdown()
        server.server_close()


def reach(host: str, ports: tuple[int, int], machine: str) -> str:
    """A shell command that prints what is reached."""
    return f"python3 - {host} {ports[0]} {ports[1]} {machine} <<'END'{REACH}END\n"


def run(folder: Path, toml: str, look: str, **job: Any) -> dict[str, Any]:
    """What was reached by the installer, the agent and the verifier of a task's only trial."""
    write_task(folder / "tasks/one", tests="#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n" + look, toml=toml)
    agent = {"name": "it", "install": "#!/bin/bash\n" + look, "execute": "#!/bin/bash\n" + look}
    done = rollout(
        folder,
        write_job(folder, {"name": "job", "environment": {"type": "local", "agent_cache": False}, "agents": [agent], **job}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trial = folder / "jobs/job/it/tasks/one__1"
    said = {phase: (trial / phase / "stdout.txt") for phase in ("setup", "agent", "verifier")}
    return {phase: json.loads(path.read_text().splitlines()[-1]) for phase, path in said.items()}


CLOSED = {"by address": "no", "strange name": False}


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


SERVE = "for port in 8001 8002; do python3 -m http.server -b 0.0.0.0 -d /srv $port & done; printf hello > /srv/index.html; wait"


@pytest.fixture
def site() -> Iterator[tuple[str, str]]:
    """A network of the engine on which a host `site.test` serves two ports: the network's name, and the host's address."""
    network = f"rollout-test-{secrets.token_hex(4)}"
    docker("network", "create", network)
    try:
        command = ("--network", network, "--network-alias", "site.test", DOCKER_IMAGE, "sh", "-c", SERVE)
        docker("run", "-d", "--rm", "--init", "--name", network, *command)
        yield network, docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", network)
    finally:
        docker("rm", "-f", network)
        docker("network", "rm", network)


@pytest.mark.needs("docker")
def test_on_docker_an_agent_reaches_what_is_listed_and_nothing_else_and_the_verifier_everything(
    tmp_path: Path, site: tuple[str, str]
) -> None:
    network, address = site
    toml = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["site.test:8001"]\n'
    environment = {"type": "docker", "agent_cache": False, "options": {"egress_image": DOCKER_IMAGE, "network": network}}
    reached = run(tmp_path, toml, reach("site.test", (8001, 8002), address), environment=environment)
    refused = "403 rollout: site.test:8002 is not among the task's allowed_hosts"
    assert reached["agent"] == {"allowed": ["hello", "hello"], "other": [refused, "no"], **CLOSED}
    for phase in ("setup", "verifier"):
        assert reached[phase] == {"allowed": ["hello", "hello"], "other": ["hello", "hello"], **CLOSED, "by address": "yes"}
    job_id = json.loads((tmp_path / "jobs/job/lock.json").read_text())["job_id"]
    for kind in ("network", "container"):
        assert docker(kind, "ls", "-q", "--filter", f"label=rollout.job={job_id}") == ""


@pytest.mark.needs("docker")
@pytest.mark.parametrize(
    ("toml", "open_phase"),
    [
        ('[agent]\nnetwork_mode = "no-network"\n', "setup"),
        ('[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n', "verifier"),
    ],
)
def test_on_docker_a_phase_is_cut_off_or_let_out_without_a_relay(
    tmp_path: Path, site: tuple[str, str], toml: str, open_phase: str
) -> None:
    network, address = site
    environment = {"type": "docker", "agent_cache": False, "options": {"network": network}}
    quickly = "export RES_OPTIONS='timeout:1 attempts:1'\n"  # without a network nobody answers
    reached = run(tmp_path, toml, quickly + reach("site.test", (8001, 8002), address), environment=environment)
    assert reached["agent"] == {"allowed": ["no", "no"], "other": ["no", "no"], **CLOSED}
    for phase in {open_phase, "verifier"}:
        assert reached[phase]["allowed"] == ["hello", "hello"]


@pytest.mark.needs("docker")
def test_what_a_killed_job_left_of_its_relay_is_cleaned(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", toml='[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["site.test"]\n')
    environment = {"type": "docker", "options": {"egress_image": DOCKER_IMAGE}}
    agent = {"name": "it", "execute": "echo here; sleep 300"}
    job = write_job(tmp_path, {"name": "job", "environment": environment, "agents": [agent]})
    running = subprocess.Popen(command(job, "-q"), cwd=tmp_path, env=environ(tmp_path), start_new_session=True)
    said, deadline = tmp_path / "jobs/job/it/tasks/one__1/agent/stdout.txt", time.monotonic() + 60
    while not (said.is_file() and said.read_bytes()):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    cleaned = rollout(tmp_path, "clean", "jobs/job").stdout.splitlines()
    assert [sum(line.startswith(f"removed {what} rollout-") for line in cleaned) for what in ("container", "network")] == [2, 1]


@pytest.mark.needs("apptainer")
def test_an_environment_that_cannot_keep_to_a_list_refuses_before_anything_starts(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", toml='[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["site.test"]\n')
    done = rollout(tmp_path, write_job(tmp_path, {"name": "job", "environment": {"type": "apptainer"}}))
    assert done.returncode == 2
    assert "`environment.type: apptainer` cannot change the network between the start" in done.stderr
    assert not (tmp_path / "jobs").exists()


@pytest.mark.needs("local")
def test_on_local_an_agent_reaches_what_is_listed_and_nothing_else(tmp_path: Path, ports: tuple[int, int]) -> None:
    name = socket.gethostname()
    toml = f'[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{name}:{ports[0]}"]\n'
    toml += '[verifier]\nnetwork_mode = "no-network"\n'
    reached = run(tmp_path, toml, reach(name, ports, "127.0.0.1"))
    refused = f"403 rollout: {name}:{ports[1]} is not among the task's allowed_hosts"
    for phase in ("setup", "agent"):
        assert reached[phase] == {"allowed": ["hello", "hello"], "other": [refused, "no"], **CLOSED}
    assert reached["verifier"]["allowed"][1] == "no"


@pytest.mark.needs("local")
def test_on_local_a_network_for_the_agent_alone_is_not_the_verifiers(tmp_path: Path, ports: tuple[int, int]) -> None:
    name = socket.gethostname()
    reached = run(tmp_path, '[agent]\nnetwork_mode = "no-network"\n', reach(name, ports, "127.0.0.1"))
    assert reached["agent"]["allowed"][1] == "no"
    for phase in ("setup", "verifier"):
        assert reached[phase]["allowed"][0] == "hello"


@pytest.mark.needs("local")
def test_a_job_adds_the_address_of_the_model_for_agents_but_not_for_verifiers(tmp_path: Path, ports: tuple[int, int]) -> None:
    name = socket.gethostname()
    environment = {"type": "local", "agent_cache": False, "extra_allowed_hosts": [f"{name}:{ports[0]}"]}
    toml = '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "no-network"\n'
    reached = run(tmp_path, toml, reach(name, ports, "127.0.0.1"), environment=environment)
    assert reached["agent"]["allowed"] == ["hello", "hello"]
    assert reached["verifier"]["allowed"][1] == "no"


def test_a_host_that_cannot_be_listed_stops_the_job_before_it_starts(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", toml='[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["https://site.org"]\n')
    done = rollout(tmp_path, write_job(tmp_path, {"name": "job"}))
    assert done.returncode == 2
    assert "allowed_hosts: 'https://site.org' is no host that can be allowed" in done.stderr
    assert not (tmp_path / "jobs").exists()
