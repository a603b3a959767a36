"""Instructions with images: content blocks in OpenAI's form."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def _image(path: Path) -> ContentBlock:
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"}}


def _inside(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path.is_file() and path.is_relative_to((folder / FOLDER).resolve())
