"""Inspect's own checks of sandboxes, which we did not write, over our environments.

A backend joins with a line in BACKENDS; the adapter knows nothing of any of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from inspect_ai.util._sandbox import self_check

from inspect_sandbox import RolloutSandbox
from require import APPTAINER, DOCKER_IMAGE, ORDINARY_USER, require
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec
from ssh_machines import options

CHECKS = self_check.__all__
WORKDIR = "/srv/checks"


class Backend(NamedTuple):
    """An environment type, as the checks are to use it."""

    component: str
    """What the machine must have, see tests/require.py."""
    options: Mapping[str, Any] = {}
    spec: Mapping[str, Any] = {}
    user: str | None = str(ORDINARY_USER)
    """Whom commands run as. Root may read and write any file, so that the checks of permissions want somebody else."""
    known: Mapping[str, str] = {}
    """Check to the reason why it cannot pass."""
    type: str | None = None
    """Of the environment, where it is not the name."""


BACKENDS = {
    "local": Backend("local"),
    "docker": Backend("docker", {"pull": "never"}, {"docker_image": DOCKER_IMAGE}),
    "ssh": Backend("ssh", options(8)),
    "ssh, mode host": Backend("ssh", options(18, mode="host"), type="ssh"),
    "apptainer": Backend(
        "apptainer", {"program": str(APPTAINER / "usr/bin/apptainer")}, {"docker_image": str(APPTAINER / "base.sif")}
    ),
}


@pytest_asyncio.fixture(params=BACKENDS)
async def sandbox_env(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RolloutSandbox]:
    kind: str = request.param
    backend_of = BACKENDS[kind]
    require(backend_of.component)
    if reason := backend_of.known.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    plugin = find("environments", backend_of.type or kind)
    decoded = decode_options(plugin, dict(backend_of.options), "options")
    context = BackendContext(job_id="inspect", work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=1)
    spec = EnvironmentSpec(task_name="checks", directory=None, digest="checks", workdir=WORKDIR)
    spec = msgspec.structs.replace(spec, labels={"rollout.job": "inspect"}, **backend_of.spec)
    backend = plugin.cls(decoded, context)
    backend.check(spec)
    try:
        environment = await backend.start(spec, await backend.prepare(spec))
        try:
            if backend_of.user is not None:
                own = await environment.exec(Command(argv=("chown", backend_of.user, WORKDIR), user="root"))
                assert own.exit_code == 0, own.stderr
            yield RolloutSandbox(environment, backend_of.user)
        finally:
            await environment.stop()
    finally:
        await backend.aclose()


for _check in CHECKS:
    globals()[_check] = getattr(self_check, _check)


def test_inspect_still_has_its_checks() -> None:
    assert len(CHECKS) >= 44
