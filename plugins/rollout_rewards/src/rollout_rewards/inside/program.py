"""The program's side: runs its text, then does what the test asks of its names. `tester` starts it, and trusts nothing of it."""

from __future__ import annotations

import sys
import types
from typing import Any

from rollout_rewards.inside.wire import Ended, Peer


class ProgramSide(Peer):
    """Knows the program's names."""

    def __init__(self, reading: int, writing: int, names: dict[str, Any]) -> None:
        super().__init__(reading, writing)
        self._names = names

    def do(self, what: str, on: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if what == "name":
            if on not in self._names:
                raise NameError(f"the program has no `{on}`")
            return self._names[on]
        target = self._objects[on]
        if what == "getattr":
            return getattr(target, args[0])
        if what == "setattr":
            return setattr(target, args[0], args[1])
        if what == "isinstance":
            return isinstance(target, args[0])
        if what == "eq":
            return bool(target == args[0])
        if what == "next":
            for item in target:
                return True, item
            return False, None
        return super().do(what, on, args, kwargs)


def main(reading: int, writing: int) -> None:
    module = types.ModuleType("__main__")
    side = ProgramSide(reading, writing, module.__dict__)
    text = side.receive()["program"]
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    try:
        exec(compile(text, "program.py", "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - exit() is an end like any other
        side.send({"failed": f"{type(error).__name__}: {error}"[:500]})
        return
    side.send({"ready": True})
    try:
        while True:
            side.send(side.answer(side.receive()))
    except Ended:
        return
