"""The `local` environment keeps the contract of environments, as root and as an ordinary user."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from require import unavailable
from rollout.builtin.local import LocalBackend, LocalOptions
from rollout.core.protocols import EXEC_USER, LIVE_STDIO, NETWORK_NONE, SNAPSHOT, BackendContext
from rollout.testing.environment import EnvironmentSuite

_USER = 4321
_PYTHONS = (sys.executable, "/usr/bin/python3")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestLocalAsRoot(EnvironmentSuite):
    capabilities = frozenset({EXEC_USER, LIVE_STDIO, NETWORK_NONE, SNAPSHOT})

    def make(self, context: BackendContext) -> LocalBackend:
        return LocalBackend(LocalOptions(), context)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user")
class TestLocalAsUser(EnvironmentSuite):
    capabilities = LocalBackend(
        LocalOptions(), BackendContext(job_id="x", work_dir=Path("/nowhere"), cache_dir=Path("/nowhere"), concurrency=1)
    ).capabilities

    def make(self, context: BackendContext) -> LocalBackend:
        return LocalBackend(LocalOptions(), context)


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_an_ordinary_user_passes_the_same_suite(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In a Python that this user may read: the one of the tests may lie in a home folder."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        unavailable("local-user", "there is no setpriv to become an ordinary user with")
    # `env` between: setpriv itself still has root's rights when it looks for the program
    become = [setpriv, f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--inh-caps=-all", "/usr/bin/env"]
    tests = Path(__file__).parents[1]
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(_site_packages()), str(_source())]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    probe = "import pytest, pytest_asyncio, msgspec, rollout.builtin.local"
    for python in _PYTHONS:
        if subprocess.run([*become, python, "-c", probe], env=environ, cwd="/", capture_output=True).returncode == 0:
            break
    else:
        unavailable("local-user", "no Python that an ordinary user may use can import the tests' packages")
    # Not tmp_path: pytest closes the folder above to others, and every pytest that starts closes it again.
    mine = Path(tempfile.mkdtemp(prefix="rollout-user-"))
    request.addfinalizer(lambda: shutil.rmtree(mine))
    os.chown(mine, _USER, _USER)
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=300",
        f"--basetemp={mine}/tmp",
        "-k",
        "TestLocalAsUser",
        str(Path(__file__)),
    ]
    done = subprocess.run(
        [*become, python, "-m", "pytest", "-c", str(tests.parent / "pyproject.toml"), *arguments],
        env=environ,
        cwd=mine,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def _site_packages() -> Path:
    found = importlib.util.find_spec("pytest")
    assert found is not None and found.origin is not None
    return Path(found.origin).parents[1]


def _source() -> Path:
    import rollout

    assert rollout.__file__ is not None
    return Path(rollout.__file__).parents[1]
