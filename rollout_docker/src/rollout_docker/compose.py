"""Tasks of several services: `environment/docker-compose.yaml`, a project per trial.

The compose command brings the project up and down; everything on its service `main` goes through the engine's API. A task's file
is read between two of ours: one with what `main` is when the task does not say, one with what holds whatever it says.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.core.errors import BuildError, SandboxError, StartError, TeardownError
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_docker.command import Container
from rollout_docker.engine import Engine, Refused
from rollout_docker.environment import remove_container
from rollout_docker.program import client_environ, run_program

MAIN = "main"
NAMES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_DOWN_TIMEOUT_SEC = 120.0
_LATE_SEC = 1.0


def compose_file_of(spec: EnvironmentSpec) -> Path | None:
    """The task's compose file, if it has one."""
    if spec.directory is None:
        return None
    return next((path for name in NAMES if (path := Path(spec.directory, name)).is_file()), None)


def why_not() -> str | None:
    """Why compose cannot be used on this machine; None when it can. Runs a program."""
    program = shutil.which("docker")
    if program is None:
        return "the docker command is not installed"
    done = subprocess.run([program, "compose", "version"], capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode == 0 else "the docker command has no `compose` (docker-compose-plugin)"


def service_image(tag: str, service: str) -> str:
    """The name of the image that is built for a service; `tag` is the task's own, `rollout/<hash>:latest`."""
    return f"{tag.partition(':')[0]}-{service.lower()}:latest"


class Project:
    """The services of one trial. Its name begins with `rollout-<job>-`, by which a dead job's are found."""

    def __init__(self, engine: Engine, name: str, spec: EnvironmentSpec, image: str, folder: Path) -> None:
        """`image`: what `main` runs when the task's file does not say. `folder`: the project's own, on this machine."""
        file = compose_file_of(spec)
        assert file is not None
        self._engine = engine
        self._spec = spec
        self._name = name
        self._image = image
        self._folder = folder
        self._first = folder / "first.json"
        self._last = folder / "last.json"
        self._files = [self._first, file]

    async def read(self) -> dict[str, Any]:
        """The task's services as compose understands them.

        Raises:
            BuildError: it does not.
        """
        self._write_first()
        code, said = await self._run("config", "--format", "json", "--no-path-resolution")
        if code != 0:
            raise BuildError(f"{self._files[1].name} of task {self._spec.task_name} cannot be read: {said}")
        return dict(json.loads(said))

    def _write_first(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for part in ("verifier", "agent", "artifacts"):
            (self._folder / part).mkdir(exist_ok=True)
            (self._folder / part).chmod(0o777)
        main = {"image": self._image, "command": ["/bin/sh", "-c", "read _"], "stdin_open": True, "init": True}
        self._first.write_text(json.dumps({"services": {MAIN: main}}))

    async def build(
        self, config: Mapping[str, Any], tag: str, labels: Mapping[str, str], *, force: bool, sink: OutputSink | None
    ) -> None:
        """Build the services that say how, each under a name shared by all trials and with these labels.

        Raises:
            BuildError
        """
        built = built_services(config)
        if built:
            self._write_last(config, tag, {}, labels)
            code, said = await self._run("build", *(["--no-cache"] if force else []), *built, sink=sink)
            if code != 0:
                raise BuildError(f"the services of task {self._spec.task_name} cannot be built: {said}")

    async def up(self, config: Mapping[str, Any], tag: str, main: Mapping[str, Any]) -> dict[str, Container]:
        """Start everything and wait until it is healthy; the container of each service, `main` first.

        Raises:
            StartError
        """
        self._write_first()
        self._write_last(config, tag, main)
        code, said = await self._run("up", "--detach", "--wait", "--no-build", "--quiet-pull")
        if code != 0:
            raise StartError(f"the services of task {self._spec.task_name} do not start: {said}")
        query = {"filters": json.dumps({"label": [f"{_PROJECT}={self._name}"]})}
        found = {each["Labels"][_SERVICE]: each for each in await self._engine.call("GET", "/containers/json", query=query)}
        if MAIN not in found:
            raise StartError(f"the service {MAIN} of task {self._spec.task_name} is not running")
        containers = {}
        for service in sorted(found, key=lambda name: (name != MAIN, name)):
            details = await self._engine.call("GET", f"/containers/{found[service]['Id']}/json")
            workdir = details["Config"].get("WorkingDir") or "/"
            if service == MAIN and self._spec.workdir:
                workdir = self._spec.workdir
            containers[service] = Container(self._engine, details["Id"], details["Name"].lstrip("/"), workdir)
        return containers

    async def abandon(self) -> None:
        """`down` after an `up` that was cut off: what the engine was making then may appear a moment later."""
        await self.down()
        await asyncio.sleep(_LATE_SEC)
        await self.down()

    async def down(self) -> None:
        """Kill and remove everything that the project has.

        Raises:
            TeardownError
        """
        try:
            async with asyncio.timeout(_DOWN_TIMEOUT_SEC):
                await remove_projects(self._engine, self._name, exact=True)
        except (SandboxError, TimeoutError) as error:
            raise TeardownError(f"the services {self._name} cannot be removed: {error or 'the engine takes too long'}") from error

    def _write_last(
        self, config: Mapping[str, Any], tag: str, main: Mapping[str, Any], labels: Mapping[str, str] | None = None
    ) -> None:
        services: dict[str, Any] = {name: {"image": service_image(tag, name)} for name in built_services(config)}
        for service in services.values():
            service.update({"build": {"labels": dict(labels)}} if labels else {})
        services[MAIN] = {**services.get(MAIN, {}), **main}
        document: dict[str, Any] = {"services": services}
        if self._spec.network == "none":
            document["networks"] = {name: {"internal": True} for name in config.get("networks") or {"default": None}}
        self._last.write_text(json.dumps(document))
        self._files = [*self._files[:2], self._last]

    async def _run(self, *arguments: str, sink: OutputSink | None = None) -> tuple[int, str]:
        """Run compose to its end; its exit code, and its output or what it complained about."""
        files = [word for file in self._files for word in ("--file", str(file))]
        program, directory = shutil.which("docker") or "docker", str(self._spec.directory)
        argv = [program, "compose", "--project-name", self._name, "--project-directory", directory, *files]
        return await run_program([*argv, *arguments], self._environ(), sink=sink)

    def _environ(self) -> dict[str, str]:
        """What `${NAME}` in the task's file may stand for: Harbor's names and the task's own variables, not the user's."""
        spec = self._spec
        logs = {
            f"{side}_{part.upper()}{suffix}": path
            for part, suffix in (("verifier", "_LOGS_PATH"), ("agent", "_LOGS_PATH"), ("artifacts", "_PATH"))
            for side, path in (("HOST", str(self._folder / part)), ("ENV", f"/logs/{part}"))
        }
        return {
            **client_environ(self._engine),
            **spec.env,
            **logs,
            "CONTEXT_DIR": str(spec.directory),
            "MAIN_IMAGE_NAME": self._image,
            "PREBUILT_IMAGE_NAME": spec.docker_image or "",
            "TEST_DIR": "/tests",
            "CPUS": f"{spec.resources.cpus or 0:g}",
            "MEMORY": str(spec.resources.memory_bytes or 0),
        }


def built_services(config: Mapping[str, Any]) -> list[str]:
    """The services that say how they are built; of `main` only one that does it another way than we do."""
    found = []
    for name, service in config["services"].items():
        build = service.get("build")
        if build is None or (name == MAIN and _is_plain(build)):
            continue
        found.append(name)
    return found


def _is_plain(build: Mapping[str, Any]) -> bool:
    """Whether it is what happens to `environment/Dockerfile` anyway."""
    if set(build) - {"context", "dockerfile"}:
        return False
    return bool(posixpath.normpath(build.get("context", ".")) == "." and build.get("dockerfile", "Dockerfile") == "Dockerfile")


async def remove_projects(engine: Engine, prefix: str, *, exact: bool = False) -> Sequence[str]:
    """Remove containers, networks and volumes of all projects of that name or prefix; what was removed, a line each.

    Raises:
        SandboxError
    """
    removed = []
    query = {"filters": json.dumps({"label": [f"{_PROJECT}={prefix}" if exact else _PROJECT]})}

    def ours(labels: Mapping[str, str] | None) -> bool:
        project = (labels or {}).get(_PROJECT, "")
        return project == prefix if exact else project.startswith(prefix)

    for found in await engine.call("GET", "/containers/json", query={**query, "all": 1}):
        if ours(found.get("Labels")):
            await remove_container(Container(engine, found["Id"], found["Id"], "/"))
            removed.append(f"container {found['Names'][0].lstrip('/')}")
    for found in await engine.call("GET", "/networks", query=query):
        if ours(found.get("Labels")) and await _removed(engine, f"/networks/{found['Id']}"):
            removed.append(f"network {found['Name']}")
    for found in (await engine.call("GET", "/volumes", query=query)).get("Volumes") or []:
        if ours(found.get("Labels")) and await _removed(engine, f"/volumes/{found['Name']}"):
            removed.append(f"volume {found['Name']}")
    return removed


async def _removed(engine: Engine, path: str) -> bool:
    try:
        await engine.call("DELETE", path)
    except Refused as error:
        if error.status != 404:
            raise
        return False
    return True
