"""Running an agent's program inside the trial's environment: alone, or in the hands of a test that it cannot deceive."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from importlib import resources
from pathlib import Path
from uuid import uuid4

import msgspec

from rollout.core.errors import CommandTimeoutError, VerifierError
from rollout.core.protocols import TrialView
from rollout.core.types import Command, ExecResult, Struct

_MAX_OUTPUT = 4 * 1024 * 1024

# A program must not be able to do more than the agent that wrote it: not as the verifier's root what the walls forbid.
_AS_NOBODY = """folder=$1; shift
[ "$(id -u)" = 0 ] || exec "$@"
export HOME="$folder" TMPDIR="$folder"
for way in "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs" "chroot --userspec=65534:65534 --skip-chdir /"; do
    if $way test -x "$(command -v "$1")" 2>/dev/null; then chown -R 65534:65534 "$folder"; exec $way "$@"; fi
done
exec "$@"
"""

_LOAD = """import sys, types
for name, text in sources.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
"""
_TEST = """import json, sys
given = json.loads(sys.stdin.buffer.read().decode())
sources = given["sources"]
{load}sys.modules["rollout_rewards.inside.tester"].main(given)
"""


class Verdict(Struct, frozen=True, kw_only=True):
    """What came of one run or test."""

    passed: bool
    why: str = ""
    warning: str = ""


class _Said(msgspec.Struct, frozen=True):
    """The line of `inside.tester`."""

    passed: bool = False
    why: str = ""
    broken: str = ""
    refused: str = ""


class Runs(Struct, frozen=True, kw_only=True):
    """How programs are run in one trial."""

    trial: TrialView
    command: tuple[str, ...]
    suffix: str
    timeout_sec: float

    async def run(self, program: str, given: str) -> tuple[Verdict, str]:
        """Run a program to its end with `given` on standard input; what it printed.

        Raises:
            VerifierError: the environment cannot run the command.
        """
        file = f"/tmp/rollout-code-{uuid4().hex}/program{self.suffix}"
        await self._upload(program, file)
        folder = file.rpartition("/")[0]
        argv = tuple(word.replace("{file}", file) for word in self.command)
        try:
            done = await self._exec(("sh", "-c", _AS_NOBODY, "sh", folder, *argv), given.encode())
        except CommandTimeoutError:
            return Verdict(passed=False, why=self._too_long), ""
        finally:
            await self.trial.environment.exec(Command(argv=("rm", "-rf", folder), user=self.trial.user))
        self._check_started(done)
        if done.exit_code != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return Verdict(passed=False, why=f"exit code {done.exit_code}{': ' + said[-1][:200] if said else ''}"), ""
        return Verdict(passed=True), done.stdout.decode("utf-8", "replace")

    async def test(self, program: str, test: str, entry: str | None) -> Verdict:
        """Let a test in Python ask the program for its names from another process.

        Raises:
            VerifierError: the environment has no such Python, or the test itself is at fault.
        """
        nonce = uuid4().hex
        loaded = _sources()
        start = f"sources = {loaded!r}\n{_LOAD}sys.modules['rollout_rewards.inside.program'].main(*map(int, sys.argv[1:]))\n"
        given = {
            "nonce": nonce,
            "program": program,
            "test": test,
            "entry": entry,
            "sources": loaded,
            "start": start,
        }
        try:
            done = await self._exec((self.command[0], "-I", "-c", _TEST.format(load=_LOAD)), msgspec.json.encode(given))
        except CommandTimeoutError:
            return Verdict(passed=False, why=self._too_long)
        self._check_started(done)
        if not done.stdout.startswith(nonce.encode()):
            end = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise VerifierError(f"the test of the program gave no verdict (exit code {done.exit_code}): {end}")
        verdict = msgspec.json.decode(done.stdout[len(nonce) :], type=_Said)
        if verdict.broken:
            raise VerifierError(f"the test of the program: {verdict.broken}")
        warning = f"the test asks for {verdict.refused}, which only `shared: true` allows" if verdict.refused else ""
        return Verdict(passed=verdict.passed and not verdict.refused, why=verdict.why or verdict.refused, warning=warning)

    @property
    def _too_long(self) -> str:
        return f"took more than {self.timeout_sec:g} s"

    async def _exec(self, argv: tuple[str, ...], given: bytes) -> ExecResult:
        trial = self.trial
        command = Command(
            argv=argv,
            stdin=given,
            cwd=trial.workdir,
            user=trial.user,
            timeout_sec=self.timeout_sec,
            max_output_bytes=_MAX_OUTPUT,
        )
        return await trial.environment.exec(command, trial.sink)

    async def _upload(self, program: str, file: str) -> None:
        with tempfile.TemporaryDirectory(prefix="rollout-code-") as scratch:
            copy = Path(scratch) / "program"
            copy.write_text(program, "utf-8", "replace")
            copy.chmod(0o644)
            await self.trial.environment.upload(copy, file, owner=self.trial.user)

    def _check_started(self, done: ExecResult) -> None:
        if done.exit_code in (126, 127) and not done.stdout:
            said = done.stderr.decode("utf-8", "replace").strip()[-200:]
            raise VerifierError(f"the environment cannot run {self.command[0]}: {said}")


@lru_cache(maxsize=1)
def _sources() -> dict[str, str]:
    """The modules that are loaded inside, in the order of their imports."""
    folder = resources.files("rollout_rewards.inside")
    package = {"rollout_rewards": "", "rollout_rewards.inside": ""}
    return package | {
        f"rollout_rewards.inside.{name}": (folder / f"{name}.py").read_text("utf-8") for name in ("wire", "program", "tester")
    }
