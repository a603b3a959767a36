"""What commands of all environments share: deadlines that kill, live output, threads that read what the loop feeds."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rollout.core.archive.transfer import Inflow, Outflow, Owners, both_sides
from rollout.core.errors import CommandTimeoutError, TransferError
from rollout.core.live import MAX_WAITING_BYTES, LiveOutput, in_time
from rollout.core.types import Command, ExecResult


class Killer:
    def __init__(self) -> None:
        self.kills = 0

    async def kill(self) -> None:
        self.kills += 1


async def test_a_command_beyond_its_deadline_is_killed() -> None:
    killer = Killer()
    with pytest.raises(CommandTimeoutError, match=r"slow was still running after 0\.01 s"):
        async with in_time(Command(argv=("slow",), timeout_sec=0.01), killer.kill):
            await asyncio.get_running_loop().create_future()
    assert killer.kills == 1


async def test_a_command_whose_caller_is_cancelled_is_killed() -> None:
    killer = Killer()

    async def run() -> None:
        async with in_time(Command(argv=("slow",)), killer.kill):
            await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert killer.kills == 1


async def test_a_timeout_of_something_else_is_not_the_commands() -> None:
    killer = Killer()
    with pytest.raises(TimeoutError, match="connecting"):
        async with in_time(Command(argv=("quick",), timeout_sec=60), killer.kill):
            raise TimeoutError("connecting")
    assert killer.kills == 0


async def test_live_output_is_what_came_before_and_what_comes_while_it_is_read() -> None:
    errors: list[bytes] = []
    live = LiveOutput(lambda stream, chunk: errors.append(chunk), lambda size: None)
    live.feed("stdout", b"a")
    live.feed("stdout", b"b")
    live.feed("stderr", b"words")
    chunks = live.chunks()
    assert await anext(chunks) == b"ab"
    waiting = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    live.feed("stdout", b"c")
    assert await waiting == b"c"
    live.end()
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)
    assert errors == [b"words"]


async def test_live_output_says_when_there_is_room_again() -> None:
    used: list[int] = []
    live = LiveOutput(None, used.append)
    live.feed("stdout", bytes(MAX_WAITING_BYTES))
    assert not live.has_room
    assert len(await anext(live.chunks())) == MAX_WAITING_BYTES
    assert live.has_room
    assert used == [MAX_WAITING_BYTES]


async def test_output_that_nobody_reads_does_not_keep_a_program_from_its_end() -> None:
    used: list[int] = []
    live = LiveOutput(None, used.append)
    live.feed("stdout", bytes(MAX_WAITING_BYTES))
    live.wait()
    assert live.has_room
    assert used == [0]
    chunks = live.chunks()
    await anext(chunks)
    live.feed("stdout", bytes(MAX_WAITING_BYTES))
    assert not live.has_room, "somebody reads it"
    await chunks.aclose()
    assert live.has_room, "and does no longer"


async def test_a_thread_reads_what_the_loop_feeds() -> None:
    used = []
    inflow = Inflow(used.append)
    read: list[bytes] = []

    def work() -> None:
        while data := inflow.read(3):
            read.append(data)

    thread = threading.Thread(target=work)
    thread.start()
    for chunk in (b"abcd", b"ef"):
        inflow.feed(chunk)
    inflow.end()
    await asyncio.to_thread(thread.join)
    assert b"".join(read) == b"abcdef"
    assert max(map(len, read)) == 3
    assert used == [4, 2]


def test_what_a_thread_no_longer_wants_is_thrown_away_and_told() -> None:
    used: list[int] = []
    inflow = Inflow(used.append)
    inflow.feed(bytes(2 * MAX_WAITING_BYTES))
    assert not inflow.has_room
    inflow.discard()
    inflow.feed(b"more")
    assert inflow.has_room
    assert sum(used) == 2 * MAX_WAITING_BYTES + 4


def test_what_is_written_goes_out_in_large_pieces() -> None:
    sent: list[bytes] = []
    out = Outflow(sent.append)
    for _ in range(300):
        out.write(bytes(1024))
    out.flush()
    out.flush()
    assert [len(data) for data in sent] == [256 * 1024, 44 * 1024]


async def test_the_other_side_of_a_transfer_that_fails_is_killed() -> None:
    killer = Killer()
    ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ours.set_exception(TransferError("the file is gone"))

    async def end(outcome: object) -> int:
        raise AssertionError

    with pytest.raises(TransferError, match="the file is gone"):
        await both_sides(ours, end, killer.kill)
    assert killer.kills == 1


async def test_an_owner_is_asked_for_once_and_numbers_never() -> None:
    asked: list[str | None] = []

    async def exec(command: Command) -> ExecResult:
        asked.append(command.user)
        known = command.user == "lab"
        return ExecResult(exit_code=0 if known else 1, stdout=b"4400\n4401\n" if known else b"")

    owners = Owners(exec)
    assert await owners.ids(None) == (0, 0)
    assert await owners.ids("12:13") == (12, 13)
    assert await owners.ids("lab") == await owners.ids("lab") == (4400, 4401)
    with pytest.raises(TransferError, match="does not know the user nobody"):
        await owners.ids("nobody")
    assert asked == ["lab", "nobody"]
