"""What a judge judges by: criteria, their scales, files of them, and one reward from many scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rollout.core.config.document import open_document
from rollout.core.errors import ConfigError
from rollout.core.types import Struct


class Criterion(Struct, frozen=True, kw_only=True):
    """One thing that a judge grades."""

    text: Annotated[str, Meta(min_length=1)]
    """What is asked of the answer."""
    name: str | None = None
    """How results call it; the beginning of its text when unset."""
    type: Literal["binary", "likert", "numeric"] = "binary"
    """`binary`: 0 or 1. `likert`: a whole number from 1 to `points`. `numeric`: any number from `min` to `max`."""
    weight: Annotated[float, Meta(ge=0)] = 1.0
    """Its share in the mean."""
    points: Annotated[int, Meta(ge=2, le=100)] = 5
    """Of a likert scale."""
    min: float = 0.0
    """Of a numeric scale."""
    max: float = 1.0
    """Of a numeric scale."""

    def __post_init__(self) -> None:
        if self.type == "numeric" and not self.min < self.max:
            raise ValueError(f"`min` is {self.min:g} and `max` {self.max:g}; the scale needs a length")

    @property
    def key(self) -> str:
        if self.name:
            return self.name
        words = " ".join(self.text.split())
        return words if len(words) <= 40 else words[:37] + "..."

    @property
    def low(self) -> float:
        return {"binary": 0.0, "likert": 1.0, "numeric": self.min}[self.type]

    @property
    def high(self) -> float:
        return {"binary": 1.0, "likert": float(self.points), "numeric": self.max}[self.type]

    def scale(self) -> str:
        """The scale in words."""
        if self.type == "binary":
            return "1 if the criterion is met and 0 if it is not"
        if self.type == "likert":
            return f"a whole number from 1 (not met at all) to {self.points} (met entirely)"
        return f"a number from {self.min:g} (worst) to {self.max:g} (best)"

    def normalised(self, score: float) -> float:
        """The score from 0 to 1."""
        return (score - self.low) / (self.high - self.low)


def aggregated(how: str, criteria: Sequence[Criterion], scores: Sequence[float], threshold: float) -> float:
    """One reward of the scores, which are from 0 to 1."""
    if how == "all_pass":
        return float(all(score == 1.0 for score in scores))
    if how == "any_pass":
        return float(any(score == 1.0 for score in scores))
    total = sum(criterion.weight for criterion in criteria)
    mean = sum(c.weight * score for c, score in zip(criteria, scores, strict=True)) / total if total else 0.0
    return float(mean >= threshold) if how == "threshold" else mean


def read_criteria(file: Path) -> list[Criterion]:
    """The criteria of a TOML or JSON file: a list `criteria`, each with `text` (or `description`, `criterion`).

    Raises:
        ConfigError: it cannot be read, or holds something else; the text names file and place.
    """
    document = open_document(file).value
    listed: Any = document.get("criteria") if isinstance(document, dict) else document
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{file}: there is no list `criteria`")
    try:
        return [msgspec.convert(_spelled(item), Criterion) for item in listed]
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: criteria: {error}") from error


def _spelled(item: Any) -> Any:
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, dict) and "text" not in item:
        for other in ("description", "criterion"):
            if other in item:
                return {"text": item[other], **{key: value for key, value in item.items() if key != other}}
    return item
