"""What some tests need from the machine: `require("local")` skips a test where it is missing, with the reason.

A skipped test proves nothing, so the places that must run everything say so: a component that is named in the variable
ROLLOUT_REQUIRE ("local,local-user,git-http") fails the test instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

import harbor_models

ORDINARY_USER = 65534
"""`nobody`, as whom root tries what an ordinary user may do."""

DOCKER_IMAGE = "debian:trixie-slim"
"""An image that tests of the `docker` environment start from: Debian with python3, git and procps."""

APPTAINER = Path(os.environ.get("ROLLOUT_APPTAINER_STATE", "/tmp/rollout-test-apptainer"))
"""Where `tests/components/apptainer.sh` puts Apptainer, `base.sif` (Debian with python3, git, make), `lean.sif`
(the same without perl and the like) and `small.sif` (busybox)."""
PODMAN_ROOT = "unix:///tmp/rollout-test-podman/root/podman.sock"
PODMAN_USER = "unix:///tmp/rollout-test-podman/user/podman.sock"
"""Where components/podman.sh puts them."""

NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true")
"""What the `local` environment asks of the kernel."""


def _run(*argv: str) -> str | None:
    """None when the command succeeds, else what it printed."""
    if shutil.which(argv[0]) is None:
        return f"{argv[0]} is not installed"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode == 0 else f"{' '.join(argv)}: {done.stderr.strip() or f'exit {done.returncode}'}"


def _local() -> str | None:
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return _run(NAMESPACES[0], *user, *NAMESPACES[1:])


def _local_user() -> str | None:
    drop = ("setpriv", f"--reuid={ORDINARY_USER}", f"--regid={ORDINARY_USER}", "--clear-groups") if os.geteuid() == 0 else ()
    return _run(*drop, NAMESPACES[0], "--user", "--map-root-user", *NAMESPACES[1:])


def _git_http() -> str | None:
    if (missing := _run("git", "--version")) is not None:
        return missing
    folder = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
    program = os.path.join(folder, "git-http-backend")
    return None if os.access(program, os.X_OK) else f"{program} is not there"


def _docker() -> str | None:
    return _run("docker", "image", "inspect", DOCKER_IMAGE) or _run("docker", "compose", "version")


def _ssh() -> str | None:
    script = os.path.join(os.path.dirname(__file__), "components", "ssh.sh")
    return _run(script, "run", "20", "test", "-s", "/run/sshd.pid")


def _podman() -> str | None:
    commands = (("docker", "--host", socket, "image", "inspect", DOCKER_IMAGE) for socket in (PODMAN_ROOT, PODMAN_USER))
    return next((missing for command in commands if (missing := _run(*command)) is not None), None)


def _atif() -> str | None:
    """Harbor's models of trajectories: see components/atif.sh."""
    return harbor_models.missing()


def _agents() -> str | None:
    """Package indexes that real agents are installed from."""
    return _run("npm", "view", "@openai/codex", "name") or _run("/usr/bin/python3", "-c", "import venv, ensurepip")


def _docker_engines() -> str | None:
    """Engines that the tests start for themselves: see engines.py."""
    if os.geteuid() != 0:
        return "only root can start an engine"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [
        name for name in ("dockerd", "sshd", "ssh", "openssl", "docker-registry", "busybox") if not shutil.which(name, path=path)
    ]
    return f"{', '.join(missing)} not installed" if missing else None


def _apptainer() -> str | None:
    missing = next((name for name in ("base", "lean", "small") if not (APPTAINER / f"{name}.sif").exists()), None)
    if missing is not None:
        return f"there is no {APPTAINER}/{missing}.sif: `tests/components/apptainer.sh up` makes it"
    return _run(str(APPTAINER / "usr/bin/apptainer"), "-s", "exec", "--no-privs", str(APPTAINER / "base.sif"), "true")


COMPONENTS: dict[str, Callable[[], str | None]] = {
    "local": _local,
    "local-user": _local_user,
    "git-http": _git_http,
    "docker": _docker,
    "apptainer": _apptainer,
    "ssh": _ssh,
    "agents": _agents,
    "docker-engines": _docker_engines,
    "podman": _podman,
    "atif": _atif,
}
"""Component to a probe that says what is missing, or None."""


@cache
def missing(component: str) -> str | None:
    """Why the component cannot be used on this machine; None when it can."""
    return COMPONENTS[component]()


def require(component: str) -> None:
    """Skip the running test where the component is missing; fail it where ROLLOUT_REQUIRE names the component."""
    reason = missing(component)
    if reason is not None:
        unavailable(component, reason)


def unavailable(component: str, reason: str) -> NoReturn:
    """Skip the running test for want of a component, or fail it where ROLLOUT_REQUIRE names the component."""
    if component in os.environ.get("ROLLOUT_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"ROLLOUT_REQUIRE names {component}, which cannot be used here: {reason}", pytrace=False)
    pytest.skip(f"needs {component}: {reason}")
