"""How a test and the program that it tests talk: frames of JSON, and values that are the same on both sides.

Only plain values cross as what they are. Any other object stays where it was made and is a `Remote` on the other side: a test
can call it and look at its attributes, but what it is, is never taken from the program's word.
"""

from __future__ import annotations

import builtins
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_FRAME = 64 * 1024 * 1024

_SEQUENCES: tuple[tuple[str, Any], ...] = (("l", list), ("t", tuple), ("s", set), ("z", frozenset))
_REFUSED = (
    "lt le gt ge bool len iter next contains getitem setitem delitem int float index complex round abs neg pos invert enter exit "
    "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift "
    "radd rsub rmul rtruediv rfloordiv rmod rdivmod rpow rmatmul rand ror rxor rlshift rrshift"
)


class Ended(BaseException):
    """The other side is gone."""


class Remote:
    """An object of the other side."""

    _peer: Peer
    _number: str
    _kind: str

    def __init__(self, peer: Peer, number: str, kind: str) -> None:
        self.__dict__.update(_peer=peer, _number=number, _kind=kind)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask("call", self._number, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self._number, (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self._number, (name, value))

    def __instancecheck__(self, other: Any) -> bool:
        return isinstance(other, Remote) and self._peer.ask("isinstance", other._number, (self,)) is True

    def __hash__(self) -> int:
        return hash(self._number)

    def __eq__(self, other: object) -> bool:
        """Only objects of the program are compared by the program: it cannot say that one of them is 42."""
        return isinstance(other, Remote) and self._peer.ask("eq", self._number, (other,)) is True

    def __repr__(self) -> str:
        return f"<{self._kind} of the program>"


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: Remote, *others: Any) -> Any:
        self._peer.refused = f"{name} of an object of the program, a {self._kind}"
        raise TypeError(f"the test asks for {self._peer.refused}")

    return refuse


for _name in _REFUSED.split():
    setattr(Remote, f"__{_name}__", _refused(f"__{_name}__"))


class Pulled:
    """An iterator of the other side: its items come one by one."""

    def __init__(self, peer: Peer, number: str) -> None:
        self.peer = peer
        self.number = number

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        more, item = self.peer.ask("next", self.number)
        if more is not True:
            raise StopIteration
        return item


class Peer:
    """One end of the connection."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._objects: dict[str, Any] = {}
        self._exceptions: dict[str, type[Exception]] = {}
        self.refused = ""
        """What an object of the program was asked for that would have been the program's word."""
        self.asked = 0
        """How often something was asked of the program, its names not counted."""

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        data = struct.pack(">I", len(data)) + data
        try:
            while data:
                data = data[os.write(self._writing, data) :]
        except OSError:
            raise Ended from None

    def receive(self) -> dict[str, Any]:
        message = json.loads(self._read(struct.unpack(">I", self._read(4))[0]).decode())
        if not isinstance(message, dict):
            raise Ended
        return message

    def ask(self, what: str, on: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Have the other side do something, and do meanwhile what it asks for."""
        self.asked += what != "name"
        sent = [self.encode(item) for item in args]
        named = {name: self.encode(value) for name, value in (kwargs or {}).items()}
        self.send({"ask": what, "on": on, "args": sent, "kwargs": named})
        while True:
            message = self.receive()
            if "ask" in message:
                self.send(self.answer(message))
                continue
            for mine, before, now in zip(args, sent, message.get("args", ())):  # noqa: B905 - Python 3.8
                if now != before:
                    _update(mine, self.decode(now))
            if "raised" in message:
                raise self._failure(message["raised"])
            return self.decode(message["value"])

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What comes of doing what the other side asks for."""
        try:
            args = [self.decode(item) for item in message["args"]]
            kwargs = {name: self.decode(item) for name, item in message["kwargs"].items()}
            value = self.encode(self.do(message["ask"], message["on"], args, kwargs))
            return {"value": value, "args": [self.encode(item) for item in args]}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the test or the program raises is the other's to see
            return {"raised": [self.encode(type(error)), [self.encode(item) for item in error.args[:10]], str(error)[:2000]]}

    def do(self, what: str, on: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Both sides may call what they were given."""
        if what != "call":
            raise ValueError(what)
        return self._objects[on](*args, **kwargs)

    def encode(self, value: Any) -> Any:
        """A value as JSON; an object that is no plain value is kept here under a number."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return ["i", hex(value)]
        if isinstance(value, float):
            return ["f", repr(float(value))]
        for mark, kind in _SEQUENCES:
            if isinstance(value, kind):
                return [mark, [self.encode(item) for item in value]]
        if isinstance(value, dict):
            return ["d", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        if isinstance(value, (bytes, bytearray)):
            return ["b", bytes(value).hex()]
        if isinstance(value, complex):
            return ["c", repr(value.real), repr(value.imag)]
        if isinstance(value, Decimal):
            return ["D", str(value)]
        if isinstance(value, Fraction):
            return ["F", str(value)]
        if isinstance(value, range):
            return ["g", [hex(value.start), hex(value.stop), hex(value.step)]]
        if isinstance(value, Remote):
            return ["own", value._number]
        if isinstance(value, Pulled):
            return ["own", value.number]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["e", [kind.__name__ for kind in value.__mro__]]
        if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
            return self.encode(value.item())  # a number of numpy
        number = str(id(value))
        self._objects[number] = value
        is_iterator = hasattr(type(value), "__next__") and hasattr(type(value), "__iter__")
        return ["pulled" if is_iterator else "remote", number, type(value).__name__[:80]]

    def decode(self, said: Any) -> Any:
        """Raises ValueError, KeyError and the like: the other side sent what it cannot have encoded."""
        if not isinstance(said, list):
            if said is None or isinstance(said, (bool, str)):
                return said
            raise ValueError("a value of no known kind")
        mark = said[0]
        for known, kind in _SEQUENCES:
            if known == mark:
                return kind(self.decode(item) for item in said[1])
        if mark == "d":
            return {self.decode(key): self.decode(item) for key, item in said[1]}
        if mark == "own":
            return self._objects[said[1]]
        if mark == "remote":
            return Remote(self, str(said[1]), str(said[2]))
        if mark == "pulled":
            return Pulled(self, str(said[1]))
        if mark == "e":
            return self._exception(said[1])
        if mark == "g":
            return range(*(int(part, 16) for part in said[1]))
        return _SCALARS[mark](*said[1:])

    def _exception(self, names: Sequence[str]) -> type[Exception]:
        """The class of that name, made here when it is the other side's own, below the nearest that both have."""
        kind: type[Exception] | None = None
        for name in reversed([str(name) for name in names]):
            known = getattr(builtins, name, None)
            if isinstance(known, type) and issubclass(known, Exception):
                kind = known
            elif kind is not None:
                kind = self._exceptions.setdefault(name, type(name, (kind,), {}))
        return kind or RuntimeError

    def _failure(self, raised: Sequence[Any]) -> Exception:
        kind = self._exception(raised[0][1])
        try:
            return kind(*(self.decode(item) for item in raised[1]))
        except Exception:  # noqa: BLE001 - a class of the program may want anything
            return RuntimeError(f"{kind.__name__}: {raised[2]}")

    def _read(self, size: int) -> bytes:
        parts = []
        while size > 0:
            try:
                part = os.read(self._reading, min(size, 65536)) if size <= MAX_FRAME else b""
            except OSError:
                part = b""
            if not part:
                raise Ended
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


_SCALARS: dict[str, Callable[..., Any]] = {
    "i": lambda text: int(text, 16),
    "f": float,
    "b": bytes.fromhex,
    "c": lambda real, imaginary: complex(float(real), float(imaginary)),
    "D": Decimal,
    "F": Fraction,
}


def _update(mine: Any, now: Any) -> None:
    """Give a list, dict or set the content that the other side has left in its copy."""
    if type(mine) is list and type(now) is list:
        mine[:] = now
    elif type(mine) in (dict, set) and type(now) is type(mine):
        mine.clear()
        mine.update(now)
