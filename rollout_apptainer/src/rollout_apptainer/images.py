"""Images: found, fetched, or built from a definition file or a Dockerfile; each once per content."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rollout.core.aio import Blocking, Once, run_shielded
from rollout.core.errors import BuildError, ImagePullError, SandboxError, StartError
from rollout.core.protocols import Environment
from rollout.core.sandbox.build import ImageState, run_steps
from rollout.core.sandbox.inside.accounts import subordinate_ids
from rollout.core.sandbox.inside.monitor import image_variables
from rollout.core.sandbox.layers import ImageConfig
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_apptainer import namespaces, sif
from rollout_apptainer.cache import ImageCache
from rollout_apptainer.instance import Instances, Wanted
from rollout_apptainer.program import Program, complaint
from rollout_apptainer.sources import Finder, Image

ROOT_IDS = "a line `root:1000000:65536` in /etc/subuid and in /etc/subgid, and newuidmap"
_LACKING = re.compile("Requesting capability set")
_AGAIN = "run the job again to have it made anew"
_FORMAT = "1"
# Quick to make and readable everywhere; a higher level takes several times as long for a few percent.
_SQUASH = ("-comp", "gzip", "-Xcompression-level", "1")
_JSON = "3"
_SYSTEM = ("--datatype", "4", "--partfs", "1", "--parttype", "2")
_MACHINES = {"x86_64": "2", "aarch64": "4", "ppc64le": "6", "s390x": "11", "riscv64": "12"}
_BUILD_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class _ChangeError(Exception):
    """What somebody else's change of an image raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Images:
    """The images of one job."""

    def __init__(
        self,
        program: Program,
        blocking: Blocking,
        cache: ImageCache,
        finder: Finder,
        instances: Instances,
        *,
        scratch: Callable[[str], Path],
        privileges: tuple[str, ...],
        owners: str,
        name: Callable[[], str],
        isolation: Sequence[str],
    ) -> None:
        """`scratch`: makes a folder on this machine's disk. `privileges`: arguments for instances and builds. `owners`: whom the
        files of images that are built here can belong to. `name`: a new name for an instance. `isolation`: arguments that keep an
        instance to itself."""
        self._program = program
        self._blocking = blocking
        self._cache = cache
        self._finder = finder
        self._instances = instances
        self._scratch = scratch
        self._privileges = privileges
        self._owners = owners
        self._name = name
        self._isolation = tuple(isolation)
        self._configs: Once[ImageConfig] = Once(keep_errors=False)
        self._fetched: Once[Path] = Once(keep_errors=False)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool, sink: OutputSink | None) -> str:
        """The path of the task's image.

        Raises:
            BuildError, ImagePullError
        """
        source = self._finder.source(spec)
        if source.image is not None:
            return str(await self._image(source.image, force, sink))
        if source.definition is not None:
            definition = source.definition
            key = _key("definition", spec.digest, os.uname().machine, self._owners)
            return str(await self._cache.get(key, lambda part: self._define(part, definition, sink), force=force))
        assert source.recipe is not None and source.base is not None
        recipe = source.recipe
        found = self._finder.image(source.base, str(recipe.path), recipe.path.parent)
        base = await self._image(found, False, sink)
        key = _key("dockerfile", spec.digest, recipe.text, await self._blocking(_identity, base), self._owners)
        return str(await self._cache.get(key, lambda part: self._carry_out(part, spec, base, sink), force=force))

    async def config(self, image: str) -> ImageConfig:
        """What an image says about the processes that run on it.

        Raises:
            StartError: it is not there any more, or not whole.
        """
        return await self._configs(image, lambda: self._read_config(Path(image)))

    def forget(self, image: str) -> None:
        self._configs.forget(image)

    async def check(self, image: str) -> None:
        """Raises StartError when an image is gone or not whole."""
        path = Path(image)
        if path.is_dir():
            return
        try:
            await self._blocking(sif.read, path)
        except OSError as error:
            raise StartError(f"the image {path} cannot be read ({error.strerror}): {_AGAIN}") from error
        except sif.NotSifError as error:
            raise StartError(f"the image {path} is not whole ({error}): {_AGAIN}") from error

    async def _image(self, image: Image, force: bool, sink: OutputSink | None) -> Path:
        if image.kind == "file":
            path = Path(image.reference)
            if not path.is_dir():
                try:
                    await self._blocking(sif.read, path)
                except (OSError, sif.NotSifError) as error:
                    raise BuildError(f"the image {path} cannot be used: {error}") from error
            return path
        identity = "" if image.kind == "fetch" else await self._blocking(_archive_identity, image.reference)
        key = _key(image.kind, image.reference, identity, os.uname().machine)
        failure = ImagePullError if image.kind == "fetch" else BuildError
        return await self._fetched(
            (key, force),
            lambda: self._cache.get(key, lambda part: self._build(part, image.reference, sink, None, failure), force=force),
        )

    async def _define(self, part: Path, definition: Path, sink: OutputSink | None) -> None:
        """Build a definition file. Its `%post` wants every capability, which a container's root does not have; a user namespace
        gives them."""
        try:
            await self._build(part, str(definition), sink, definition.parent)
        except BuildError as error:
            if self._privileges or not _LACKING.search(str(error)):
                raise
            if subordinate_ids(0) is None:
                raise BuildError(
                    f"{error} (this root has not all of its rights: to build with others' takes {ROOT_IDS})"
                ) from error
            await self._build(part, str(definition), sink, definition.parent, privileges=("--fakeroot",))

    async def _build(
        self,
        part: Path,
        source: str,
        sink: OutputSink | None,
        cwd: Path | None,
        failure: type[BuildError] = BuildError,
        privileges: Sequence[str] | None = None,
    ) -> None:
        tmp = self._scratch("build")
        arguments = [
            "build",
            "--force",
            "--mksquashfs-args",
            " ".join(_SQUASH),
            *(self._privileges if privileges is None else privileges),
            str(part),
            source,
        ]
        try:
            done = await self._program.run(arguments, cwd=cwd, tmp=tmp, fetching=True, sink=sink)
        finally:
            await run_shielded(self._blocking(namespaces.remove, [tmp]))
        if done.exit_code != 0:
            said = complaint(done.stderr) or complaint(done.stdout) or f"exit code {done.exit_code}"
            raise failure(f"{os.path.basename(self._program.path)} build {source}: {said}")

    @property
    def packs(self) -> bool:
        """Whether images can be made here at all."""
        return _squashfs("mksquashfs") is not None

    async def snapshot(
        self,
        image: Path,
        key: Sequence[str],
        wanted: Callable[[ImageConfig, Path, Path], Wanted],
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool,
    ) -> str:
        """The path of `image` with what `change` does to it. `wanted`: the instance for it, by what the image says, the folder
        that is to be written, and the instance's own folder.

        Raises:
            StartError
            What `change` raises.
        """

        async def make(part: Path) -> None:
            config = await self.config(str(image))
            async with self._writable(image, None) as (root, work):
                environment = await self._instances.start(wanted(config, root, work / "instance"))
                try:
                    await change(environment)
                except (OSError, BuildError) as error:  # which would be taken for the cache's own
                    raise _ChangeError(error) from error
                finally:
                    await run_shielded(environment.stop())
                await self._pack(part, root, config, work, None)

        try:
            identity = await self._blocking(_identity, image)
            return str(await self._cache.get(_key("snapshot", identity, *key, self._owners), make, force=force))
        except _ChangeError as failed:
            raise failed.error from None
        except BuildError as error:
            raise StartError(f"what was done in a sandbox cannot be kept: {error}") from error

    async def _carry_out(self, part: Path, spec: EnvironmentSpec, base: Path, sink: OutputSink | None) -> None:
        """Carry out a Dockerfile in a sandbox folder made of its base, and pack the folder."""
        recipe = self._finder.source(spec).recipe
        assert recipe is not None
        inherited = await self.config(str(base))
        async with self._writable(base, sink) as (root, work):
            wanted = Wanted(
                name=self._name(),
                image=str(root),
                folder=work / "instance",
                arguments=(*self._isolation, *self._privileges, "--writable"),
                env={**_BUILD_ENV, **inherited.env},
            )
            state = ImageState(workdir=inherited.workdir or "/", user=inherited.user)
            environment = await self._instances.start(wanted)
            try:
                await run_steps(recipe, environment, os.uname().machine, sink, state)
            finally:
                await run_shielded(environment.stop())
            config = ImageConfig(env={**inherited.env, **state.env}, workdir=state.workdir, user=state.user)
            await self._pack(part, root, config, work, sink)

    @asynccontextmanager
    async def _writable(self, image: Path, sink: OutputSink | None) -> AsyncIterator[tuple[Path, Path]]:
        """An image unpacked into a folder that may be changed, and the folder around it; both are gone afterwards."""
        work = self._scratch("build")
        try:
            await self._unpack(image, work / "root", work, sink)
            yield work / "root", work
        finally:
            await run_shielded(self._blocking(namespaces.remove, [work]))

    async def _pack(self, part: Path, root: Path, config: ImageConfig, work: Path, sink: OutputSink | None) -> None:
        """Make a SIF of a folder, with what its Dockerfile says of it."""
        program, machine = _squashfs("mksquashfs"), _MACHINES.get(os.uname().machine)
        if program is None or machine is None or (self._privileges and os.geteuid() == 0):
            await self._build(part, str(root), sink, None)
        else:  # not `build`, which copies the folder first, and that takes longer than the packing
            system = work / "system.squashfs"
            log = work / "mksquashfs.log"
            try:
                await namespaces.run([program, str(root), str(system), "-no-progress", *_SQUASH], log, self._blocking)
            except SandboxError as error:
                raise BuildError(f"the image {part.name} cannot be packed in {work}: {error}") from error
            await self._sif("new", str(part))
            await self._sif("add", *_SYSTEM, "--partarch", machine, str(part), str(system))
            await self._blocking(system.unlink)
        file = work / "oci-config.json"  # as images that come from a registry have it
        await self._blocking(file.write_bytes, sif.config_as_oci(config))
        await self._sif("add", "--datatype", _JSON, "--filename", file.name, str(part), str(file))

    async def _unpack(self, base: Path, root: Path, work: Path, sink: OutputSink | None) -> None:
        """Make a folder of an image that a build may change."""
        program = _squashfs("unsquashfs")
        try:
            if base.is_dir() or program is None:
                arguments = ["build", "--force", *self._privileges, "--sandbox", str(root), str(base)]
                done = await self._program.run(arguments, tmp=work, sink=sink)
                if done.exit_code != 0:
                    raise BuildError(complaint(done.stderr))
                return
            # not `build --sandbox`: it unpacks in a container that has no right to give files to users and groups
            offset = (await self._blocking(sif.read, base)).offset
            arguments = [program, "-no-progress", "-n", "-o", str(offset), "-d", str(root), str(base)]
            await namespaces.run(arguments, work / "unsquashfs.log", self._blocking)
        except SandboxError as error:
            raise BuildError(f"the image {base} cannot be unpacked in {work}: {error}") from error

    async def _sif(self, *arguments: str) -> None:
        done = await self._program.run(["sif", *arguments])
        if done.exit_code != 0:
            raise BuildError(f"an image in {self._cache.root} cannot be completed: {complaint(done.stderr)}")

    async def _read_config(self, path: Path) -> ImageConfig:
        if not path.is_dir():
            found = (await self._blocking(sif.read, path)).config
            if found is not None:
                return found
        arguments = ["-s", "exec", *self._isolation, *self._privileges, "--pwd", "/", str(path), "cat", "/proc/self/environ"]
        done = await self._program.run(arguments)
        if done.exit_code != 0:
            raise StartError(f"nothing can be run in the image {path}: {complaint(done.stderr)}")
        return ImageConfig(env=image_variables(done.stdout))


def _squashfs(name: str) -> str | None:
    """One of the programs that make and unpack the file systems of images."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join([_FORMAT, *parts]).encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _identity(path: Path) -> str:
    """Of an image's content: a SIF's own id, and for a folder its place and when it was last changed at the top."""
    if path.is_dir():
        return f"{path.resolve()} {path.stat().st_mtime_ns}"
    try:
        return sif.read(path).id
    except (OSError, sif.NotSifError) as error:
        raise BuildError(f"the image {path} cannot be used: {error}") from error


def _archive_identity(reference: str) -> str:
    path = reference.partition(":")[2].partition(":")[0]
    with suppress(OSError):
        status = os.stat(path)
        return f"{status.st_size} {status.st_mtime_ns}"
    return ""
