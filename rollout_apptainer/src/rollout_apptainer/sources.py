"""Which image a task needs, and where it comes from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from rollout.core.dockerfile import lifted, read_dockerfile
from rollout.core.errors import TaskError
from rollout.core.sandbox import layers
from rollout.core.sandbox.recipe import Recipe
from rollout.core.types import EnvironmentSpec
from rollout_apptainer.options import ApptainerOptions

_FETCHED = ("docker://", "oras://", "library://", "shub://", "http://", "https://")
_LOCAL = ("docker-archive:", "oci-archive:", "oci:", "docker-daemon:")
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


class Image(NamedTuple):
    """An image that somebody else made."""

    kind: Literal["file", "convert", "fetch"]
    """`file`: a SIF or a sandbox folder, used as it is. `convert`: an archive of this machine. `fetch`: from a registry."""
    reference: str
    """A path, or what `apptainer build` takes."""


class Source(NamedTuple):
    """What a task's image is made from: an image, a definition file, or a Dockerfile and the image it starts from."""

    image: Image | None = None
    definition: Path | None = None
    recipe: Recipe | None = None
    base: str | None = None
    """FROM with its variables replaced."""


class Finder:
    """Finds images by the options of a job."""

    def __init__(self, options: ApptainerOptions, base_dir: Path, *, offline: bool) -> None:
        self._options = options
        self._base_dir = base_dir
        self._offline = offline

    def source(self, spec: EnvironmentSpec) -> Source:
        """Raises TaskError: there is none, or it cannot be used here; the text says why."""
        if self._options.image is not None:
            return Source(image=self.image(self._options.image, "environment.options.image", self._base_dir))
        self.refuse_services(spec)
        folder = Path(spec.directory) if spec.directory is not None else None
        if spec.docker_image is not None:
            return Source(image=self.image(spec.docker_image, spec.task_name, folder.parent if folder else self._base_dir))
        if folder is not None and (folder / "image.def").is_file():
            return Source(definition=folder / "image.def")
        recipe = layers.read(spec)
        if recipe is None:
            raise TaskError(
                f"{spec.task_name} has no environment/image.def, no environment/Dockerfile and names no docker_image, and type: "
                "apptainer needs one of them or environment.options.image"
            )
        base = lifted(read_dockerfile(recipe.path)).image
        if base is None or base == "scratch":
            raise TaskError(
                f"{recipe.path}: FROM {base or 'without an image'} cannot be built by type: apptainer: use `type: docker`"
            )
        self.image(base, str(recipe.path), self._base_dir)
        return Source(recipe=recipe, base=base)

    def refuse_services(self, spec: EnvironmentSpec) -> None:
        """Raises TaskError when the task is more than one container."""
        folder = Path(spec.directory) if spec.directory is not None else None
        compose = next((folder / name for name in _COMPOSE if folder and (folder / name).is_file()), None)
        if compose is not None:
            raise TaskError(f"{spec.task_name} has environment/{compose.name}: tasks of several services need `type: docker`")

    def image(self, name: str, where: str, relative_to: Path) -> Image:
        """What an image's name stands for. `where`: who asks, for messages.

        Raises:
            TaskError: a file that is not there; a name that can only be fetched while nothing may be.
        """
        replaced = self._options.bases.get(name) or self._options.bases.get(_canonical(name))
        if replaced is not None:
            name, where, relative_to = replaced, f"environment.options.bases: {name}", self._base_dir
        if name.startswith(_FETCHED):
            return self._fetched(name, where)
        if name.startswith(_LOCAL):
            return self._archive(name, where, relative_to)
        path = Path(os.path.expanduser(name))
        if name.endswith(".sif") or name.startswith((".", "/", "~")):
            return Image("file", str(self._existing(relative_to / path, where)))
        if replaced is not None and (relative_to / path).exists():
            return Image("file", str(relative_to / path))
        if not _NAME.fullmatch(name):
            raise TaskError(f"{where}: {name!r} is not the name of an image")
        staged = self._staged(name)
        return Image("file", str(staged)) if staged is not None else self._fetched(f"docker://{name}", where)

    def _fetched(self, reference: str, where: str) -> Image:
        if self._offline:
            raise TaskError(
                f"{where}: the image {reference} would have to be fetched, and the job runs offline: fetch it elsewhere with "
                f"`apptainer pull {reference}` and put it into the folder that environment.options.images names"
            )
        return Image("fetch", reference)

    def _archive(self, reference: str, where: str, relative_to: Path) -> Image:
        scheme, _, rest = reference.partition(":")
        if scheme == "docker-daemon":
            return Image("convert", reference)
        file, colon, tag = rest.partition(":")
        path = self._existing(relative_to / os.path.expanduser(file), where)
        return Image("convert", f"{scheme}:{path}{colon}{tag}")

    def _existing(self, path: Path, where: str) -> Path:
        if not path.exists():
            raise TaskError(f"{where}: there is no image {path}")
        return path.absolute()

    def _staged(self, name: str) -> Path | None:
        if self._options.images is None:
            return None
        folder = self._base_dir / os.path.expanduser(self._options.images)
        return next((folder / file for file in staged_names(name) if (folder / file).exists()), None)


def staged_names(name: str) -> list[str]:
    """What the file of an image may be called: in full, then as `apptainer pull` calls it."""
    whole, at, digest = name.partition("@")
    path, _, last = whole.rpartition("/")
    last, _, tag = last.partition(":")
    suffix = digest.replace(":", "_") if at and not tag else tag or "latest"
    prefix = f"{path.replace('/', '_').replace(':', '_')}_" if path else ""
    return list(dict.fromkeys([f"{prefix}{last}_{suffix}.sif", f"{last}_{suffix}.sif"]))


def _canonical(name: str) -> str:
    """Without what `docker` adds by itself."""
    for prefix in ("docker://", "docker.io/", "index.docker.io/", "library/"):
        name = name.removeprefix(prefix)
    return name.removesuffix(":latest")
