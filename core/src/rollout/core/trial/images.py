"""Images: each is prepared once per content hash and job, shared by its trials, and removed after its last user."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from rollout.core.aio import Once
from rollout.core.errors import BuildError, BuildTimeoutError, RolloutError, TeardownError
from rollout.core.protocols import EnvironmentBackend
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.trial.output import PhaseOutput
from rollout.core.trial.redact import Redactor
from rollout.core.types import EnvironmentSpec

CONCURRENT_BUILDS = 2
_REMOVE_SEC = 300.0


class Images:
    """The images of one job on one backend."""

    def __init__(
        self, backend: EnvironmentBackend, *, force: bool, delete: bool, logs: Path, redactor: Redactor, users: Counter[str]
    ) -> None:
        """`users`: how many trials still need the image of each environment digest. Build logs go to `logs/<digest>/`."""
        self._backend = backend
        self._force = force
        self._delete = delete
        self._logs = logs
        self._redactor = redactor
        self._users = users
        self._once: Once[str] = Once()
        self._building = asyncio.Semaphore(CONCURRENT_BUILDS)
        self.prepared: dict[str, str] = {}
        """Environment digest to the backend's image reference."""
        self._derived: dict[str, list[str]] = {}

    async def prepare(self, spec: EnvironmentSpec, timeout_sec: float) -> str:
        """The image for `spec`: made by the first trial that asks while the others wait.

        A failed build is not repeated for every trial of the job, unless its error says that another try may help.

        Raises:
            BuildError and its kinds
        """
        try:
            return await self._once(spec.digest, lambda: self._prepare(spec, timeout_sec))
        except RolloutError as error:
            if error.retryable:
                self._once.forget(spec.digest)
            raise

    def forget(self, digest: str) -> None:
        """The image of `digest` is gone: the next `prepare` makes it again. Harmless while somebody does so already."""
        self._once.forget(digest)

    def release(self, digest: str) -> str | None:
        """One trial is done with the image of `digest`; the image that is to be removed because this was its last user."""
        self._users[digest] -= 1
        if self._users[digest] > 0 or not self._delete or digest not in self.prepared:
            return None
        image = self.prepared[digest]
        used = any(other == image and self._users[key] > 0 for key, other in self.prepared.items())
        return None if used else image

    async def remove(self, image: str) -> None:
        """Remove an image that `release` returned, and before it those that were made from it.

        Raises:
            TeardownError
        """
        what = f"removing the image {image}"
        async with deadline(_REMOVE_SEC, TeardownError, what):
            with foreign(TeardownError, what):
                for derived in self._derived.pop(image, ()):
                    await self._backend.remove(derived)
                await self._backend.remove(image)

    def add_derived(self, image: str, derived: str) -> None:
        """Remember an image that was made from `image` and has the same users."""
        if derived not in self._derived.setdefault(image, []):
            self._derived[image].append(derived)

    async def _prepare(self, spec: EnvironmentSpec, timeout_sec: float) -> str:
        output = PhaseOutput(self._logs / spec.digest[:12], self._redactor)
        what = f"building the environment of task {spec.task_name}"
        try:
            async with self._building, deadline(timeout_sec, BuildTimeoutError, what):
                with foreign(BuildError, what, BuildTimeoutError):
                    image = await self._backend.prepare(spec, force=self._force, sink=output)
        finally:
            output.close()
        self.prepared[spec.digest] = image
        return image
