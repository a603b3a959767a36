"""Agents' installed states: each is made once per image, and its trials start from it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from rollout.core.aio import Once, run_shielded
from rollout.core.errors import AgentInstallError, AgentInstallTimeoutError, StartError
from rollout.core.protocols import SNAPSHOT, Agent, Environment, EnvironmentBackend, SnapshotBackend
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.trial.images import Images
from rollout.core.trial.isolation import Walls
from rollout.core.trial.output import PhaseOutput
from rollout.core.trial.paths import LOGS
from rollout.core.trial.redact import Redactor
from rollout.core.types import EnvironmentSpec, OutputSink

logger = logging.getLogger(__name__)

MakeAgent = Callable[[Environment, Path, OutputSink], Agent]
"""Constructs the agent for an environment; its records go to the folder, its output to the sink."""


@dataclass(frozen=True)
class SharedInstall:
    """What is to be installed, where, and how its agent is constructed."""

    agent: str
    """The agent's name in the job."""
    made_of: str
    """What `Agent.shared_install` says."""
    withheld: frozenset[str]
    """Variables that the installer does not see."""
    environment: EnvironmentSpec
    """Without the variables that are withheld; the others are expanded."""
    env: Mapping[str, str]
    """The agent's own variables, likewise."""
    user: str | None
    root_user: str | None
    admit: bool
    """The user is the agent's own: it is made where the image has none, and owns the working directory."""
    timeout_sec: float
    make: MakeAgent

    def key(self) -> str:
        spec = self.environment
        parts = [
            self.made_of,
            self.user,
            self.admit,
            spec.workdir,
            sorted(spec.env.items()),
            sorted(self.env.items()),
            spec.network,
            spec.allowed_hosts,
        ]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


class Installs:
    """The installed states of one job on one backend."""

    def __init__(self, backend: EnvironmentBackend, images: Images, *, force: bool, logs: Path, redactor: Redactor) -> None:
        """`force`: make anew what an earlier job made. Logs go to `logs/<agent>-<key>/`."""
        self._backend = backend if SNAPSHOT in backend.capabilities else None
        self._images = images
        self._force = force
        self._logs = logs
        self._redactor = redactor
        self._once: Once[str | None] = Once(keep_errors=False)
        self._unshared: set[tuple[str, str]] = set()
        self._keys: dict[str, set[str]] = {}
        self.possible = self._backend is not None

    async def image(self, image: str, wanted: SharedInstall) -> str | None:
        """`image` with the agent installed: made by the first trial that asks while the others wait. A failure is not kept.

        None: it has to be installed in each trial; the backend cannot keep this image, or it needs variables that are
        withheld.

        Raises:
            AgentInstallError and its kinds, StartError
        """
        key = wanted.key()
        if self._backend is None or (image, key) in self._unshared:
            return None
        self._keys.setdefault(image, set()).add(key)
        try:
            return await self._once((image, key), lambda: self._make(image, key, wanted))
        except AgentInstallError as error:
            if not wanted.withheld:
                raise
            # It may be for want of what was withheld. If it is not, the installation in the trial fails as well.
            self._unshared.add((image, key))
            logger.info("agent %s is installed in each trial: %s", wanted.agent, error)
            return None

    def forget(self, image: str) -> None:
        """What was made from `image` may be gone: it is looked for, and made again if need be, when it is next wanted."""
        for key in self._keys.pop(image, ()):
            self._once.forget((image, key))

    async def _make(self, image: str, key: str, wanted: SharedInstall) -> str | None:
        folder = self._logs / f"{wanted.agent}-{key[:12]}"

        async def install(environment: Environment) -> None:
            output = PhaseOutput(folder / "setup", self._redactor)
            walls = Walls(environment, root=wanted.root_user, agent_user=wanted.user if wanted.admit else None)
            try:
                await walls.set_up(b"")
                if wanted.admit:
                    await walls.admit_agent(wanted.environment.workdir, logger.info)
                with foreign(AgentInstallError, "installing the agent", AgentInstallTimeoutError):
                    async with deadline(wanted.timeout_sec, AgentInstallTimeoutError, "installing the agent"):
                        await wanted.make(environment, folder, output).install()
                await environment.download(LOGS, folder / "logs")
                await walls.forget()
            finally:
                output.close()
                await run_shielded(self._redact(folder))

        backend = cast(SnapshotBackend, self._backend)
        with foreign(StartError, "keeping the installed agent"):
            made = await backend.snapshot(wanted.environment, image, key, install, force=self._force)
        if made is not None:
            self._images.add_derived(image, made)
        return made

    async def _redact(self, folder: Path) -> None:
        self._redactor.tree(folder)
