"""The test's side: runs its text, with the program in another process that can neither see nor touch this one.

Nonce, program and test come over standard input, and are in this process's memory alone. The program runs as nobody where that
can be had, without capabilities anywhere, and this process cannot be traced; it answers questions and cannot end the test. The
only output is a line of the nonce and the verdict.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import unittest
from contextlib import suppress
from typing import Any

from rollout_rewards.inside.wire import Ended, Peer

_NOBODY = 65534
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_FILE = "test.py"


def main(given: dict[str, Any]) -> None:
    """`given`: `nonce`, `program`, `test`, `entry`, and `start`, the Python text that starts the program's side."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    out = os.dup(1)
    os.dup2(2, 1)
    scratch = tempfile.mkdtemp(prefix="rollout-program-")
    with suppress(OSError):
        os.chown(scratch, _NOBODY, _NOBODY)
    downwards, upwards = os.pipe(), os.pipe()

    def lower(user: int | None) -> None:
        os.setpgid(0, 0)
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        for capability in range(64):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def start(user: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", given["start"], str(downwards[0]), str(upwards[1])],
            pass_fds=(downwards[0], upwards[1]),
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8"},
            preexec_fn=lambda: lower(user),
        )

    try:
        program = start(_NOBODY if os.geteuid() == 0 else None)
    except (OSError, subprocess.SubprocessError):
        program = start(None)  # there is no other user here, or nobody may not run this Python
    os.close(downwards[0])
    os.close(upwards[1])
    peer = Peer(upwards[0], downwards[1])
    try:
        verdict = judged(peer, given)
    except Ended:
        verdict = {"why": "the program ended before its test did"}
    verdict["refused"] = peer.refused
    os.write(out, f"{given['nonce']}{json.dumps(verdict)}\n".encode())
    with suppress(OSError):
        os.killpg(program.pid, signal.SIGKILL)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)  # whatever the test has left running


def judged(peer: Peer, given: dict[str, Any]) -> dict[str, Any]:
    """`passed`, or `why` not, or how the test itself is `broken`."""
    try:
        tree = ast.parse(given["test"], _FILE)
        code = compile(tree, _FILE, "exec")
    except (SyntaxError, ValueError) as error:
        return {"broken": f"it is not Python: {error}"}
    peer.send({"program": given["program"]})
    started = peer.receive()
    if "ready" not in started:
        return {"why": str(started.get("failed"))[:500]}
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [_FILE]
    try:
        lent = _lent(peer, tree, given)
        module.__dict__.update(lent)
        exec(code, module.__dict__)
        if given["entry"] and callable(module.__dict__.get("check")):
            module.check(peer.ask("name", given["entry"]))
        elif "unittest.main" not in given["test"]:
            _call_what_was_only_defined(module)
    except SystemExit as error:
        if error.code not in (None, 0, False):
            return {"why": f"the test ended with exit code {error.code}"}
    except Exception as error:  # noqa: BLE001 - however a test fails
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
        line = f" (line {frames[-1].lineno} of the test)" if frames else ""
        return {"why": f"{type(error).__name__}: {str(error)[:300]}{line}"}
    if not peer.asked and all(isinstance(value, types.ModuleType) for value in lent.values()):
        return {"broken": "it never uses the program"}
    return {"passed": True}


def _lent(peer: Peer, tree: ast.AST, given: dict[str, Any]) -> dict[str, Any]:
    """The program's names that the test uses and does not make itself.

    Built-in names are not the program's, but for its entry point, and what it imports from the standard library is imported
    here.
    """
    used: set[str] = set()
    made = set(dir(builtins)) - {given["entry"]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    names = {}
    for name in sorted(used - made):
        own = _imported(name, given["program"])
        if own is not None:
            names[name] = own
            continue
        with suppress(NameError):  # an argument, or a name that the test will miss itself
            names[name] = peer.ask("name", name)
    return names


def _imported(name: str, program: str) -> Any:
    """What the program's text imports from the standard library under that name."""
    try:
        nodes = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name and _is_standard(alias.name):
                    module = importlib.import_module(alias.name)
                    return module if alias.asname else sys.modules[name]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and _is_standard(node.module):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return getattr(importlib.import_module(node.module), alias.name, None)
    return None


def _is_standard(module: str) -> bool:
    top = module.partition(".")[0]
    usual = {"math", "typing", "collections", "itertools", "functools", "re", "string", "random", "datetime", "decimal", "json"}
    return top in getattr(sys, "stdlib_module_names", usual)


def _call_what_was_only_defined(module: types.ModuleType) -> None:
    """Test cases of unittest, and functions `test_...` without parameters."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TestResult()
    suite.run(result)
    for case, text in result.failures + result.errors:
        raise AssertionError(f"{case}: {text.strip().splitlines()[-1]}")
    for name, value in list(module.__dict__.items()):
        if name.startswith("test") and isinstance(value, types.FunctionType) and not value.__code__.co_argcount:
            value()
