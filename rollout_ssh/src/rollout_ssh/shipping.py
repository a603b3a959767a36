"""The program that is sent to the other machine: modules of ours, as one piece that its Python reads from standard input.

Nothing is written to the machine's disk, and nothing of it is on a command line but the few words that read the rest.
"""

from __future__ import annotations

import json
import shlex
import zlib
from functools import cache
from importlib.resources import files

MIN_PYTHON = (3, 9)
_PACKAGES = ("rollout.core.sandbox.inside", "rollout_ssh.remote")

# `rollout` in the first line tells others of the same job, in /proc, what this process is.
_LOADER = """
rollout = "relay"
import sys
if sys.version_info < (3, 9): sys.exit("rollout needs Python 3.9 or newer here, and python3 is " + sys.version.split()[0])
import importlib.abc, importlib.util, json, os, zlib
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part: sys.exit(0)
        data += part
    return data
modules = json.loads(zlib.decompress(read(int(read(8)))))
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in modules: return importlib.util.spec_from_loader(name, self, is_package=modules[name][0])
    def create_module(self, spec): return None
    def exec_module(self, module):
        exec(compile(modules[module.__name__][1], "<" + module.__name__ + ">", "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
from rollout_ssh.remote.relay import main
main()
"""


def command_line(python: str = "python3") -> str:
    """For a shell of whatever kind: starts the loader."""
    return f"exec {shlex.quote(python)} -I -S -X utf8 -c {shlex.quote(_LOADER)}"


@cache
def program() -> bytes:
    """What the loader reads: eight digits of length, then the modules."""
    modules: dict[str, tuple[bool, str]] = {}
    for package in _PACKAGES:
        parts = package.split(".")
        for depth in range(1, len(parts)):
            modules.setdefault(".".join(parts[:depth]), (True, ""))
        for entry in files(package).iterdir():
            if entry.name.endswith(".py"):
                name = entry.name.removesuffix(".py")
                module = package if name == "__init__" else f"{package}.{name}"
                modules[module] = (name == "__init__", entry.read_text("utf-8"))
    data = zlib.compress(json.dumps(modules).encode(), 9)
    return b"%08d" % len(data) + data
