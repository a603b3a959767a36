"""How the command line finds its commands and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import rollout.cli.main as main
from rollout.cli.main import run
from rollout.core.errors import ConfigError, InternalError, StoreError, TaskError
from rollout.core.plugins import override
from unit.job_folder import trial, write_job_folder


def ended(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def command_that(raises: BaseException | None = None, returns: object = None) -> click.Command:
    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def boom(as_json: bool) -> object:
        if raises is not None:
            raise raises
        return returns

    return boom


def test_no_arguments_print_the_help_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(capsys)
    assert code == 2
    assert out == ""
    assert "Commands:" in err


def test_help_lists_every_command_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(capsys, "--help")
    assert code == 0
    listed = [line.split() for line in out.split("Commands:\n")[1].splitlines() if line.startswith("  ")]
    names = [words[0] for words in listed]
    for name in ("run", "show", "regrade", "config", "tasks", "datasets", "plugins", "clean", "schema", "trial", "completion"):
        assert name in names
    assert all(len(words) > 1 for words in listed)


def test_summaries_of_core_commands_are_written_down_for_all_of_them() -> None:
    from rollout.core.plugins import list_plugins

    assert {info.name for info in list_plugins("commands") if info.dist == "rollout-core"} == set(main._SUMMARIES)


@pytest.mark.parametrize(
    ("word", "hint"), [("shwo", "did you mean `rollout show`?"), ("zzz", "`rollout --help` lists the commands")]
)
def test_a_first_word_that_is_neither_command_nor_file(capsys: pytest.CaptureFixture[str], word: str, hint: str) -> None:
    code, out, err = ended(capsys, word)
    assert code == 2
    assert err == f"rollout: {word!r} is neither a command nor a file; {hint}\n"
    assert out == ""


@pytest.mark.parametrize(
    "args", [["missing.yaml"], ["-n", "4", "missing.yaml"], ["missing.yaml", "-k", "2"], ["run", "missing.yaml"]]
)
def test_a_job_file_that_is_missing_is_one_line(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    code, _, err = ended(capsys, *args)
    assert code == 2
    assert err.count("\n") == 1
    assert "missing.yaml" in err


@pytest.mark.parametrize(
    "args", [["run"], ["run", "--nope"], ["show"], ["run", "x.yaml", "-n", "0"], ["run", "x", "--display", "tv"], ["-x"]]
)
def test_wrong_usage_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    code, out, err = ended(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("rollout: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("job.yaml: wrong"), 2), (TaskError("a task"), 1), (StoreError("disk full"), 1), (click.UsageError("wrong"), 2)],
)
def test_an_error_is_one_line_and_its_exit_code(capsys: pytest.CaptureFixture[str], error: Exception, code: int) -> None:
    with override("commands", "boom", command_that(raises=error)):
        ended_with, out, err = ended(capsys, "boom")
    assert ended_with == code
    assert out == ""
    assert err.startswith(f"rollout: {error}")
    assert err.count("\n") == 1


def test_with_json_an_error_is_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with override("commands", "boom", command_that(raises=ConfigError("job.yaml: wrong"))):
        code, out, err = ended(capsys, "boom", "--json")
    assert code == 2
    assert json.loads(out) == {"error": {"code": "config_invalid", "message": "job.yaml: wrong"}}
    assert err == ""


def test_control_characters_of_an_error_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with override("commands", "boom", command_that(raises=ConfigError("name '\x1b]0;owned\x07'"))):
        _, _, err = ended(capsys, "boom")
    assert "\x1b" not in err
    assert "\x07" not in err


def test_a_bug_is_one_line_that_says_where_the_traceback_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with override("commands", "boom", command_that(raises=ZeroDivisionError("by 0"))):
        code, _, err = ended(capsys, "boom")
    assert code == 1
    assert err.count("\n") == 1
    (saved,) = tmp_path.iterdir()
    assert err == f"rollout: a bug of Rollout or of a plugin: ZeroDivisionError: by 0; the traceback is in {saved}\n"
    assert "in boom" in saved.read_text()
    assert saved.stat().st_mode & 0o077 == 0


def test_an_internal_error_that_a_command_raises_itself_is_reported_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with override("commands", "boom", command_that(raises=InternalError("lost count"))):
        code, _, err = ended(capsys, "boom")
    assert (code, err) == (1, "rollout: lost count\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_is_exit_130(capsys: pytest.CaptureFixture[str], error: BaseException) -> None:
    with override("commands", "boom", command_that(raises=error)):
        code, _, err = ended(capsys, "boom")
    assert (code, err.strip()) == (130, "rollout: interrupted")


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_what_a_command_returns_is_the_exit_code(capsys: pytest.CaptureFixture[str], returned: object, code: int) -> None:
    with override("commands", "boom", command_that(returns=returned)):
        assert ended(capsys, "boom")[0] == code


def rollout(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **more}
    return subprocess.run([sys.executable, "-m", "rollout", *args], capture_output=True, text=True, env=environ, check=False)


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert rollout("--version").stdout == rollout("-V").stdout == f"rollout {version('rollout-core')}\n"


def test_a_reader_that_goes_away_is_quiet() -> None:
    pipe = f"{sys.executable} -m rollout --help | true; {sys.executable} -m rollout plugins --json | head -c 1"
    ended_with = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert ended_with.stderr == ""


def test_a_terminal_that_cannot_show_a_character_gets_its_escape(tmp_path: Path) -> None:
    job = write_job_folder(tmp_path / "demo", [trial("übung", 1.0)])
    ended_with = rollout("show", str(job), PYTHONIOENCODING="ascii:strict", PYTHONUTF8="0")
    assert ended_with.returncode == 0
    assert ended_with.stderr == ""
    assert "\\xfcbung" in ended_with.stdout


@pytest.fixture
def third_party(tmp_path: Path) -> Path:
    """A folder on the path with a distribution of two commands, one of which cannot be imported."""
    (tmp_path / "foreign_works.py").write_text("import click\n\n@click.command()\ndef command():\n    print('hello')\n")
    (tmp_path / "foreign_broken.py").write_text("import no_such_module\n")
    info = tmp_path / "rollout_foreign-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollout-foreign\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[rollout.commands]\ngreet = foreign_works:command\nbroken = foreign_broken:command\nnothing = foreign_works:click\n"
    )
    return tmp_path


def test_a_third_partys_command_is_listed_without_being_imported_and_runs(third_party: Path) -> None:
    listed = rollout("--help", PYTHONPATH=str(third_party))
    assert listed.returncode == 0
    assert "greet       Provided by rollout-foreign 1.2." in listed.stdout
    assert "broken      Provided by rollout-foreign 1.2." in listed.stdout
    assert rollout("greet", PYTHONPATH=str(third_party)).stdout == "hello\n"


@pytest.mark.parametrize(("name", "why"), [("broken", "no_such_module"), ("nothing", "command")])
def test_a_broken_command_breaks_only_itself(third_party: Path, name: str, why: str) -> None:
    ended_with = rollout(name, PYTHONPATH=str(third_party))
    assert ended_with.returncode == 2
    assert ended_with.stderr.count("\n") == 1
    assert why in ended_with.stderr
    assert rollout("show", "--help", PYTHONPATH=str(third_party)).returncode == 0


def test_help_imports_no_command_and_no_engine() -> None:
    heavy = ("rollout.cli.run", "rollout.core.job", "rollout.builtin", "rich")
    script = (
        "import sys; from rollout.cli.main import run; run(['--help']); "
        f"print([name for name in sys.modules if name.startswith({heavy})], file=sys.stderr)"
    )
    ended_with = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended_with.stderr == "[]\n"
