"""Images: built from a task's `environment/` folder or pulled, once per content."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import docker.auth
from docker.utils.build import exclude_paths

from rollout.core.aio import Blocking
from rollout.core.archive import pack
from rollout.core.errors import BuildError, ImagePullError, StartError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_docker.engine import Engine, Refused, Unreachable
from rollout_docker.options import DockerOptions
from rollout_docker.program import client_environ, run_program

_TAIL_LINES = 20
_SPOOLED_BYTES = 4 * 1024 * 1024
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_BUILDKIT = re.compile(
    r"^\s*(?:RUN\s+--(?:mount|network|security)\b|(?:COPY|ADD)\s+(?:--\S+\s+)*--(?:chmod|link|parents|exclude|checksum)\b"
    r"|(?:RUN|COPY|ADD)\b[^\n]*?<<-?[\"']?[A-Za-z_]+[\"']?(?:\s+\S+)?\s*$)",
    re.MULTILINE | re.IGNORECASE,
)
_NO_BASE = re.compile(
    r"pull access denied|manifest unknown|not found|no such host|dial tcp|TLS handshake|timeout|connection refused"
)


class Images:
    """The images that one job needs of one engine."""

    def __init__(self, engine: Engine, blocking: Blocking, options: DockerOptions, context: BackendContext) -> None:
        self._engine = engine
        self._blocking = blocking
        self._options = options
        self._pull = "never" if context.offline else options.pull
        self._job_id = context.job_id
        self._resolved = context.resolved
        self._made: set[str] = set()
        self._pinned: dict[str, str] = {}

    async def prepare(self, spec: EnvironmentSpec, *, force: bool, sink: OutputSink | None, pinned: str | None = None) -> str:
        """Make or fetch the image of a task. `pinned`: what is fetched instead of `docker_image`.

        Raises:
            BuildError, ImagePullError
        """
        dockerfile = dockerfile_of(spec)
        try:
            if spec.docker_image is not None and not (force and dockerfile is not None):
                return await self._pulled(pinned or spec.docker_image, sink)
            if dockerfile is None:
                raise BuildError(f"task {spec.task_name} has no environment/Dockerfile and names no image")
            tag = self.tag(spec)
            old = await self.inspect(tag)
            if force or old is None:
                if needs_buildkit(dockerfile.read_text("utf-8", "replace")):
                    await self._build_by_buildkit(spec, dockerfile, tag, force=force, sink=sink)
                else:
                    await self._build(spec, dockerfile, tag, force=force, sink=sink)
                self._made.add(tag)
                new = await self.inspect(tag) if old is not None else None
                if old is not None and new is not None and old["Id"] != new["Id"]:
                    await self._delete(old["Id"])
            await self._record(tag)
            return tag
        except (Refused, Unreachable) as error:
            raise BuildError(f"the image of task {spec.task_name} cannot be made: {error}") from error

    async def inspect(self, image: str) -> dict[str, Any] | None:
        """What the engine knows of an image, or None."""
        try:
            found = await self._engine.call("GET", f"/images/{image}/json")
        except Refused as error:
            if error.status == 404:
                return None
            raise
        return dict(found)

    def pinned(self, image: str) -> str | None:
        """The name and digest in its registry of an image that was fetched, if it has one."""
        return self._pinned.get(image)

    async def _record(self, tag: str) -> None:
        found = await self.inspect(tag)
        if found is not None:
            self._resolved(tag, found["Id"])

    async def snapshot_tag(self, image: str, key: str) -> str:
        """The name that a snapshot of this key on the present content of `image` has.

        Raises:
            StartError: the image is gone.
        """
        found = await self.inspect(image)
        if found is None:
            raise StartError(f"the image {image} is gone")
        identity = f"snapshot {found['Id']} {key}"
        return f"rollout/{hashlib.sha256(identity.encode()).hexdigest()[:40]}:latest"

    async def commit(self, container: str, tag: str, image: str) -> None:
        """Keep a container's files as the image `tag`, which says the same of its processes as `image` does.

        Raises:
            StartError
        """
        config = dict((await self.inspect(image) or {}).get("Config") or {})
        config["Labels"] = {**(config.get("Labels") or {}), "rollout.job": self._job_id}
        repository, _, version = tag.rpartition(":")
        pause = not (self._engine.podman and self._engine.rootless)  # which cannot without control groups of version 2
        query = {"container": container, "repo": repository, "tag": version, "comment": "rollout", "pause": int(pause)}
        try:
            await self._engine.call("POST", "/commit", config, query)
        except (Refused, Unreachable) as error:
            raise StartError(f"the engine does not keep the installed agent: {error}") from error
        self._made.add(tag)

    async def remove(self, image: str) -> None:
        """Remove an image that this job built and that nobody else uses."""
        if image in self._made or await self._was_made(image):
            self._made.discard(image)
            await self._delete(image)

    async def reap(self, job_id: str) -> list[str]:
        """Remove the images that a dead job built, by their label; their names."""
        removed: list[str] = []
        query = {"filters": json.dumps({"label": [f"rollout.job={job_id}"]})}
        for found in await self._engine.call("GET", "/images/json", query=query):
            names = [tag for tag in found.get("RepoTags") or [] if tag != "<none>:<none>"] or [found["Id"]]
            removed += [name for name in names if await self._delete(name)]
        return removed

    async def _was_made(self, image: str) -> bool:
        """Whether an earlier run of this job built the image, and was killed before it could remove it."""
        found = await self.inspect(image)
        labels = (found or {}).get("Config", {}).get("Labels") or {}
        return bool(labels.get("rollout.job") == self._job_id)

    async def _delete(self, image: str) -> bool:
        """Whether it was there and nobody uses it."""
        try:
            await self._engine.call("DELETE", f"/images/{image}")
        except Refused as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    def made(self, image: str) -> None:
        """Remember an image that was built for this job."""
        self._made.add(image)

    def tag(self, spec: EnvironmentSpec) -> str:
        """The name that what is built of `spec` has."""
        options = self._options
        parts = [spec.digest]
        if options.build_args or options.target or options.platform:
            parts.append(json.dumps([sorted(options.build_args.items()), options.target, options.platform]))
        return f"rollout/{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:40]}:latest"

    async def fetch(self, name: str, sink: OutputSink | None) -> str:
        """An image by its name, fetched when it is not here; a reference to its present content.

        Raises:
            ImagePullError
        """
        try:
            return await self._pulled(name, sink)
        except (Refused, Unreachable) as error:
            raise ImagePullError(f"the image {name} cannot be fetched: {error}") from error

    async def _pulled(self, name: str, sink: OutputSink | None) -> str:
        found = await self.inspect(name) if self._pull != "always" else None
        if found is None and self._pull == "never":
            raise ImagePullError(f"the image {name} is not here, and may not be fetched (pull: never, or offline)")
        if found is None:
            reference = name if ":" in name.rsplit("/", 1)[-1] or "@" in name else f"{name}:latest"
            query = {"fromImage": reference, **self._platform()}
            lines = self._engine.lines("POST", "/images/create", query, headers=await self._blocking(_pull_auth, name))
            try:
                async with contextlib.aclosing(lines):
                    async for line in lines:
                        if "error" in line:
                            raise ImagePullError(f"the image {name} cannot be fetched: {line['error']}")
                        if sink is not None and "progressDetail" not in line:
                            sink("stdout", f"{line.get('id', '')} {line.get('status', '')}\n".lstrip().encode())
            except Refused as error:
                raise ImagePullError(f"the image {name} cannot be fetched: {error}") from error
            found = await self.inspect(name)
            if found is None:
                raise ImagePullError(f"the image {name} was fetched and is not there")
        image = str(found["Id"])
        pinned = _of_registry(name, found.get("RepoDigests") or [])
        if pinned is not None:
            self._pinned[image] = pinned
        self._resolved(image, pinned or name)
        return image

    async def _build_by_buildkit(
        self, spec: EnvironmentSpec, dockerfile: Path, tag: str, *, force: bool, sink: OutputSink | None
    ) -> None:
        options, program = self._options, shutil.which("docker")
        if program is None:
            raise BuildError(
                f"the Dockerfile of task {spec.task_name} needs BuildKit, and so the docker command, which is not here"
            )
        argv = [
            program,
            "build",
            "--progress=plain",
            "--tag",
            tag,
            *(f"--label={key}={value}" for key, value in self.labels(spec).items()),
        ]
        argv += [f"--build-arg={name}" for name in options.build_args]  # their values come from the variables
        argv += ["--no-cache"] if force else []
        argv += ["--pull"] if self._pull == "always" else []
        for name, value in (("target", options.target), ("platform", options.platform), ("network", options.network)):
            argv += [f"--{name}={value}"] if value else []
        environ = {**client_environ(self._engine), **options.build_args, "DOCKER_BUILDKIT": "1"}
        code, said = await run_program([*argv, str(dockerfile.parent)], environ, sink=sink)
        if code != 0:
            raise BuildError(f"the image of task {spec.task_name} cannot be built by BuildKit: {said}")

    def labels(self, spec: EnvironmentSpec) -> dict[str, str]:
        """What every image has that is built here."""
        return {"rollout.environment": spec.digest, "rollout.job": self._job_id}

    async def _build(self, spec: EnvironmentSpec, dockerfile: Path, tag: str, *, force: bool, sink: OutputSink | None) -> None:
        options = self._options
        query: dict[str, Any] = {
            "t": tag,
            "dockerfile": dockerfile.name,
            "rm": 1,
            "forcerm": 1,
            "nocache": int(force),
            "pull": int(self._pull == "always"),
            "buildargs": json.dumps(options.build_args),
            "labels": json.dumps(self.labels(spec)),
            **self._platform(),
        }
        if options.target is not None:
            query["target"] = options.target
        if options.network is not None:
            query["networkmode"] = options.network
        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as context:
            await self._blocking(_pack_context, dockerfile.parent, dockerfile.name, context)
            headers = {"Content-Type": "application/x-tar", **await self._blocking(_build_auth)}
            lines = self._engine.lines("POST", "/build", query, file=context, headers=headers)
            async with contextlib.aclosing(lines):
                await _follow(lines, spec.task_name, sink)

    def _platform(self) -> dict[str, str]:
        return {"platform": self._options.platform} if self._options.platform else {}


async def _follow(lines: AsyncIterator[Any], task: str, sink: OutputSink | None) -> None:
    """Pass on a build's log; raise what it says in the end."""
    step, tail = "", deque[str](maxlen=_TAIL_LINES)
    async for line in lines:
        text = line.get("stream", "")
        if text.startswith("Step "):
            step = text.strip()
            tail.clear()
        elif not text.startswith((" --->", "Removing intermediate")):
            tail.extend(part for part in _COLOURS.sub("", text).splitlines() if part.strip())
        if text and sink is not None:
            sink("stdout", text.encode())
        if "error" in line:
            if sink is not None:
                sink("stderr", f"{line['error']}\n".encode())
            quoted = "".join(f"\n    {part}" for part in tail)
            kind = ImagePullError if " FROM " in step and _NO_BASE.search(line["error"]) else BuildError
            raise kind(
                f"the image of task {task} cannot be built: {step or 'before the first step'}: {line['error'].strip()}{quoted}"
            )
    await asyncio.sleep(0)


def needs_buildkit(dockerfile: str) -> bool:
    """Whether a Dockerfile has what the classic builder cannot read."""
    return _BUILDKIT.search(dockerfile) is not None


def dockerfile_of(spec: EnvironmentSpec) -> Path | None:
    """The task's Dockerfile, if it has one."""
    if spec.directory is None:
        return None
    path = Path(spec.directory, "Dockerfile")
    return path if path.is_file() else None


def _pack_context(folder: Path, dockerfile: str, out: Any) -> None:
    ignored = folder / ".dockerignore"
    if not ignored.is_file():
        pack(folder, out, name=".")
        return
    lines = (line.strip() for line in ignored.read_text("utf-8", "replace").splitlines())
    patterns = [line for line in lines if line and not line.startswith("#")]
    kept = set(exclude_paths(str(folder), patterns, dockerfile=dockerfile))
    for path in list(kept):
        kept.update(str(parent) for parent in Path(path).parents)
    pack(folder, out, name=".", keep=kept.__contains__)


def _of_registry(name: str, digests: Sequence[str]) -> str | None:
    """Of the names and digests by which registries know an image, the one of the registry that `name` names."""
    wanted = docker.auth.resolve_repository_name(name.partition("@")[0])
    repository = _without_tag(wanted[1])
    for digest in digests:
        registry, rest = docker.auth.resolve_repository_name(digest.partition("@")[0])
        if registry == wanted[0] and rest.removeprefix("library/") == repository.removeprefix("library/"):
            return digest
    return None


def _without_tag(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def _pull_auth(name: str) -> dict[str, str]:
    registry, _ = docker.auth.resolve_repository_name(name.split("@")[0])
    config = docker.auth.resolve_authconfig(docker.auth.load_config(), registry)
    return {"X-Registry-Auth": _header(config)} if config else {}


def _build_auth() -> dict[str, str]:
    credentials = docker.auth.load_config().get_all_credentials()  # type: ignore[no-untyped-call]
    return {"X-Registry-Config": _header(credentials)} if credentials else {}


def _header(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
