"""The `apptainer` environment keeps the contract of environments, on a real Apptainer, as root and as an ordinary user."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import rollout
import rollout_apptainer
from require import APPTAINER, require, unavailable
from rollout.core.protocols import BESIDE, DOCKER_IMAGE, EXEC_USER, LIVE_STDIO, NETWORK_NONE, SNAPSHOT, BackendContext
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import EnvironmentSuite
from rollout_apptainer.backend import ApptainerBackend
from rollout_apptainer.options import ApptainerOptions


@pytest.fixture(autouse=True, scope="module")
def _apptainer() -> None:
    require("apptainer")


# Each packs its image several times, which takes long for a large one and shows no more.
PACKING = (
    "test_a_snapshot_is_what_sandboxes_start_from_and_do_not_change",
    "test_a_snapshot_of_a_known_key_is_not_made_again",
    "test_nothing_is_kept_of_a_change_that_fails",
)


class TestApptainer(EnvironmentSuite):
    """As whoever runs the tests."""

    capabilities = frozenset({BESIDE, EXEC_USER, LIVE_STDIO, NETWORK_NONE, DOCKER_IMAGE, SNAPSHOT})
    image = "base.sif"

    @pytest.fixture(autouse=True)
    def _choose_image(self, request: pytest.FixtureRequest) -> None:
        if request.node.originalname in PACKING:
            self.image = "small.sif"

    def make(self, context: BackendContext) -> ApptainerBackend:
        return ApptainerBackend(ApptainerOptions(program=str(APPTAINER / "usr/bin/apptainer")), context)

    def spec(self, **changes: Any) -> EnvironmentSpec:
        return super().spec(**{"docker_image": str(APPTAINER / self.image), **changes})


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
@pytest.mark.timeout(900)
def test_an_ordinary_user_passes_the_same_suite(request: pytest.FixtureRequest) -> None:
    """In a Python that this user may read: the one of the tests may lie in a home folder."""
    found = importlib.util.find_spec("pytest")
    assert found is not None and found.origin is not None and rollout.__file__ and rollout_apptainer.__file__
    search = [Path(found.origin).parents[1], Path(rollout.__file__).parents[1], Path(rollout_apptainer.__file__).parents[1]]
    user = "rollout-apptainer"
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "env"]
    become += [f"HOME={APPTAINER}/home", f"USER={user}", "PYTHONDONTWRITEBYTECODE=1"]
    become.append(f"PYTHONPATH={os.pathsep.join(map(str, search))}")
    for python in (sys.executable, "/usr/bin/python3"):
        probe = [*become, python, "-c", "import pytest, pytest_asyncio, pytest_timeout, rollout_apptainer.backend"]
        if subprocess.run(probe, cwd="/", capture_output=True).returncode == 0:
            break
    else:
        unavailable("apptainer", "no Python that an ordinary user may use can import the tests' packages")
    # Not tmp_path: pytest closes the folder above to others, and every pytest that starts closes it again.
    mine = Path(tempfile.mkdtemp(prefix="rollout-user-"))
    request.addfinalizer(lambda: shutil.rmtree(mine))
    shutil.chown(mine, user)
    tests = Path(__file__).parents[1]
    arguments = ["-q", "-p", "no:cacheprovider", "--timeout=300", f"--basetemp={mine}/tmp", "-k", "TestApptainer"]
    done = subprocess.run(
        [*become, python, "-m", "pytest", "-c", str(tests.parent / "pyproject.toml"), *arguments, str(Path(__file__))],
        cwd=mine,
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
