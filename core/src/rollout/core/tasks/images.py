"""Instructions with images: content blocks in OpenAI's form, and the same as files."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollout.core.episodes import ContentBlock

FOLDER = "images/"


def image_names(row: Mapping[str, Any], dataset_dir: Path) -> tuple[str, ...]:
    """The files below `images/` of the data set that a row's values name, in the row's order, each once."""
    found: dict[str, None] = {}
    for value in row.values():
        for name in value if isinstance(value, list) else (value,):
            if isinstance(name, str) and name.startswith(FOLDER) and _inside(dataset_dir, name):
                found[name] = None
    return tuple(found)


def content_blocks(text: str, dataset_dir: Path, images: Sequence[str]) -> list[ContentBlock]:
    """The text and then each image as a data URI.

    Raises:
        OSError: an image cannot be read.
    """
    return [{"type": "text", "text": text}, *(_image(dataset_dir / name) for name in images)]


class ImageFile(NamedTuple):
    """An image of an instruction."""

    name: str
    kind: str
    """Its media type, `image/png` for instance."""
    data: bytes


def image_files(instruction: str | Sequence[ContentBlock]) -> list[ImageFile]:
    """The images that come with an instruction, in its order; those that are only addresses are not among them.

    Raises:
        ValueError: an image is no data URI of base64.
    """
    if isinstance(instruction, str):
        return []
    found: list[ImageFile] = []
    for block in instruction:
        said = block.get("image_url") if block.get("type") == "image_url" else None
        url = said.get("url") if isinstance(said, dict) else said
        if not isinstance(url, str) or not url.startswith("data:"):
            continue
        head, _, text = url.partition(",")
        kind = head.removeprefix("data:").partition(";")[0] or "image/png"
        ending = mimetypes.guess_extension(kind) or ".png"
        found.append(ImageFile(f"{len(found) + 1}{ending}", kind, base64.b64decode(text, validate=True)))
    return found


def _image(path: Path) -> ContentBlock:
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"}}


def _inside(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path.is_file() and path.is_relative_to((folder / FOLDER).resolve())
