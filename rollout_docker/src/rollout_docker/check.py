"""What is said before a job starts: why a task cannot run on these engines, and what will not hold on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollout.core.errors import TaskError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout_docker.compose import compose_file_of, why_not
from rollout_docker.egress import needs_relay
from rollout_docker.engine import Engine
from rollout_docker.images import dockerfile_of
from rollout_docker.options import DockerOptions

_NO_NVIDIA = "the engine has no nvidia runtime; install nvidia-container-toolkit there, and `nvidia-ctk runtime configure`"
_MIN_MEMORY_BYTES = 6 * 1024**2


class Checks:
    """The checks of one job. Each warning is said once."""

    def __init__(self, options: DockerOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._warned: set[str] = set()
        self._looked_at: set[tuple[str, str]] = set()
        self._compose: tuple[str | None] | None = None  # why it cannot be used, once that is known

    def task(self, spec: EnvironmentSpec, engines: Sequence[Engine]) -> None:
        """
        Raises:
            TaskError: the task cannot run on any of these engines; the text says what is missing.
        """
        task = spec.task_name
        file = compose_file_of(spec)
        if file is not None and (missing := self._compose_missing()) is not None:
            raise TaskError(f"{task} has environment/{file.name}, and {missing}")
        if needs_relay(spec) or spec.later_networks:
            self._network(task, file, engines)
        if file is None and spec.docker_image is None and dockerfile_of(spec) is None:
            raise TaskError(f"{task} has no environment/Dockerfile and names no docker_image, and type: docker needs one of them")
        if spec.resources.gpus and not any("nvidia" in engine.runtimes for engine in engines):
            what = "Podman's API gives none" if all(engine.podman for engine in engines) else _NO_NVIDIA
            raise TaskError(f"{task} needs {spec.resources.gpus} GPUs: {what}")
        if (spec.resources.memory_bytes or _MIN_MEMORY_BYTES) < _MIN_MEMORY_BYTES:
            raise TaskError(f"{task} asks for {spec.resources.memory_bytes} bytes of memory; a container has at least 6Mi")
        for engine in engines:
            self._engine(engine)
            self._limits(engine, spec)
            if spec.docker_image is not None:
                self._platform(engine, spec.docker_image)

    def _network(self, task: str, file: Path | None, engines: Sequence[Engine]) -> None:
        asked = "a list of allowed hosts, or another network in each phase"
        if file is not None:
            raise TaskError(f"{task} has environment/{file.name} and asks for {asked}; that is for tasks of one container")
        if any(engine.podman for engine in engines):
            raise TaskError(f"{task} asks for {asked}, and Podman cannot be relied on for that; use a Docker engine")

    def _compose_missing(self) -> str | None:
        if self._compose is None:
            self._compose = (why_not(),)
        return self._compose[0]

    def _engine(self, engine: Engine) -> None:
        if engine.podman:
            self._warn(f"podman {engine.name}", f"type: docker: the engine at {engine.name} is Podman")
        wanted = self._options.platform
        if wanted is not None and not same_platform(wanted, engine.platform):
            self._warn(
                f"platform {engine.name}",
                f"type: docker: the engine is {engine.platform}, and `platform: {wanted}` runs there only by emulation (binfmt)",
            )

    def _platform(self, engine: Engine, image: str) -> None:
        """Look at an image that is there already; one that is fetched comes for the right platform, or not at all."""
        if (engine.name, image) in self._looked_at:
            return
        self._looked_at.add((engine.name, image))
        platform = engine.platform_of(image)
        if platform is not None and not same_platform(platform, self._options.platform or engine.platform):
            self._warn(
                f"image {image}",
                f"type: docker: the image {image} is for {platform} and the engine is {engine.platform}: it runs there only by "
                "emulation (binfmt); `pull: always` fetches the one for the engine's platform",
            )

    def _limits(self, engine: Engine, spec: EnvironmentSpec) -> None:
        resources = spec.resources
        if engine.missing_limits:
            self._warn("limits", f"type: docker: the engine cannot limit {', '.join(engine.missing_limits)} on this machine")
        if resources.storage_bytes is not None and not engine.storage_limits:
            self._warn("storage", "type: docker: limits of storage are not enforced; the engine's storage driver cannot")
        if engine.cpus and (resources.cpus or 0) > engine.cpus:
            self._warn(
                "cpus", f"type: docker: the engine has {engine.cpus} CPUs, and {spec.task_name} asks for {resources.cpus:g}"
            )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._context.warn(message)


def same_platform(one: str, other: str) -> bool:
    """Whether `os/architecture[/variant]` is the same of both, as far as both say."""
    return all(mine == yours for mine, yours in zip(one.split("/"), other.split("/"), strict=False))
