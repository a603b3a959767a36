"""What a prompt over ACP costs this process, beside the bare client of the package `agent-client-protocol`.

    python benchmarks/acp_prompts.py [--quick]

Both speak with the scripted agent of rollout.testing, as a process of this machine, and send it the same prompts. Each is
answered with a thought, two chunks of text, a command with its output, and usage (7 messages). `CPU` is what this process takes
for a prompt, the agent's own time not among it; it is to be below 5 ms. `wall` is what a user waits. `open` is one session:
process, handshake, end.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from acp import connect_to_agent, text_block

from rollout.testing import FakeEnvironment, FakeWorld, acp_agent
from rollout.testing.suite import agent_context, environment_spec
from rollout_acp.agent import AcpAgent
from rollout_acp.options import AcpOptions

TOLD = ("think hm", "say I look", "run true", "usage 9 1 0.01")
ARGV = [sys.executable, acp_agent.__file__, *(word for line in TOLD for word in ("--do", line))]
LIMIT_MS = 5.0


class Bare:
    """The package's client as its documentation shows it."""

    async def open(self, folder: Path) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*ARGV, stdin=pipe, stdout=pipe)
        self._connection = connect_to_agent(self, self._process.stdin, self._process.stdout)  # type: ignore[arg-type]
        await self._connection.initialize(protocol_version=1)
        self._session = (await self._connection.new_session(cwd=str(folder), mcp_servers=[])).session_id

    async def prompt(self) -> None:
        await self._connection.prompt(session_id=self._session, prompt=[text_block("go")])

    async def close(self) -> None:
        await self._connection.close()
        self._process.kill()
        await self._process.wait()

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        pass

    def on_connect(self, connection: Any) -> None:
        pass


class Ours:
    """A session of rollout-acp: filtered, recorded as a trajectory, logged."""

    async def open(self, folder: Path) -> None:
        environment = FakeEnvironment(FakeWorld(processes=True), environment_spec())
        context = agent_context(environment, folder, instruction="go", env={}, sink=lambda stream, chunk: None)
        context = msgspec.structs.replace(context, workdir=str(folder))
        self._session = await AcpAgent(AcpOptions(command=f"exec {shlex.join(ARGV)}"), context).connect()

    async def prompt(self) -> None:
        await self._session.prompt("go")

    async def close(self) -> None:
        await self._session.close()


async def measure(prompts: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, kind in (("bare client", Bare), ("rollout-acp", Ours)):
            figure = figures.setdefault(name, {"open": [], "CPU": [], "wall": []})
            with tempfile.TemporaryDirectory() as folder:
                client = kind()
                began = time.perf_counter()
                await client.open(Path(folder))
                opened = time.perf_counter() - began
                for _ in range(5):
                    await client.prompt()
                for _ in range(prompts):
                    cpu, wall = time.process_time(), time.perf_counter()
                    await client.prompt()
                    figure["CPU"].append(time.process_time() - cpu)
                    figure["wall"].append(time.perf_counter() - wall)
                began = time.perf_counter()
                await client.close()
                figure["open"].append(opened + time.perf_counter() - began)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the prompts")
    prompts = 20 if parser.parse_args().quick else 200
    figures = asyncio.run(measure(prompts, 3))
    print(f"{'ms, medians':12} {'CPU per prompt':>15} {'wall per prompt':>16} {'open':>8}")
    for name, figure in figures.items():
        cpu, wall, opened = (1000 * statistics.median(figure[key]) for key in ("CPU", "wall", "open"))
        print(f"{name:12} {cpu:15.2f} {wall:16.2f} {opened:8.0f}")
    ours = 1000 * statistics.median(figures["rollout-acp"]["CPU"])
    print(f"CPU per prompt is to be below {LIMIT_MS:g} ms: {'it is' if ours < LIMIT_MS else 'IT IS NOT'}")
    return 0 if ours < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
