"""Frames, the program that is sent, and a relay that runs on this machine, without any ssh between."""

from __future__ import annotations

import ast
import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from require import require
from rollout.core.aio import Blocking
from rollout.core.errors import EnvironmentLostError, SandboxError
from rollout.core.types import Command
from rollout_ssh import scripts
from rollout_ssh.namespace import NamespaceEnvironment
from rollout_ssh.remote import frames
from rollout_ssh.session import Session
from rollout_ssh.shipping import MIN_PYTHON, command_line, program

FRAMES = st.lists(st.tuples(st.integers(0, frames.UNREAD), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=20)


class PipeWire:
    """A relay in a process of this machine."""

    def __init__(self, line: str) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._said = b""

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) or 0 :]

    def receive(self) -> bytes:
        assert self.process.stdout is not None
        return os.read(self.process.stdout.fileno(), 1 << 18)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def said(self) -> str:
        """Once it has ended."""
        assert self.process.stderr is not None
        self.process.wait(60)
        if not self.process.stderr.closed:
            self._said += self.process.stderr.read()
        return self._said.decode().strip()

    def close(self) -> None:
        return

    def finish(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"job": "unit", "folder": str(folder), "share": [], "mask": [], "programs": [], "rootfs": None, **changes}


@given(FRAMES, st.lists(st.integers(0, 5000)))
def test_frames_come_out_however_the_stream_is_cut(content: list[tuple[int, int, bytes]], places: list[int]) -> None:
    data = b"".join(frames.pack(*frame) for frame in content)
    cuts = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    splitter = frames.Splitter()
    found = [frame for start, end in pairwise(cuts) for frame in splitter.feed(data[start:end])]
    assert found == content


@given(st.binary(max_size=200))
def test_what_is_no_frame_is_an_error_or_waits_for_more(data: bytes) -> None:
    splitter = frames.Splitter()
    try:
        for kind, _, payload in splitter.feed(data):
            assert kind <= frames.UNREAD
            assert len(payload) <= len(data)
    except ValueError as error:
        assert "no frame" in str(error)


def test_what_is_sent_needs_nothing_newer_than_it_says() -> None:
    import json
    import zlib

    modules = json.loads(zlib.decompress(program()[8:]))
    assert {"rollout_ssh.remote.relay", "rollout.core.sandbox.inside.zygote"} <= set(modules)
    ours = {name.partition(".")[0] for name in modules}
    for name, (_, source) in modules.items():
        tree = ast.parse(source, name, feature_version=MIN_PYTHON)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                assert node.module.partition(".")[0] in ours | set(sys.stdlib_module_names), f"{name} imports {node.module}"
                assert node.module.partition(".")[0] not in ours or node.module in modules, f"{name}: {node.module} is not sent"


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    wire = PipeWire(command_line("/no/such/python"))
    try:
        with pytest.raises(SandboxError, match=r"somewhere: .*/no/such/python"):
            Session.launch("somewhere", wire, config(tmp_path), 60.0)
    finally:
        wire.finish()


def test_a_shell_that_prints_at_its_start_is_said(tmp_path: Path) -> None:
    wire = PipeWire("echo Welcome to this machine; cat")
    try:
        with pytest.raises(SandboxError, match="what its shell prints at the start is in the way"):
            Session.launch("somewhere", wire, config(tmp_path), 60.0)
    finally:
        wire.finish()


class Refusing:
    """A machine whose kernel says no."""

    def __init__(self) -> None:
        hello = {"error": "unshare: Operation not permitted", "errno": 1, "files": {"/proc/sys/user/max_user_namespaces": "0"}}
        self._answers = [frames.message(hello), b""]

    def send(self, data: bytes) -> None:
        return

    def receive(self) -> bytes:
        return self._answers.pop(0)

    def end(self) -> None:
        return

    def said(self) -> str:
        return ""

    def close(self) -> None:
        return


def test_a_kernel_that_forbids_namespaces_is_said_with_the_setting_and_the_other_mode(tmp_path: Path) -> None:
    with pytest.raises(
        SandboxError, match=r"lab1 does not allow sandboxes .*sysctl user\.max_user_namespaces=15000.*`mode: host`"
    ):
        Session.launch("lab1", Refusing(), config(tmp_path), 60.0)


@pytest_asyncio.fixture
async def session(tmp_path: Path) -> AsyncIterator[tuple[Session, PipeWire]]:
    require("local")
    wire = PipeWire(command_line(sys.executable))
    session = Session.launch("here", wire, config(tmp_path / "folder"), 60.0)
    try:
        yield session, wire
    finally:
        await session.aclose()
        wire.finish()


async def start(session: Session, blocking: Blocking) -> NamespaceEnvironment:
    return await NamespaceEnvironment.start(
        session, blocking, {"name": f"rollout-unit-{os.urandom(4).hex()}", "env": {"PATH": "/usr/bin:/bin"}}
    )


async def test_one_channel_carries_many_commands_and_a_slow_reader_holds_nobody_up(session: tuple[Session, PipeWire]) -> None:
    blocking = Blocking(4, "test")
    environment = await start(session[0], blocking)
    flood = await environment.open(Command(argv=("sh", "-c", "head -c 50000000 /dev/zero")))
    results = await asyncio.gather(*(environment.exec(Command(argv=("sh", "-c", f"echo {i}; exit {i}"))) for i in range(100)))
    assert [(result.exit_code, result.stdout) for result in results] == [(i, b"%d\n" % i) for i in range(100)]
    total = 0
    async for chunk in flood.output():
        total += len(chunk)
    assert total == 50_000_000
    await environment.stop()
    blocking.close()


async def test_a_relay_that_ends_takes_its_sandboxes_with_it(session: tuple[Session, PipeWire], tmp_path: Path) -> None:
    blocking = Blocking(4, "test")
    environment = await start(session[0], blocking)
    running = asyncio.ensure_future(environment.exec(Command(argv=("sleep", "600"))))
    await environment.exec(Command(argv=("true",)))
    session[1].end()
    with pytest.raises(EnvironmentLostError):
        await running
    await environment.stop()
    await asyncio.to_thread(session[1].process.wait, 60)
    work = tmp_path / "folder" / "work"
    assert not work.exists() or list(work.iterdir()) == []
    blocking.close()


# --- mode: host ---


@pytest.mark.parametrize("value", ["plain", "a b", "it's", '$HOME `id` "x"', "new\nline", "žluť", "-n", "\\"])
def test_values_and_arguments_reach_a_command_unchanged_and_no_command_line(value: str) -> None:
    quoted = shlex.quote(value)
    script = f'PROBE={quoted}; export PROBE; set -- {quoted}; printf \'%s|%s|\' "$PROBE" "$1"; cat'
    line, data = scripts.command_line(script)
    assert len(value) < 3 or value not in line
    done = subprocess.run(["sh", "-c", line], input=data + b"the rest is for the command", capture_output=True, check=True)
    assert done.stdout.decode() == f"{value}|{value}|the rest is for the command"


@pytest.mark.parametrize("name", ["A.B", "1A", "A-B", ""])
def test_a_variable_that_no_shell_can_hold_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="cannot set the variable"):
        scripts.run(
            ["true"], mark="m", token="t", groups=(), file_bytes=None, env={name: "x"}, workdir="/", cwd=None, user=None, net=None
        )
