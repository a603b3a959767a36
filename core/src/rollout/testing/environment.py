"""The contract of an environment backend, as tests: subclass `EnvironmentSuite` and say how to make the backend.

    class TestMine(EnvironmentSuite):
        capabilities = frozenset({EXEC_USER})
        known_failures = {"test_output_beyond_the_cap_is_cut_and_counted": "the engine truncates at 1 MiB"}

        def make(self, context: BackendContext) -> EnvironmentBackend:
            return MyBackend(MyOptions(), context)

Needs pytest and pytest-asyncio, and in the environment a POSIX shell and coreutils. A test of a capability that is not claimed is
skipped; one of a capability that is claimed must pass. A known failure must fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
import pytest_asyncio

from rollout.core.errors import CommandTimeoutError, EnvironmentLostError, RolloutError, TaskError, TransferError
from rollout.core.protocols import (
    API_VERSION,
    EXEC_USER,
    GPUS,
    LIVE_STDIO,
    NETWORK_NONE,
    SNAPSHOT,
    BackendContext,
    Environment,
    EnvironmentBackend,
    SnapshotBackend,
)
from rollout.core.types import Command, EnvironmentSpec, ExecResult, Resources, TransferLimits

Test = TypeVar("Test", bound=Callable[..., Any])
MEBIBYTE = 1 << 20

# Until `true`: polls, because what is waited for happens in another process.
_WAIT_UNTIL = "for i in $(seq 400); do {} && exit 0; sleep 0.05; done; echo gave up >&2; exit 1"


def requires(capability: str) -> Callable[[Test], Test]:
    """Skip the test unless the suite claims the capability."""

    def mark(test: Test) -> Test:
        test._rollout_capability = capability  # type: ignore[attr-defined]
        return test

    return mark


async def run(environment: Environment, script: str, **fields: Any) -> ExecResult:
    """Run a shell script."""
    return await environment.exec(Command(argv=("sh", "-c", script), **fields))


async def ok(environment: Environment, script: str, **fields: Any) -> str:
    """Run a shell script that must succeed; what it printed."""
    result = await run(environment, script, **fields)
    assert result.exit_code == 0, f"{script}: exit {result.exit_code}, {result.stderr.decode('utf-8', 'replace')}"
    return result.stdout.decode()


async def gone(environment: Environment, pid_file: str) -> bool:
    """Whether the process whose id a file in the environment holds is gone (a zombie counts as gone)."""
    script = f'p=$(cat {pid_file}); [ ! -e /proc/$p ] || grep -q "^State:.Z" /proc/$p/status'
    return (await run(environment, script)).exit_code == 0


class _ChangeError(Exception):
    """What a change to an image ends in."""


@pytest.mark.asyncio
class EnvironmentSuite:
    """What every environment backend must do."""

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What the backend claims on the machine where the tests run."""
    known_failures: ClassVar[dict[str, str]] = {}
    """Name of a test to the reason why it fails."""

    def make(self, context: BackendContext) -> EnvironmentBackend:
        """A backend. The only method a subclass must write."""
        raise NotImplementedError

    def spec(self, **changes: Any) -> EnvironmentSpec:
        """What to start; override to name an image."""
        fields: dict[str, Any] = {"task_name": "contract", "directory": None, "digest": "contract", "workdir": "/app"}
        return EnvironmentSpec(**{**fields, **changes})

    @pytest.fixture(autouse=True)
    def _gate(self, request: pytest.FixtureRequest) -> None:
        test = request.function
        capability = getattr(test, "_rollout_capability", None)
        if capability is not None and capability not in self.capabilities:
            pytest.skip(f"the backend does not claim {capability}")
        reason = self.known_failures.get(test.__name__)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture
    def context(self, tmp_path: Path) -> BackendContext:
        return BackendContext(job_id="contract", work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=8)

    @pytest_asyncio.fixture
    async def backend(self, context: BackendContext) -> AsyncIterator[EnvironmentBackend]:
        backend = self.make(context)
        try:
            yield backend
        finally:
            await backend.aclose()

    @pytest_asyncio.fixture
    async def environment(self, backend: EnvironmentBackend) -> AsyncIterator[Environment]:
        environment = await self.started(backend, self.spec())
        try:
            yield environment
        finally:
            await environment.stop()

    async def started(self, backend: EnvironmentBackend, spec: EnvironmentSpec) -> Environment:
        return await backend.start(spec, await backend.prepare(spec))

    # --- the plugin ---

    async def test_is_written_for_this_api_version(self, backend: EnvironmentBackend) -> None:
        assert backend.api_version[0] == API_VERSION[0]
        assert backend.api_version <= API_VERSION

    async def test_unknown_options_are_refused(self, backend: EnvironmentBackend) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"no-such-option": 1}, backend.options_type)

    async def test_has_the_capabilities_it_claims(self, backend: EnvironmentBackend) -> None:
        backend.check(self.spec())
        assert backend.capabilities == self.capabilities

    async def test_check_accepts_a_plain_task(self, backend: EnvironmentBackend) -> None:
        backend.check(self.spec())

    async def test_check_refuses_gpus_that_it_cannot_give(self, backend: EnvironmentBackend) -> None:
        if GPUS in self.capabilities:
            pytest.skip("the backend claims GPUs")
        with pytest.raises(TaskError):
            backend.check(self.spec(resources=Resources(gpus=1)))

    async def test_preparing_twice_gives_the_same_image(self, backend: EnvironmentBackend) -> None:
        assert await backend.prepare(self.spec()) == await backend.prepare(self.spec())

    async def test_reaping_an_unknown_job_finds_nothing(self, backend: EnvironmentBackend) -> None:
        assert list(await backend.reap("no-such-job")) == []

    async def test_an_environment_satisfies_the_protocol(self, environment: Environment) -> None:
        assert isinstance(environment, Environment)

    # --- exit codes ---

    @pytest.mark.parametrize("code", [0, 1, 2, 77, 125, 255])
    async def test_an_exit_code_is_a_result(self, environment: Environment, code: int) -> None:
        assert (await run(environment, f"exit {code}")).exit_code == code

    @pytest.mark.parametrize(("signal", "code"), [("TERM", 143), ("KILL", 137), ("ABRT", 134)])
    async def test_death_by_a_signal_is_128_plus_its_number(self, environment: Environment, signal: str, code: int) -> None:
        assert (await run(environment, f"kill -{signal} $$", timeout_sec=60.0)).exit_code == code

    async def test_a_missing_program_is_127(self, environment: Environment) -> None:
        assert (await environment.exec(Command(argv=("no-such-program-here",)))).exit_code == 127
        assert (await environment.exec(Command(argv=("/no/such/program",)))).exit_code == 127

    @pytest.mark.parametrize("path", ["/etc/passwd", "/etc"])
    async def test_a_program_that_cannot_be_executed_is_126(self, environment: Environment, path: str) -> None:
        assert (await environment.exec(Command(argv=(path,)))).exit_code == 126

    # --- arguments, input, output ---

    async def test_stdout_and_stderr_are_apart(self, environment: Environment) -> None:
        result = await run(environment, "echo out; echo err >&2")
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")

    async def test_output_is_bytes_as_they_are(self, environment: Environment) -> None:
        result = await run(environment, r"printf 'a\000b\377\r\n'")
        assert result.stdout == b"a\0b\xff\r\n"

    async def test_no_shell_reads_the_arguments(self, environment: Environment) -> None:
        words = ("$HOME", "a  b", "", "'\"", "x\ny", "*", "; exit 3", "\\", "-n", "žluť 木")
        result = await environment.exec(Command(argv=("printf", "[%s]", *words)))
        assert result.stdout.decode() == "".join(f"[{word}]" for word in words)

    async def test_a_program_is_looked_up_in_the_path_of_its_command(self, environment: Environment) -> None:
        await ok(
            environment,
            "mkdir -p /tmp/bin && printf '#!/bin/sh\\necho mine' > /tmp/bin/rollout-probe && chmod +x /tmp/bin/rollout-probe",
        )
        assert (await environment.exec(Command(argv=("rollout-probe",)))).exit_code == 127
        found = await environment.exec(Command(argv=("rollout-probe",), env={"PATH": "/tmp/bin:/usr/bin:/bin"}))
        assert (found.exit_code, found.stdout) == (0, b"mine\n")

    async def test_arguments_of_a_mebibyte_in_all_arrive(self, environment: Environment) -> None:
        words = ["x" * 100_000] * 10
        result = await environment.exec(Command(argv=("sh", "-c", 'printf %s "$@" | wc -c', "sh", *words)))
        assert result.stdout.strip() == b"1000000"

    async def test_an_argument_beyond_the_kernels_limit_is_a_result(self, environment: Environment) -> None:
        assert (await environment.exec(Command(argv=("true", "x" * 200_000)))).exit_code == 126

    @pytest.mark.parametrize("data", [None, b""])
    async def test_no_input_is_an_empty_input(self, environment: Environment, data: bytes | None) -> None:
        result = await environment.exec(Command(argv=("cat",), stdin=data, timeout_sec=60.0))
        assert (result.exit_code, result.stdout) == (0, b"")

    async def test_input_with_every_byte_arrives(self, environment: Environment) -> None:
        data = bytes(range(256)) * 3
        assert (await environment.exec(Command(argv=("cat",), stdin=data))).stdout == data

    async def test_fifty_mebibytes_of_input_arrive(self, environment: Environment) -> None:
        data = os.urandom(MEBIBYTE) * 50
        result = await environment.exec(Command(argv=("sha256sum",), stdin=data))
        assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()

    async def test_input_that_nobody_reads_does_no_harm(self, environment: Environment) -> None:
        result = await environment.exec(Command(argv=("true",), stdin=bytes(5 * MEBIBYTE), timeout_sec=60.0))
        assert result.exit_code == 0

    async def test_output_beyond_the_cap_is_cut_and_counted(self, environment: Environment) -> None:
        result = await run(environment, "seq 1000000; echo end >&2", max_output_bytes=100)
        whole = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
        assert result.stdout == whole[-100:]
        assert result.stdout_cut_bytes == len(whole) - 100
        assert (result.stderr, result.stderr_cut_bytes) == (b"end\n", 0)

    async def test_a_sink_gets_all_output_in_order(self, environment: Environment) -> None:
        chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        command = Command(
            argv=("sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done"), max_output_bytes=10
        )
        await environment.exec(command, lambda stream, chunk: chunks[stream].append(chunk))
        assert b"".join(chunks["stdout"]).decode().split() == [f"o{i}" for i in range(3000)]
        assert b"".join(chunks["stderr"]).decode().split() == [f"e{i}" for i in range(3000)]

    async def test_a_sink_gets_output_while_the_command_runs(self, environment: Environment) -> None:
        printed = asyncio.Event()
        command = Command(argv=("sh", "-c", "echo started; " + _WAIT_UNTIL.format("test -e /tmp/go-on")))
        running = asyncio.ensure_future(environment.exec(command, lambda stream, chunk: printed.set()))
        async with asyncio.timeout(60):
            await printed.wait()
        assert not running.done()
        await ok(environment, "touch /tmp/go-on")
        assert (await running).exit_code == 0

    async def test_much_output_at_once_arrives(self, environment: Environment) -> None:
        result = await run(environment, f"head -c {30 * MEBIBYTE} /dev/zero", max_output_bytes=40 * MEBIBYTE)
        assert len(result.stdout) == 30 * MEBIBYTE

    async def test_fifty_commands_run_at_once(self, environment: Environment) -> None:
        results = await asyncio.gather(*(run(environment, f"sleep 0.2; echo {i}; exit {i}") for i in range(50)))
        assert [(result.exit_code, result.stdout) for result in results] == [(i, f"{i}\n".encode()) for i in range(50)]

    # --- variables, folder, user ---

    async def test_variables_of_the_host_are_not_inherited(
        self, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ROLLOUT_CONTRACT_SECRET", "leaked")
        assert "ROLLOUT_CONTRACT_SECRET" not in await ok(environment, "env")

    async def test_path_and_home_are_set(self, environment: Environment) -> None:
        assert await ok(environment, 'command -v cat && test -n "$HOME" && echo yes')

    async def test_variables_of_a_command_arrive_unchanged(self, environment: Environment) -> None:
        value = "a b\n'\"$HOME`id`\\ žluť 木"
        assert await ok(environment, 'printf %s "$PROBE"', env={"PROBE": value}) == value

    async def test_variables_of_a_command_are_only_its_own(self, environment: Environment) -> None:
        assert await ok(environment, "echo $PROBE", env={"PROBE": "1"}) == "1\n"
        assert await ok(environment, "echo $PROBE") == "\n"

    async def test_variables_of_the_spec_are_everywhere_and_give_way(self, backend: EnvironmentBackend) -> None:
        environment = await self.started(backend, self.spec(env={"PROBE": "spec", "OTHER": "kept"}))
        try:
            assert await ok(environment, "echo $PROBE $OTHER") == "spec kept\n"
            assert await ok(environment, "echo $PROBE $OTHER", env={"PROBE": "command"}) == "command kept\n"
        finally:
            await environment.stop()

    async def test_commands_start_in_the_working_directory(self, environment: Environment) -> None:
        assert await ok(environment, "pwd") == "/app\n"

    async def test_a_working_directory_that_is_missing_is_made(self, backend: EnvironmentBackend) -> None:
        environment = await self.started(backend, self.spec(workdir="/srv/rollout/deep"))
        try:
            assert await ok(environment, "pwd") == "/srv/rollout/deep\n"
        finally:
            await environment.stop()

    async def test_a_folder_may_be_given_absolute_or_relative(self, environment: Environment) -> None:
        await ok(environment, "mkdir -p /app/sub/folder")
        assert await ok(environment, "pwd", cwd="/tmp") == "/tmp\n"
        assert await ok(environment, "pwd", cwd="sub/folder") == "/app/sub/folder\n"

    async def test_a_command_in_a_missing_folder_does_not_run(self, environment: Environment) -> None:
        result = await run(environment, "touch /tmp/ran", cwd="/no/such/folder")
        assert result.exit_code != 0
        assert (await run(environment, "test -e /tmp/ran")).exit_code == 1

    @requires(EXEC_USER)
    @pytest.mark.parametrize(("user", "ids"), [("nobody", "65534"), ("12345", "12345"), ("12345:54321", "12345"), ("0", "0")])
    async def test_a_command_runs_as_its_user(self, environment: Environment, user: str, ids: str) -> None:
        assert await ok(environment, "id -u", user=user, cwd="/") == f"{ids}\n"

    @requires(EXEC_USER)
    async def test_a_group_may_be_given_with_the_user(self, environment: Environment) -> None:
        assert await ok(environment, "id -g", user="12345:54321", cwd="/") == "54321\n"

    @requires(EXEC_USER)
    async def test_another_user_may_not_do_what_root_may(self, environment: Environment) -> None:
        await ok(environment, "mkdir -m 700 /tmp/private && echo secret > /tmp/private/file")
        assert (await run(environment, "cat /tmp/private/file", user="nobody", cwd="/")).exit_code != 0

    @requires(EXEC_USER)
    async def test_another_user_may_open_its_standard_streams(self, environment: Environment) -> None:
        result = await run(environment, "echo out > /dev/stdout; echo err > /dev/stderr", user="nobody", cwd="/")
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")

    @requires(EXEC_USER)
    async def test_an_unknown_user_does_not_run(self, environment: Environment) -> None:
        try:
            result = await run(environment, "true", user="no-such-user-here", cwd="/")
        except RolloutError:
            return
        assert result.exit_code != 0

    # --- deadlines and kills ---

    async def test_a_deadline_raises(self, environment: Environment) -> None:
        with pytest.raises(CommandTimeoutError):
            await run(environment, "sleep 600", timeout_sec=0.3)

    async def test_a_command_within_its_deadline_is_left_alone(self, environment: Environment) -> None:
        assert (await run(environment, "echo done", timeout_sec=60.0)).stdout == b"done\n"

    async def test_a_deadline_kills_the_whole_tree(self, environment: Environment) -> None:
        script = "(sh -c 'echo $$ > /tmp/grandchild; while :; do sleep 1; done' &) ; echo $$ > /tmp/main; exec sleep 600"
        with pytest.raises(CommandTimeoutError):
            await run(environment, script, timeout_sec=1.0)
        assert await gone(environment, "/tmp/main")
        assert await gone(environment, "/tmp/grandchild")

    async def test_a_deadline_kills_what_ignores_signals(self, environment: Environment) -> None:
        with pytest.raises(CommandTimeoutError):
            await run(environment, "trap '' TERM INT HUP; echo $$ > /tmp/main; while :; do sleep 1; done", timeout_sec=0.5)
        assert await gone(environment, "/tmp/main")

    async def test_the_environment_is_usable_after_a_deadline(self, environment: Environment) -> None:
        with pytest.raises(CommandTimeoutError):
            await run(environment, "sleep 600", timeout_sec=0.2)
        assert await ok(environment, "echo alive") == "alive\n"

    async def test_cancelling_kills_the_whole_tree(self, environment: Environment) -> None:
        script = "(sh -c 'echo $$ > /tmp/grandchild; while :; do sleep 1; done' &) ; echo $$ > /tmp/main; exec sleep 600"
        running = asyncio.ensure_future(run(environment, script))
        await ok(environment, _WAIT_UNTIL.format("test -s /tmp/grandchild -a -s /tmp/main"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await gone(environment, "/tmp/main")
        assert await gone(environment, "/tmp/grandchild")

    async def test_a_deadline_spares_other_commands(self, environment: Environment) -> None:
        other = asyncio.ensure_future(run(environment, _WAIT_UNTIL.format("test -e /tmp/go-on")))
        with pytest.raises(CommandTimeoutError):
            await run(environment, "sleep 600", timeout_sec=0.3)
        await ok(environment, "touch /tmp/go-on")
        assert (await other).exit_code == 0

    async def test_a_service_in_a_session_of_its_own_survives_its_command(self, environment: Environment) -> None:
        await ok(environment, "setsid sh -c 'echo $$ > /tmp/service; exec sleep 600' < /dev/null > /dev/null 2>&1 &")
        await ok(environment, _WAIT_UNTIL.format("test -s /tmp/service"))
        assert not await gone(environment, "/tmp/service")

    async def test_a_service_in_a_session_of_its_own_survives_a_deadline(self, environment: Environment) -> None:
        start = "setsid sh -c 'echo $$ > /tmp/service; exec sleep 600' < /dev/null > /dev/null 2>&1 & sleep 600"
        with pytest.raises(CommandTimeoutError):
            await run(environment, start, timeout_sec=1.0)
        await ok(environment, _WAIT_UNTIL.format("test -s /tmp/service"))
        assert not await gone(environment, "/tmp/service")

    async def test_a_background_process_that_holds_the_output_does_not_hold_the_command(self, environment: Environment) -> None:
        result = await run(environment, "sleep 600 & echo $! > /tmp/background; echo done", timeout_sec=60.0)
        assert (result.exit_code, result.stdout) == (0, b"done\n")
        assert not await gone(environment, "/tmp/background")

    async def test_a_background_process_may_go_on_printing(self, environment: Environment) -> None:
        await ok(
            environment, "(while :; do echo noise || exit; echo beat > /tmp/beat; sleep 0.05; done) & echo $! > /tmp/background"
        )
        await ok(environment, "rm -f /tmp/beat; " + _WAIT_UNTIL.format("test -s /tmp/beat"))
        assert not await gone(environment, "/tmp/background")

    # --- files in ---

    async def test_upload_of_a_file_makes_parents_and_keeps_the_mode(self, environment: Environment, tmp_path: Path) -> None:
        source = tmp_path / "tool"
        source.write_bytes(b"#!/bin/sh\necho ran $0\n")
        source.chmod(0o751)
        await environment.upload(source, "/opt/rollout test/deep/tool")
        assert await ok(environment, "'/opt/rollout test/deep/tool'") == "ran /opt/rollout test/deep/tool\n"
        assert await ok(environment, "stat -c %a '/opt/rollout test/deep/tool'") == "751\n"

    async def test_upload_of_a_file_replaces_one(self, environment: Environment, tmp_path: Path) -> None:
        source = tmp_path / "file"
        for text in ("a longer first version", "second"):
            source.write_text(text)
            await environment.upload(source, "/app/file")
        assert await ok(environment, "cat /app/file") == "second"

    async def test_upload_of_a_folder_merges_into_one(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir -p /app/data/sub && echo kept > /app/data/sub/kept && echo old > /app/data/both")
        source = tmp_path / "data"
        (source / "sub").mkdir(parents=True)
        (source / "both").write_text("new\n")
        (source / "sub" / "added").write_text("added\n")
        await environment.upload(source, "/app/data")
        assert await ok(environment, "cd /app/data && cat both sub/kept sub/added") == "new\nkept\nadded\n"

    async def test_upload_keeps_empty_files_and_folders(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "data" / "empty").mkdir(parents=True)
        (tmp_path / "data" / "nothing").touch()
        await environment.upload(tmp_path / "data", "/app/data")
        await ok(environment, "test -d /app/data/empty && test -f /app/data/nothing && test ! -s /app/data/nothing")

    async def test_upload_copies_links_as_links(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "relative").symlink_to("target")
        (tmp_path / "data" / "absolute").symlink_to("/no/such/target")
        await environment.upload(tmp_path / "data", "/app/data")
        assert await ok(environment, "cd /app/data && readlink relative absolute") == "target\n/no/such/target\n"

    async def test_files_belong_to_root_unless_told(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        await environment.upload(tmp_path / "file", "/app/file")
        assert await ok(environment, "stat -c %u /app/file") == "0\n"

    @requires(EXEC_USER)
    async def test_upload_gives_files_to_their_owner(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "data" / "sub").mkdir(parents=True)
        (tmp_path / "data" / "sub" / "file").touch()
        await environment.upload(tmp_path / "data", "/app/data", owner="nobody")
        assert await ok(environment, "cd /app && stat -c %u data data/sub data/sub/file") == "65534\n" * 3

    async def test_upload_of_something_missing_is_an_error(self, environment: Environment, tmp_path: Path) -> None:
        with pytest.raises(TransferError):
            await environment.upload(tmp_path / "missing", "/app/missing")
        assert await ok(environment, "echo alive") == "alive\n"

    async def test_upload_leaves_out_a_fifo(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        os.mkfifo(tmp_path / "data" / "fifo")
        (tmp_path / "data" / "file").write_text("there")
        await environment.upload(tmp_path / "data", "/app/data")
        assert await ok(environment, "ls /app/data") == "file\n"

    # --- both ways ---

    async def test_odd_names_survive_both_ways(self, environment: Environment, tmp_path: Path) -> None:
        names: list[str | bytes] = [
            "a b",
            "new\nline",
            "-n",
            "'\"`$x",
            "žluť 木",
            "*",
            "\\",
            " ",
            "x" * 200,
            ".hidden",
            "é",
            "é".encode("latin-1"),
        ]
        source = os.fsencode(tmp_path / "in")
        os.mkdir(source)
        for number, name in enumerate(names):
            Path(os.fsdecode(os.path.join(source, os.fsencode(name)))).write_text(str(number))
        await environment.upload(tmp_path / "in", "/app/names")
        report = await environment.download("/app/names", tmp_path / "out")
        assert sorted(os.listdir(os.fsencode(tmp_path / "out"))) == sorted(os.fsencode(name) for name in names)
        assert (report.files, report.skipped_count) == (len(names), 0)

    async def test_deep_folders_and_long_paths_survive_both_ways(self, environment: Environment, tmp_path: Path) -> None:
        folder = tmp_path / "in" / "/".join(["folder-with-a-longish-name"] * 20)
        folder.mkdir(parents=True)
        (folder / "file").write_text("deep")
        await environment.upload(tmp_path / "in", "/app/deep")
        await environment.download("/app/deep", tmp_path / "out")
        assert (tmp_path / "out" / folder.relative_to(tmp_path / "in") / "file").read_text() == "deep"

    async def test_fifty_mebibytes_survive_both_ways(self, environment: Environment, tmp_path: Path) -> None:
        data = os.urandom(MEBIBYTE) * 50
        (tmp_path / "large").write_bytes(data)
        await environment.upload(tmp_path / "large", "/app/large")
        report = await environment.download("/app/large", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data
        assert (report.files, report.total_bytes) == (1, len(data))

    async def test_thousands_of_small_files_survive_both_ways(self, environment: Environment, tmp_path: Path) -> None:
        for folder in range(20):
            (tmp_path / "in" / str(folder)).mkdir(parents=True)
            for number in range(100):
                (tmp_path / "in" / str(folder) / str(number)).write_text(f"{folder}/{number}")
        await environment.upload(tmp_path / "in", "/app/many")
        report = await environment.download("/app/many", tmp_path / "out")
        assert report.files == 2000
        assert (tmp_path / "out" / "19" / "99").read_text() == "19/99"

    async def test_transfers_run_at_once(self, environment: Environment, tmp_path: Path) -> None:
        for number in range(20):
            (tmp_path / f"in{number}").write_text(str(number))
        await asyncio.gather(*(environment.upload(tmp_path / f"in{i}", f"/app/{i}") for i in range(20)))
        await asyncio.gather(*(environment.download(f"/app/{i}", tmp_path / f"out{i}") for i in range(20)))
        assert [(tmp_path / f"out{i}").read_text() for i in range(20)] == [str(i) for i in range(20)]

    # --- files out ---

    async def test_download_of_something_missing_is_file_not_found(self, environment: Environment, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="/app/missing"):
            await environment.download("/app/missing", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    async def test_download_of_a_folder_merges_into_one(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir -p /app/data/sub && echo new > /app/data/sub/both")
        (tmp_path / "out" / "sub").mkdir(parents=True)
        (tmp_path / "out" / "sub" / "both").write_text("old")
        (tmp_path / "out" / "sub" / "kept").write_text("kept")
        await environment.download("/app/data", tmp_path / "out")
        assert (tmp_path / "out" / "sub" / "both").read_text() == "new\n"
        assert (tmp_path / "out" / "sub" / "kept").read_text() == "kept"

    async def test_the_host_can_read_and_remove_what_was_downloaded(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir -p /app/data/closed && echo x > /app/data/closed/file")
        await ok(environment, "chmod 4755 /app/data/closed/file; chmod 000 /app/data/closed/file /app/data/closed")
        await environment.download("/app/data", tmp_path / "out")
        folder, file = tmp_path / "out" / "closed", tmp_path / "out" / "closed" / "file"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) in (0o600, 0o700)
        assert folder.stat().st_uid == os.geteuid()

    async def test_a_program_stays_executable(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "printf '#!/bin/sh' > /app/tool && chmod 755 /app/tool")
        await environment.download("/app/tool", tmp_path / "tool")
        assert (tmp_path / "tool").stat().st_mode & 0o100

    async def test_links_out_of_the_folder_are_left_out_and_reported(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("of the host")
        script = "mkdir -p /app/data/sub && cd /app/data && ln -s /etc/passwd absolute && ln -s ../../../../secret up"
        script += f" && ln -s {tmp_path} host"
        await ok(environment, script + " && ln -s . here && ln -s here/../.. sneaky && echo fine > file && ln -s file inside")
        report = await environment.download("/app/data", tmp_path / "deep" / "out")
        out = tmp_path / "deep" / "out"
        for name in ("absolute", "up", "host", "sneaky"):
            assert not os.path.lexists(out / name), name
        assert {name for name, _ in report.skipped} == {"absolute", "up", "host", "sneaky"}
        assert (out / "inside").read_text() == "fine\n"

    async def test_nothing_is_written_through_a_link_on_the_host(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir -p /app/data/sub && echo theirs > /app/data/sub/file && echo theirs > /app/data/top")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "precious").write_text("mine")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "sub").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "out" / "top").symlink_to(tmp_path / "precious")
        report = await environment.download("/app/data", tmp_path / "out")
        assert list((tmp_path / "elsewhere").iterdir()) == []
        assert (tmp_path / "precious").read_text() == "mine"
        assert report.skipped_count >= 1

    async def test_a_link_in_place_of_what_is_asked_for_is_not_followed(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "echo secret > /tmp/secret && ln -s /tmp/secret /app/reward.txt")
        report = await environment.download("/app/reward.txt", tmp_path / "out")
        assert report.files == 0
        assert not os.path.lexists(tmp_path / "out")

    async def test_fifos_are_left_out_and_reported(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir /app/data && cd /app/data && mkfifo fifo && echo x > file")
        async with asyncio.timeout(60):
            report = await environment.download("/app/data", tmp_path / "out")
        assert os.listdir(tmp_path / "out") == ["file"]
        assert [name for name, _ in report.skipped] == ["fifo"]

    async def test_files_beyond_a_limit_are_left_out_and_reported(self, environment: Environment, tmp_path: Path) -> None:
        await ok(
            environment, "mkdir /app/data && cd /app/data && head -c 1001 /dev/zero > large && head -c 1000 /dev/zero > fits"
        )
        report = await environment.download("/app/data", tmp_path / "out", TransferLimits(max_file_bytes=1000))
        assert os.listdir(tmp_path / "out") == ["fits"]
        assert [name for name, _ in report.skipped] == ["large"]

    async def test_a_total_beyond_the_limit_is_left_out_and_reported(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir /app/data && cd /app/data && for i in 1 2 3 4 5; do head -c 1000 /dev/zero > $i; done")
        report = await environment.download("/app/data", tmp_path / "out", TransferLimits(max_total_bytes=3500))
        assert (report.files, report.total_bytes, report.skipped_count) == (3, 3000, 2)

    async def test_more_files_than_the_limit_are_reported(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir /app/data && cd /app/data && touch $(seq 50)")
        report = await environment.download("/app/data", tmp_path / "out", TransferLimits(max_files=10))
        assert report.files <= 10
        assert report.skipped_count >= 1
        assert await ok(environment, "echo alive") == "alive\n"

    async def test_a_huge_sparse_file_is_left_out(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir /app/data && truncate -s 5G /app/data/sparse && echo x > /app/data/file")
        async with asyncio.timeout(120):
            report = await environment.download("/app/data", tmp_path / "out")
        assert os.listdir(tmp_path / "out") == ["file"]
        assert [name for name, _ in report.skipped] == ["sparse"]

    async def test_logs_can_be_made_and_copied(self, environment: Environment, tmp_path: Path) -> None:
        await ok(environment, "mkdir -p /logs/agent /logs/verifier && echo 1 > /logs/verifier/reward.txt")
        await environment.download("/logs", tmp_path / "logs")
        assert (tmp_path / "logs" / "verifier" / "reward.txt").read_text() == "1\n"

    # --- live streams ---

    @requires(LIVE_STDIO)
    async def test_a_live_process_talks_both_ways(self, environment: Environment) -> None:
        process = await environment.open(Command(argv=("sh", "-c", 'while read line; do echo "got $line"; done; exit 5')))
        output = process.output()
        async with asyncio.timeout(60):
            for word in ("one", "two"):
                await process.write(f"{word}\n".encode())
                assert await anext(output) == f"got {word}\n".encode()
            await process.close_stdin()
            assert [chunk async for chunk in output] == []
            assert await process.wait() == 5

    @requires(LIVE_STDIO)
    async def test_a_live_process_takes_more_than_a_pipe_holds(self, environment: Environment) -> None:
        process = await environment.open(Command(argv=("sha256sum",)))
        data = os.urandom(MEBIBYTE)
        async with asyncio.timeout(60):
            for _ in range(5):
                await process.write(data)
            await process.close_stdin()
            text = b"".join([chunk async for chunk in process.output()])
            assert await process.wait() == 0
        assert text.split()[0].decode() == hashlib.sha256(data * 5).hexdigest()

    @requires(LIVE_STDIO)
    async def test_stderr_of_a_live_process_goes_to_the_sink(self, environment: Environment) -> None:
        chunks: list[tuple[str, bytes]] = []
        command = Command(argv=("sh", "-c", "echo err >&2; echo out"))
        process = await environment.open(command, lambda stream, chunk: chunks.append((stream, chunk)))
        assert b"".join([chunk async for chunk in process.output()]) == b"out\n"
        await process.wait()
        assert chunks == [("stderr", b"err\n")]

    @requires(LIVE_STDIO)
    async def test_killing_a_live_process_kills_its_tree_and_may_be_repeated(self, environment: Environment) -> None:
        script = "(sh -c 'echo $$ > /tmp/grandchild; while :; do sleep 1; done' &) ; echo started; sleep 600"
        process = await environment.open(Command(argv=("sh", "-c", script)))
        assert await anext(process.output()) == b"started\n"
        await ok(environment, _WAIT_UNTIL.format("test -s /tmp/grandchild"))
        await process.kill()
        await process.kill()
        assert await process.wait() == 137
        assert await gone(environment, "/tmp/grandchild")

    @requires(LIVE_STDIO)
    async def test_stopping_ends_a_live_process(self, backend: EnvironmentBackend) -> None:
        environment = await self.started(backend, self.spec())
        process = await environment.open(Command(argv=("cat",)))
        await environment.stop()
        with pytest.raises(EnvironmentLostError):
            await process.wait()

    # --- the network ---

    @requires(NETWORK_NONE)
    async def test_without_a_network_there_is_only_the_loopback(self, backend: EnvironmentBackend) -> None:
        environment = await self.started(backend, self.spec(network="none"))
        try:
            devices = [
                line.split(":")[0].strip() for line in (await ok(environment, "cat /proc/net/dev")).splitlines() if ":" in line
            ]
        finally:
            await environment.stop()
        assert devices == ["lo"]

    # --- life and death ---

    async def test_stop_may_be_repeated(self, backend: EnvironmentBackend) -> None:
        environment = await self.started(backend, self.spec())
        await asyncio.gather(environment.stop(), environment.stop())
        await environment.stop()

    async def test_a_stopped_environment_is_lost(self, backend: EnvironmentBackend, tmp_path: Path) -> None:
        environment = await self.started(backend, self.spec())
        await environment.stop()
        with pytest.raises(EnvironmentLostError):
            await run(environment, "true")
        with pytest.raises(EnvironmentLostError):
            await environment.upload(Path(sys.executable), "/app/file")
        with pytest.raises(EnvironmentLostError):
            await environment.download("/etc/passwd", tmp_path / "out")

    async def test_a_command_under_way_when_the_environment_stops_is_lost(self, backend: EnvironmentBackend) -> None:
        environment = await self.started(backend, self.spec())
        started = asyncio.Event()
        command = Command(argv=("sh", "-c", "echo started; sleep 600"))
        running = asyncio.ensure_future(environment.exec(command, lambda stream, chunk: started.set()))
        async with asyncio.timeout(60):
            await started.wait()
        await environment.stop()
        with pytest.raises(EnvironmentLostError):
            await running

    async def test_two_environments_do_not_see_each_other(self, backend: EnvironmentBackend) -> None:
        one, other = await asyncio.gather(*(self.started(backend, self.spec()) for _ in range(2)))
        try:
            await ok(one, "echo mine | tee /tmp/mine /app/mine /etc/mine > /dev/null; setsid sleep 12345 > /dev/null 2>&1 &")
            assert await ok(other, "ls /tmp/mine /app/mine /etc/mine 2> /dev/null || true") == ""
            seen = await ok(other, "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' ' '")
            assert "12345" not in seen
        finally:
            await asyncio.gather(one.stop(), other.stop())

    async def test_a_new_environment_is_fresh(self, backend: EnvironmentBackend) -> None:
        one = await self.started(backend, self.spec())
        await ok(one, "echo left > /usr/local/left && echo left > /app/left")
        await one.stop()
        other = await self.started(backend, self.spec())
        try:
            await ok(other, "test ! -e /usr/local/left && test ! -e /app/left && test ! -e /tests && test ! -e /oracle")
        finally:
            await other.stop()

    @pytest.mark.parametrize("delay_sec", [0.0, 0.005, 0.02, 0.1])
    async def test_a_start_that_is_cancelled_does_no_harm(self, backend: EnvironmentBackend, delay_sec: float) -> None:
        image = await backend.prepare(self.spec())
        starting = asyncio.ensure_future(backend.start(self.spec(), image))
        await asyncio.sleep(delay_sec)
        starting.cancel()
        try:
            await (await starting).stop()
        except asyncio.CancelledError:
            pass
        environment = await backend.start(self.spec(), image)
        assert await ok(environment, "echo alive") == "alive\n"
        await environment.stop()

    # --- snapshots ---

    @requires(SNAPSHOT)
    async def test_a_snapshot_is_what_sandboxes_start_from_and_do_not_change(self, backend: SnapshotBackend) -> None:
        spec = self.spec()

        async def change(environment: Environment) -> None:
            await ok(environment, "mkdir -p /opt/kept && echo one > /opt/kept/file && rm /etc/profile && echo x > /app/own")

        kept = await backend.snapshot(spec, await backend.prepare(spec), "key", change)
        assert kept is not None
        for _ in range(2):
            environment = await backend.start(spec, kept)
            try:
                said = await ok(
                    environment,
                    "cat /opt/kept/file /app/own; echo two > /opt/kept/file; ls /etc/profile 2>/dev/null || echo none",
                )
                assert said.split() == ["one", "x", "none"]
            finally:
                await environment.stop()
        plain = await self.started(backend, spec)
        try:
            assert (await run(plain, "ls /opt/kept")).exit_code != 0, "the image itself has changed"
        finally:
            await plain.stop()
        await backend.remove(kept)

    @requires(SNAPSHOT)
    async def test_a_snapshot_of_a_known_key_is_not_made_again(self, backend: SnapshotBackend) -> None:
        spec, image, made = self.spec(), await backend.prepare(self.spec()), 0

        async def change(environment: Environment) -> None:
            nonlocal made
            made += 1

        first = await backend.snapshot(spec, image, "key", change)
        assert await backend.snapshot(spec, image, "key", change) == first
        assert made == 1
        assert first is not None
        assert await backend.snapshot(spec, image, "key", change, force=True) is not None
        assert made == 2
        other = await backend.snapshot(spec, image, "another key", change)
        assert other is not None
        assert other != first
        assert made == 3
        for kept in (other, first):
            await backend.remove(kept)

    @requires(SNAPSHOT)
    async def test_nothing_is_kept_of_a_change_that_fails(self, backend: SnapshotBackend) -> None:
        spec, image, tries = self.spec(), await backend.prepare(self.spec()), 0

        async def change(environment: Environment) -> None:
            nonlocal tries
            tries += 1
            await ok(environment, f"test ! -e /opt/try && echo {tries} > /opt/try")
            if tries == 1:
                raise _ChangeError

        with pytest.raises(_ChangeError):
            await backend.snapshot(spec, image, "key", change)
        kept = await backend.snapshot(spec, image, "key", change)
        assert kept is not None
        environment = await backend.start(spec, kept)
        try:
            assert await ok(environment, "cat /opt/try") == "2\n"
        finally:
            await environment.stop()
        await backend.remove(kept)

    async def test_eight_environments_run_at_once(self, backend: EnvironmentBackend) -> None:
        environments = await asyncio.gather(*(self.started(backend, self.spec()) for _ in range(8)))
        try:
            await asyncio.gather(*(ok(environment, f"echo {i} > /app/number") for i, environment in enumerate(environments)))
            numbers = await asyncio.gather(*(ok(environment, "cat /app/number") for environment in environments))
            assert numbers == [f"{i}\n" for i in range(8)]
        finally:
            await asyncio.gather(*(environment.stop() for environment in environments))
