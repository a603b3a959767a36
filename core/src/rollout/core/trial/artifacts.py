"""Artifacts: what is kept of an agent's environment, on the host and in the environment of a separate verifier."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from rollout.core.errors import StoreError, TaskError, TransferError, VerifierError
from rollout.core.files import make_folder, storing, write_atomic
from rollout.core.protocols import Environment, ServicesEnvironment
from rollout.core.records import MAIN_SERVICE, MANIFEST, Artifact, to_json
from rollout.core.trial.isolation import host_place
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, Command, Struct

_MAX_SKIPPED = 20

_SYSTEM = ("/", "/dev", "/proc", "/sys", "/tests", "/logs", "/logs/verifier")
"""What no artifact of a separate verifier may replace."""

_SYSTEM_WORKDIRS = ("/bin", "/etc", "/home", "/lib", "/opt", "/root", "/sbin", "/tmp", "/usr", "/usr/bin", "/usr/local", "/var")
"""What is not taken as a whole for what an agent made."""

# $1: `merge` when what is there stays; $2: the path, which is the agent's in the end.
_MAKE_WAY = """
if [ "$1" = merge ] && [ -d "$2" ] && [ ! -L "$2" ]; then exit 0; fi
rm -rf -- "$2"
mkdir -p -- "$(dirname -- "$2")"
"""
_OPEN = 'chmod -R a+rX -- "$1"'


class KeptArtifact(Struct, frozen=True, kw_only=True):
    """One artifact: an item of `artifacts/manifest.json`."""

    source: str
    """Its absolute path in the environment."""
    destination: str
    """Where it is in `artifacts/`."""
    status: Literal["kept", "missing", "failed"]
    """missing: the agent's environment did not have it. failed: it could not be copied."""
    kind: Literal["file", "folder"] | None = None
    files: int = 0
    total_bytes: int = 0
    skipped_count: int = 0
    """How many entries were left out: links that lead out of it, devices, files beyond a limit."""
    skipped: tuple[tuple[str, str], ...] = ()
    """The first of them, each with the reason."""
    exclude: tuple[str, ...] = ()
    error: str | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """`artifacts/manifest.json`."""

    artifacts: list[KeptArtifact]


def service_of(environment: Environment, name: str) -> Environment:
    """The sandbox of one of the task's services.

    Raises:
        TransferError: the task has no such service.
    """
    if name == MAIN_SERVICE:
        return environment
    others = environment.services() if isinstance(environment, ServicesEnvironment) else ()
    if isinstance(environment, ServicesEnvironment) and name in others:
        return environment.service(name)
    raise TransferError(f"the task has no service {name!r}; it has {', '.join((MAIN_SERVICE, *others))}")


async def working_directory(environment: Environment, workdir: str | None) -> str:
    """The absolute path of the working directory.

    Raises:
        TransferError: there is none.
    """
    result = await environment.exec(Command(argv=("pwd", "-P"), cwd=workdir))
    path = result.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
    if result.exit_code != 0 or not path.startswith("/"):
        raise TransferError(f"the working directory cannot be found: `pwd` exited with code {result.exit_code}")
    return path


def check_default_artifact(workdir: str) -> None:
    """See that the working directory can be what a separate verifier gets of a task that names no artifacts.

    Raises:
        TaskError: it is one of the system's: what its files say is what programs of the verifier do.
    """
    if workdir in _SYSTEM or workdir in _SYSTEM_WORKDIRS or workdir.startswith(("/etc/", "/proc/", "/sys/", "/dev/")):
        raise TaskError(f"a separate verifier would get the whole of {workdir}; name the task's `artifacts`, or a `workdir`")


async def programs_brought(environment: Environment, kept: Sequence[KeptArtifact]) -> list[str]:
    """Folders of PATH that came from the agent.

    Raises:
        EnvironmentLostError
    """
    result = await environment.exec(Command(argv=("sh", "-c", 'printf %s "$PATH"'), cwd="/"))
    folders = [posixpath.normpath(path) for path in result.stdout.decode("utf-8", "replace").split(":") if path.startswith("/")]
    brought = [item.source for item in kept if item.status == "kept"]
    return [path for path in folders if any(path == source or path.startswith(f"{source}/") for source in brought)]


async def keep_artifacts(
    environment: Environment, artifacts: Sequence[Artifact], folder: Path, workdir: str
) -> list[KeptArtifact]:
    """Copy artifacts to `folder` on the host and write its manifest. What is missing or cannot be copied is in the manifest.

    Raises:
        StoreError: the manifest cannot be written.
        EnvironmentLostError
    """
    kept = [await _keep(environment, artifact, folder, workdir) for artifact in artifacts]
    make_folder(folder)
    write_atomic(folder / MANIFEST, to_json(Manifest(artifacts=kept)))
    return kept


def read_manifest(folder: Path) -> list[KeptArtifact]:
    """The manifest of a trial's `artifacts/`; empty when there is none that can be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest).artifacts
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return []


async def bring_artifacts(
    environment: Environment, kept: Sequence[KeptArtifact], folder: Path, *, root: str | None, owner: str | None
) -> None:
    """Put artifacts where they were, in another environment; what the agent's did not have is removed there too.

    Everybody may read them, and they belong to `owner`, who is not the verifier: programs like git refuse to run what
    somebody else's files say.

    Raises:
        VerifierError: one was not kept, or takes a place that is not the agent's.
        TransferError, EnvironmentLostError
    """
    for artifact in kept:
        source = artifact.source
        if source in _SYSTEM or source.startswith(("/dev/", "/proc/", "/sys/", "/tests/", "/logs/verifier/")):
            raise VerifierError(f"{source} cannot be brought to a separate verifier; name what is needed of it in `artifacts`")
        if artifact.status == "failed":
            raise VerifierError(f"{source} is missing for the verifier: {artifact.error}")
        merge = "merge" if artifact.exclude else ""
        await _shell(environment, _MAKE_WAY, (merge, source), root)
        if artifact.status == "kept":
            await environment.upload(folder / artifact.destination, source, owner=owner)
            await _shell(environment, _OPEN, (source,), root)


async def _keep(environment: Environment, artifact: Artifact, folder: Path, workdir: str) -> KeptArtifact:
    source = posixpath.normpath(posixpath.join(workdir, artifact.source))
    destination = host_place(artifact.destination or source)
    target = folder / destination
    item = KeptArtifact(source=source, destination=destination, status="missing", exclude=tuple(artifact.exclude))
    limits = DEFAULT_TRANSFER_LIMITS
    if artifact.exclude:
        limits = replace(limits, exclude=tuple(artifact.exclude))
    try:
        with storing(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
    except StoreError as error:
        # An artifact before it may have brought a file, or a link to nowhere, where this one needs a folder.
        if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
            return replace(item, status="failed", error=f"what another artifact brought is in the way of {destination}")
        raise
    try:
        report = await service_of(environment, artifact.service).download(source, target, limits)
    except FileNotFoundError:
        return item
    except TransferError as error:
        return replace(item, status="failed", error=str(error))
    return replace(
        item,
        status="kept" if target.exists() else "failed",
        error=None if target.exists() else (report.skipped[0][1] if report.skipped else "nothing could be copied"),
        kind="folder" if target.is_dir() else "file",
        files=report.files,
        total_bytes=report.total_bytes,
        skipped=report.skipped[:_MAX_SKIPPED],
        skipped_count=report.skipped_count,
    )


async def _shell(environment: Environment, script: str, arguments: tuple[str, ...], root: str | None) -> None:
    command = Command(argv=("sh", "-c", script, "sh", *arguments), cwd="/", user=root)
    result = await environment.exec(command)
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise TransferError(f"bringing artifacts to the verifier: {said[-1] if said else f'exit code {result.exit_code}'}")
