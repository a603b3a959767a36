"""Tests that root runs as an ordinary user: a pytest of its own, in a process that has given root's rights up."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from require import unavailable

_USER = 4321
_PYTHONS = (sys.executable, "/usr/bin/python3")
_PROBE = "import pytest, pytest_asyncio, msgspec, rollout.builtin.local"


def run_as_ordinary_user(file: Path, name: str, *, timeout_sec: float = 600) -> None:
    """Run the tests of `file` whose name holds `name` as an ordinary user; they must pass.

    In a Python that this user may read: the one of the tests may lie in a home folder.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        unavailable("local-user", "there is no setpriv to become an ordinary user with")
    # `env` between: setpriv itself still has root's rights when it looks for the program
    become = [setpriv, f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--inh-caps=-all", "/usr/bin/env"]
    # Not pytest's own folder: pytest closes that to others, and every pytest that starts closes it again.
    mine = Path(tempfile.mkdtemp(prefix="rollout-user-"))
    try:
        os.chown(mine, _USER, _USER)
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(mine),
            "PYTHONPATH": os.pathsep.join([str(_site_packages()), str(_source())]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for python in _PYTHONS:
            if subprocess.run([*become, python, "-c", _PROBE], env=environ, cwd="/", capture_output=True).returncode == 0:
                break
        else:
            unavailable("local-user", "no Python that an ordinary user may use can import the tests' packages")
        configuration = Path(__file__).parents[1] / "pyproject.toml"
        options = ["-q", "-p", "no:cacheprovider", f"--timeout={timeout_sec:g}", f"--basetemp={mine}/tmp", "-k", name, str(file)]
        done = subprocess.run(
            [*become, python, "-m", "pytest", "-c", str(configuration), *options],
            env=environ,
            cwd=mine,
            capture_output=True,
            text=True,
            timeout=timeout_sec,
        )
    finally:
        shutil.rmtree(mine)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def _site_packages() -> Path:
    found = importlib.util.find_spec("pytest")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def _source() -> Path:
    import rollout

    assert rollout.__file__ is not None
    return Path(rollout.__file__).parents[1]
