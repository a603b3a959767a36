"""Where Rollout keeps what it can fetch or build again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`$ROLLOUT_CACHE_DIR`, or the platform's cache folder of the user. It may not exist yet."""
    chosen = environ.get("ROLLOUT_CACHE_DIR")
    return (
        Path(os.path.expanduser(chosen)).absolute() if chosen else Path(platformdirs.user_cache_dir("rollout", appauthor=False))
    )
