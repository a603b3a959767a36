"""Images: each is prepared once per content hash and job, ahead of its trials, shared by them, and removed after the last."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from rollout.core.aio import Once
from rollout.core.errors import BuildError, BuildTimeoutError, RolloutError, TeardownError
from rollout.core.protocols import EnvironmentBackend
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.trial.output import PhaseOutput
from rollout.core.trial.redact import Redactor
from rollout.core.types import EnvironmentSpec

_AHEAD = 4
"""Images that may lie ready, or be made, before a trial asked for them: more would only fill the disk."""
_REMOVE_SEC = 300.0


class Images:
    """The images of one job on one backend."""

    def __init__(
        self,
        backend: EnvironmentBackend,
        *,
        force: bool,
        delete: bool,
        logs: Path,
        redactor: Redactor,
        users: Counter[str],
        at_once: int = 1,
    ) -> None:
        """`users`: how many trials still need the image of each environment digest. Build logs go to `logs/<digest>/`.
        `at_once`: how many images are made at the same time."""
        self._backend = backend
        self._force = force
        self._delete = delete
        self._logs = logs
        self._redactor = redactor
        self._users = users
        self._once: Once[str] = Once()
        self._building = asyncio.Semaphore(at_once)
        self._asked: set[str] = set()
        self._ahead: set[str] = set()
        self._caught_up = asyncio.Event()
        self.prepared: dict[str, str] = {}
        """Environment digest to the backend's image reference."""
        self._digests: defaultdict[str, set[str]] = defaultdict(set)
        self._derived: dict[str, list[str]] = {}

    async def prepare(self, spec: EnvironmentSpec, timeout_sec: float) -> str:
        """The image for `spec`: made by the first trial that asks while the others wait.

        A failed build is not repeated for every trial of the job, unless its error says that another try may help.

        Raises:
            BuildError and its kinds
        """
        self._asked.add(spec.digest)
        if spec.digest in self._ahead:
            self._ahead.discard(spec.digest)
            self._caught_up.set()
        try:
            return await self._once(spec.digest, lambda: self._prepare(spec, timeout_sec))
        except RolloutError as error:
            if error.retryable:
                self._once.forget(spec.digest)
            raise

    def forget(self, digest: str) -> None:
        """The image of `digest` is gone: the next `prepare` makes it again. Harmless while somebody does so already."""
        self._once.forget(digest)

    async def prepare_ahead(self, needed: Iterable[tuple[EnvironmentSpec, float]]) -> None:
        """Make images before a trial asks for them, in this order and never far ahead; what fails is told to those who ask.

        Cancelling the call ends the builds that no trial waits for.
        """
        making: set[asyncio.Task[None]] = set()
        try:
            for spec, timeout_sec in needed:
                if spec.digest in self._asked or spec.digest in self._ahead or not self._users[spec.digest]:
                    continue
                self._ahead.add(spec.digest)
                task = asyncio.ensure_future(self._make_ahead(spec, timeout_sec))
                making.add(task)
                task.add_done_callback(making.discard)
                while len(self._ahead) >= _AHEAD:
                    self._caught_up.clear()
                    await self._caught_up.wait()
            while making:
                await asyncio.wait(set(making))
        finally:
            for task in making:
                task.cancel()
            if making:
                await asyncio.wait(set(making))

    async def _make_ahead(self, spec: EnvironmentSpec, timeout_sec: float) -> None:
        with contextlib.suppress(RolloutError):  # kept, and raised for each trial that asks
            image = await self._once(spec.digest, lambda: self._prepare(spec, timeout_sec))
            if not self._users[spec.digest] and self._delete:  # all of its trials ended before they needed it
                await self.remove(image)

    def release(self, digest: str) -> str | None:
        """One trial is done with the image of `digest`; the image that is to be removed because this was its last user."""
        self._users[digest] -= 1
        if not self._users[digest] and digest in self._ahead:
            self._ahead.discard(digest)
            self._caught_up.set()
        if self._users[digest] > 0 or not self._delete or digest not in self.prepared:
            return None
        image = self.prepared[digest]
        used = any(self._users[other] > 0 for other in self._digests[image])
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
        self._digests[image].add(spec.digest)
        return image
