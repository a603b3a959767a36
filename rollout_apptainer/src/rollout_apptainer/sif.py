"""SIF files, as far as Rollout reads them: whether one is whole, and what the image in it says about its processes.

The format is described in github.com/apptainer/sif (pkg/sif/sif.go): a header of 128 bytes, then descriptors of 585 bytes.
"""

from __future__ import annotations

import os
import struct
import uuid
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from rollout.core.sandbox.layers import ImageConfig

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_MAX_DESCRIPTORS = 4096
_MAX_CONFIG_BYTES = 4 * 1024 * 1024
_FILE_SYSTEM = 0x4004
_CONFIG_NAME = "oci-config.json"


class NotSifError(ValueError):
    """The file is no SIF, or not a whole one; the text says which."""


class _Object(NamedTuple):
    kind: int
    name: str
    offset: int
    size: int


class Sif(NamedTuple):
    """What a whole SIF file tells."""

    id: str
    """Made anew with each build."""
    offset: int
    """Where the file system begins, a squashfs; in bytes."""
    config: ImageConfig | None
    """From the OCI image that it was made of; None when it was made of something else."""


def read(path: Path) -> Sif:
    """Look at a SIF file without reading its content.

    Raises:
        NotSifError
        OSError
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head[32:].startswith(b"SIF_MAGIC"):
            raise NotSifError("it is not a SIF file" if size >= _HEADER.size else "it is empty or cut off")
        fields = _HEADER.unpack(head)
        total, at = fields[8], fields[9]
        if not 0 < total <= _MAX_DESCRIPTORS or not 0 < at < size:
            raise NotSifError("its header is damaged")
        objects = list(_objects(file, at, total))
        system = next((entry for entry in objects if entry.kind == _FILE_SYSTEM), None)
        if system is None:
            raise NotSifError("there is no file system in it")
        for entry in objects:
            if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > size:
                raise NotSifError(f"it is cut off: {entry.offset + entry.size} bytes are needed and {size} are there")
        return Sif(str(uuid.UUID(bytes=fields[4])), system.offset, _config(file, objects))


def _objects(file: BinaryIO, at: int, total: int) -> list[_Object]:
    file.seek(at)
    data = file.read(total * _DESCRIPTOR.size)
    found = []
    for start in range(0, len(data) - _DESCRIPTOR.size + 1, _DESCRIPTOR.size):
        fields = _DESCRIPTOR.unpack_from(data, start)
        if fields[1]:
            name = fields[-2].rstrip(b"\0").decode("utf-8", "replace")
            found.append(_Object(fields[0], name, fields[5], fields[6]))
    return found


def _config(file: BinaryIO, objects: list[_Object]) -> ImageConfig | None:
    entry = next((entry for entry in reversed(objects) if entry.name == _CONFIG_NAME), None)
    if entry is None or entry.size > _MAX_CONFIG_BYTES:
        return None
    file.seek(entry.offset)
    try:
        said: dict[str, Any] = msgspec.json.decode(file.read(entry.size), type=dict[str, Any])
        env = dict(item.split("=", 1) for item in said.get("Env") or [] if "=" in item)
        return msgspec.convert(
            {"env": env, "workdir": said.get("WorkingDir") or None, "user": said.get("User") or None}, type=ImageConfig
        )
    except (msgspec.MsgspecError, AttributeError, TypeError):
        return None


def config_as_oci(config: ImageConfig) -> bytes:
    """The object `oci-config.json` that says this."""
    said = {
        "Env": [f"{name}={value}" for name, value in config.env.items()],
        "User": config.user or "",
        "WorkingDir": config.workdir or "",
    }
    return msgspec.json.encode(said)
