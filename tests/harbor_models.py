"""Harbor's models of trajectories, where tests/components/atif.sh put them."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

MODELS = Path(os.environ.get("ROLLOUT_ATIF_STATE", "/tmp/rollout-test-atif")) / "models"


def missing() -> str | None:
    return None if (MODELS / "harbor/models/trajectories/trajectory.py").is_file() else "run tests/components/atif.sh up"


def validate(document: Any) -> None:
    """Raises pydantic.ValidationError, a ValueError."""
    sys.path.insert(0, str(MODELS))
    try:
        model: Any = importlib.import_module("harbor.models.trajectories.trajectory").Trajectory
    finally:
        sys.path.remove(str(MODELS))
    model.model_validate(document)
