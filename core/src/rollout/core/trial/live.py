"""Objects of this process under names, so that a trial's spec, which is plain JSON, can name a flow or an evaluator."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PREFIX = "live:"

_objects: dict[str, Any] = {}


@contextmanager
def live(value: Any) -> Iterator[str]:
    """A name under which this process finds the object for as long as the block lasts; of a class, an instance of it.

    The name is made of the object's own and is equal from run to run, so that a job can be resumed.
    """
    kind = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    name = stem = f"{PREFIX}{kind.__module__}:{kind.__qualname__}"
    number = 2
    while name in _objects:
        name, number = f"{stem}-{number}", number + 1
    _objects[name] = value() if inspect.isclass(value) else value
    try:
        yield name
    finally:
        del _objects[name]


def find_live(name: str) -> Any:
    """The object of that name.

    Raises:
        LookupError: this process has none; it was given to another process, or its block has ended.
    """
    try:
        return _objects[name]
    except KeyError:
        raise LookupError(f"{name} was an object of another process") from None
