"""`environment.options` of `type: apptainer`."""

from __future__ import annotations

from typing import Literal

from rollout.core.types import Struct


class ApptainerOptions(Struct, frozen=True, kw_only=True):
    """`environment.options` of `type: apptainer`. Relative paths are relative to the job file."""

    image: str | None = None
    """The image of every task, whatever it asks for: a `.sif`, a sandbox folder (`./folder`), `docker://`, `oras://` ..."""
    bases: dict[str, str] = {}
    """Image name (as in FROM or docker_image) to what is used instead of fetching it; as `image`."""
    images: str | None = None
    """A folder of images that were fetched before, under the names that `apptainer pull` gives them: `debian_trixie-slim.sif` for
    `debian:trixie-slim`."""
    cache: str | None = None
    """Where images are kept that are built or fetched; may be shared by several machines. Unset: Rollout's cache folder."""
    scratch: str | None = None
    """A folder on the machine's own disk for what trials write and for builds. Unset: TMPDIR, else /tmp."""
    program: str | None = None
    """The command, as a name or a path. Unset: `apptainer`, else `singularity`."""
    fakeroot: bool = False
    """Also when root runs the job: be root of a user namespace only, with the ids of /etc/subuid. Ordinary users always are."""
    disk: Literal["folder", "image"] = "folder"
    """What a trial writes. `folder`: files in `scratch`, each limited to the task's storage. `image`: a file system of that size,
    in a file; slower."""
    network: Literal["none", "host"] | None = None
    """`none`: loopback only, whatever the task says. `host`: the machine's network. Unset: as the task says, and a task that may
    use the network has the machine's own."""
    gpu: Literal["nv", "rocm"] | None = None
    """Which kind of GPUs tasks get that ask for some. Unset: what this machine has."""
    mounts: list[str] = []
    """Folders of this machine as `/there:/in/container[:ro]`, in every trial. Agents can read them."""
    pids: int | None = 4096
    """Processes and threads of one trial, where control groups can be made; null is no limit."""

    def __post_init__(self) -> None:
        if self.pids is not None and self.pids < 1:
            raise ValueError("`pids` must be at least 1")
        for mount in self.mounts:
            parts = mount.split(":")
            paths = all(part.startswith("/") and "," not in part for part in parts[:2])
            if len(parts) not in (2, 3) or not paths or parts[2:] not in ([], ["ro"], ["rw"]):
                raise ValueError(f"{mount!r} is not a mount; write /there:/in/container or /there:/in/container:ro")
        texts: dict[str, list[str | None]] = {
            "image": [self.image],
            "program": [self.program],
            "bases": [*self.bases, *self.bases.values()],
        }
        for name, values in texts.items():
            for value in values:
                if value is not None and (not value.strip() or value.startswith("-") or "\0" in value):
                    raise ValueError(f"`{name}`: {value!r} is not a name")
