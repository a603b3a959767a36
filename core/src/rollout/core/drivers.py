"""Loading one entry point with stevedore, once metadata has said which one it is."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from stevedore import DriverManager


class Driver(DriverManager[Any]):  # type: ignore[misc,unused-ignore]  # stevedore has no types before 5.5
    """A driver manager over exactly one entry point.

    Left to itself stevedore imports every driver of the same name before it complains that there are several, knows no
    distributions, and answers from a cache in the user's home whose time stamps are two minutes coarse.
    """

    def __init__(self, entry_point: EntryPoint) -> None:
        self._chosen = entry_point
        super().__init__(entry_point.group, entry_point.name, on_missing_entrypoints_callback=None)

    def list_entry_points(self) -> list[EntryPoint]:
        return [self._chosen]
