"""The machines of tests/components/ssh.sh: how to log in to them, and what can happen to them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from require import APPTAINER

STATE = Path(os.environ.get("ROLLOUT_SSH_STATE", "/tmp/rollout-test-ssh"))
KEY = STATE / "key"
KNOWN_HOSTS = STATE / "known_hosts"
_SCRIPT = Path(__file__).parent / "components" / "ssh.sh"


def host(number: int, user: str = "root") -> str:
    return f"{user}@10.213.77.{10 + number}"


def options(*numbers: int, user: str = "root", **more: Any) -> dict[str, Any]:
    """`environment.options` for these machines; the ssh configuration of whoever runs the tests does not matter."""
    hosts = [host(number, user) for number in numbers]
    return {"hosts": hosts, "identity_file": str(KEY), "known_hosts": str(KNOWN_HOSTS), "config": None, "agent": False, **more}


def do(what: str, number: int, *command: str) -> str:
    """`cut`, `mend`, `kill`, `start` or `run`; what it printed."""
    done = subprocess.run([_SCRIPT, what, str(number), *command], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def run(number: int, script: str) -> str:
    """A shell script on the machine, not over ssh."""
    return do("run", number, "sh", "-c", script)


def wait_until(number: int, condition: str) -> None:
    """Until a shell condition holds on the machine."""
    run(number, f"for i in $(seq 600); do if {condition}; then exit 0; fi; sleep 0.05; done; ps ax >&2; exit 1")


NOTHING_LEFT = (
    '[ -z "$(ls -A /root/.cache/rollout/ssh/work 2> /dev/null)" ] && ! ls -d /logs /tests /oracle /app /tmp/.rollout-lease '
    "2> /dev/null | grep -q . && ! pgrep -f '[r]ollout = .relay|[r]ollout-holder|[s]leep 54321' > /dev/null"
)
"""Condition: no trial, and nothing of one, is on the machine."""


def install_apptainer(number: int) -> None:
    """Put the tests' Apptainer, and its small image, at the same place of a machine."""
    if "there" in run(number, f"[ ! -e {APPTAINER}/small.sif ] || echo there"):
        return
    parts = ["usr/bin", "usr/lib", "usr/etc", "usr/var", "etc", "var", "libraries", "small.sif"]
    with subprocess.Popen(["tar", "-C", APPTAINER, "-c", *parts], stdout=subprocess.PIPE) as packing:
        unpack = f"mkdir -p {APPTAINER} && chmod 755 {APPTAINER} && tar -C {APPTAINER} -x --no-same-owner"
        subprocess.run([_SCRIPT, "run", str(number), "sh", "-c", unpack], stdin=packing.stdout, timeout=60, check=True)
