"""Data sets for tests, written to disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EVALUATE = "def evaluate(task, episode):\n    return float(episode.answer == str(task.metadata['answer']))\n"


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def rows_dataset(
    root: Path,
    rows: Sequence[Any],
    toml: str = "[dataset]\n",
    files: Mapping[str, str | bytes] | None = None,
    split: str = "test",
) -> Path:
    """A data set of rows with a Python verifier."""
    lines = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    everything = {"dataset.toml": toml, "tests/evaluate.py": EVALUATE, f"data/{split}.jsonl": lines, **(files or {})}
    return write_files(root, everything)


def folder_task(root: Path, name: str, toml: str = 'version = "1.0"\n', files: Mapping[str, str | bytes] | None = None) -> Path:
    """A task folder below `root`, without tests unless `files` has them."""
    return write_files(root / name, {"task.toml": toml, "instruction.md": f"Do {name}.\n", **(files or {})})
