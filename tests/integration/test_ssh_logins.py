"""Logging in to other machines: whose key that is, who we are, over which machines; and one clear line when it does not work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines import Sshd
from integration.jobs import rollout, trial_results, write_job, write_task
from require import require
from rollout_ssh.address import parse_host, read_ssh_config, resolve
from rollout_ssh.connection import Connection, Login, Refused, Unreachable, connect
from rollout_ssh.leases import ask
from ssh_machines import KEY, KNOWN_HOSTS, host, options

MACHINE, BEFORE = 8, 7
ADDRESS = host(MACHINE)


@pytest.fixture(autouse=True, scope="module")
def _machines() -> None:
    require("ssh")


def login(text: str = ADDRESS, config: Path | None = None, **changes: Any) -> Connection:
    fields = {"key": KEY, "agent": False, "known_hosts": KNOWN_HOSTS, "timeout_sec": 10.0}
    return connect(resolve(parse_host(text, "hosts[0]"), read_ssh_config(config)), Login(**{**fields, **changes}))


def name_of(connection: Connection) -> str:
    try:
        return ask(connection, "hostname; id -un")
    finally:
        connection.close()


def test_a_known_host_lets_a_key_in() -> None:
    assert name_of(login()) == "machine8\nroot"


def test_a_host_whose_key_is_not_known_is_refused_with_its_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"ssh-ed25519 SHA256:\S+ is not known.*ssh-keyscan -p 22 10\.213\.77\.18 >> .*accept_new"):
        login(known_hosts=tmp_path / "known_hosts")
    assert not (tmp_path / "known_hosts").exists()


def test_accept_new_notes_the_key_and_holds_it_against_the_host_from_then_on(tmp_path: Path) -> None:
    known = tmp_path / "made" / "known_hosts"
    assert name_of(login(known_hosts=known, accept_new=True)) == "machine8\nroot"
    assert known.read_text().split()[0] == "10.213.77.18"
    assert name_of(login(known_hosts=known)) == "machine8\nroot"


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_host_whose_key_has_changed_is_refused_whatever_the_options_say(tmp_path: Path, accept_new: bool) -> None:
    of_another = next(line for line in KNOWN_HOSTS.read_text().splitlines() if line.startswith("10.213.77.17 "))
    (tmp_path / "known_hosts").write_text(of_another.replace("10.213.77.17", "10.213.77.18") + "\n")
    with pytest.raises(Refused, match=r"has changed: .*SHA256:.* and .* has .*SHA256:.*ssh-keygen -f .* -R '10\.213\.77\.18'"):
        login(known_hosts=tmp_path / "known_hosts", accept_new=accept_new)


def test_a_user_whom_nobody_knows_is_refused_with_what_was_tried() -> None:
    with pytest.raises(Refused, match=rf"user nobody-here was refused.*tried {KEY}"):
        login(host(MACHINE, "nobody-here"))


def test_a_password_comes_from_a_file_that_nobody_else_may_read(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("correct horse\n")
    secret.chmod(0o644)
    arguments: dict[str, Any] = {"key": None, "config": _no_keys(tmp_path), "password_file": secret}
    with pytest.raises(Refused, match=f"chmod 600 {secret}"):
        login(host(MACHINE, "lab"), **arguments)
    secret.chmod(0o600)
    assert name_of(login(host(MACHINE, "lab"), **arguments)) == "machine8\nlab"
    secret.write_text("wrong donkey")
    with pytest.raises(Refused, match="user lab was refused") as refused:
        login(host(MACHINE, "lab"), **arguments)
    assert "donkey" not in str(refused.value)


def test_an_encrypted_key_says_what_to_do(tmp_path: Path) -> None:
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "a passphrase", "-f", key], check=True)
    with pytest.raises(Refused, match=r"encrypted: add it to an ssh agent"):
        login(key=key)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"{tmp_path}/none"):
        login(key=tmp_path / "none")


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused, match=r"there is no host 'no-such-host\.invalid'"):
        login("root@no-such-host.invalid")


def test_a_port_on_which_nobody_listens_may_be_better_later() -> None:
    with pytest.raises(Unreachable, match="nothing listens on port 2"):
        login(f"{ADDRESS}:2")


def test_a_host_that_does_not_answer_may_be_better_later() -> None:
    with pytest.raises(Unreachable, match=r"no answer within 0\.5 s|No route to host"):
        login("root@10.213.77.250", timeout_sec=0.5)


def test_a_name_of_the_configuration_leads_over_another_machine(tmp_path: Path) -> None:
    """To the loopback address as that machine sees it."""
    gate = f"10.213.77.{10 + BEFORE}"
    config = tmp_path / "config"
    config.write_text(
        f"Host inner\n  HostName 127.0.0.1\n  User lab\n  IdentityFile {KEY}\n  ProxyJump gate\n  HostKeyAlias {gate}\n"
        f"Host gate\n  HostName {gate}\n  User root\n  IdentityFile {KEY}\n"
    )
    assert name_of(login("inner", config, key=None)) == "machine7\nlab"


def test_a_key_alias_of_the_configuration_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(KNOWN_HOSTS.read_text().replace("10.213.77.18 ", "the-lab "))
    config = tmp_path / "config"
    config.write_text(
        f"Host box\n  HostName 10.213.77.18\n  User root\n  HostKeyAlias the-lab\n  UserKnownHostsFile {tmp_path}/known\n"
    )
    assert name_of(login("box", config)) == "machine8\nroot"


def test_a_proxy_command_of_the_configuration_is_used(tmp_path: Path) -> None:
    script = tmp_path / "through"
    script.write_text(
        f"#!{sys.executable}\nimport os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def out():\n    while data := s.recv(65536): os.write(1, data)\n    os._exit(0)\n"
        "threading.Thread(target=out, daemon=True).start()\n"
        "while data := os.read(0, 65536): s.sendall(data)\n"
    )
    script.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"Host 10.213.77.18\n  ProxyCommand {script} %h %p\n")
    assert name_of(login(config=config)) == "machine8\nroot"


# --- jobs ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"known_hosts": "/dev/null"}, "is not known"),
        ({"hosts": ["nobody-here@10.213.77.18"]}, "user nobody-here was refused"),
        ({"hosts": ["root@no-such-host.invalid"]}, "there is no host"),
        ({"hosts": ["root@10.213.77.18:2"]}, "nothing listens on port 2"),
        ({"hosts": ["root@10.213.77.18", "root@10.213.77.18"]}, "is there twice"),
        ({"hosts": ["root@10.213.77.18 slots=none"]}, "slots=4"),
        ({"hosts": ["a b c"]}, "is no host"),
        ({"hosts": [], "host_file": "none.txt"}, "none.txt"),
        ({"hosts": []}, "must name at least one host"),
        ({"python": "/no/such/python"}, "needs Python there"),
        ({"mode": "host", "hosts": ["lab@10.213.77.18"]}, "may write to /"),
        ({"share": ["/no/such/folder"]}, "/no/such/folder is not a folder there"),
        ({"key": "x"}, "key"),
    ],
)
def test_a_job_that_cannot_begin_says_why_in_a_line(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write_task(tmp_path / "tasks" / "one")
    path = write_job(tmp_path, {"environment": {"type": "ssh", "options": {**options(MACHINE), **changes}}})
    done = rollout(tmp_path, path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "jobs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="starts an sshd that lets root in")
def test_the_machine_that_rollout_runs_on_is_not_leased(tmp_path: Path) -> None:
    server = Sshd(tmp_path / "sshd")
    server.start()
    try:
        write_task(tmp_path / "tasks" / "one")
        environment = {"hosts": ["engines"], "config": str(server.config), "agent": False, "mode": "host"}
        done = rollout(tmp_path, write_job(tmp_path, {"environment": {"type": "ssh", "options": environment}}))
        assert done.returncode == 2, done.stderr
        assert "this is the machine that Rollout runs on" in done.stderr
    finally:
        server.stop()


def test_a_job_begins_without_a_host_that_is_down_and_says_so(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    hosts = [ADDRESS, "root@10.213.77.18:2"]
    (tmp_path / "hosts.txt").write_text(f"# two machines\n{hosts[0]} slots=2\n\n{hosts[1]}  # which is down\n")
    environment = {**options(MACHINE), "hosts": [], "host_file": "hosts.txt"}
    path = write_job(tmp_path, {"environment": {"type": "ssh", "options": environment}})
    done = rollout(tmp_path, path)
    assert done.returncode == 0, done.stderr
    assert "root@10.213.77.18:2: nothing listens on port 2 (connection refused); the job begins without it" in done.stderr
    assert "was not looked for" not in done.stderr, "nothing of an earlier run can be there"
    [result] = trial_results(tmp_path / "jobs" / "job").values()
    assert result["reward"] == 1.0
    again = rollout(tmp_path, path)
    assert again.returncode == 0, again.stderr
    assert "what the job left there was not looked for: root@10.213.77.18:2: nothing listens" in again.stderr


def test_secrets_of_an_agent_are_on_no_command_line_of_the_host(tmp_path: Path) -> None:
    """What the agent itself can see of the processes of a bare host."""
    write_task(tmp_path / "tasks" / "one")
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' > /logs/agent/seen; [ -n \"$PROBE_TOKEN\" ] && echo 42 > /app/answer.txt"
    agent = {"name": "looking", "execute": look, "env": {"PROBE_TOKEN": "${PROBE}"}}
    environment = options(MACHINE, mode="host")
    path = write_job(tmp_path, {"environment": {"type": "ssh", "options": environment}, "agents": [agent]})
    assert rollout(tmp_path, path, PROBE="sesame-open-0815").returncode == 0
    [result] = trial_results(tmp_path / "jobs" / "job").values()
    assert result["reward"] == 1.0
    [seen] = (tmp_path / "jobs").rglob("seen")
    assert "sesame-open" not in seen.read_text()
    assert "redacted" not in seen.read_text()


def _no_keys(folder: Path) -> Path:
    config = folder / "config"
    config.write_text(f"Host *\n  IdentityFile {folder}/none\n")
    return config
