"""The command group: sub-commands are plugins, a job file needs no sub-command, and every error ends in one line."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from rollout.cli.display.text import printable
from rollout.core.errors import InternalError, PluginError, RolloutError, UsageError, boundary
from rollout.core.plugins import PluginInfo, find, list_plugins

PROGRAM = "rollout"
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for the programs that die of it
_CORE = "rollout-core"
_JOB_FILE_SUFFIXES = (".yaml", ".yml", ".json", ".toml")

_SUMMARIES = {
    "run": "Run a job file (as `rollout FILE` does).",
    "show": "Print the results of a job.",
    "regrade": "Verify the trials of an earlier job again.",
    "config": "Print the resolved job and where each value comes from.",
    "tasks": "Create and check tasks.",
    "datasets": "List the datasets of a registry.",
    "plugins": "List the installed plugins.",
    "clean": "Remove what killed jobs left behind.",
    "schema": "Print the JSON Schema of a file format.",
    "trial": "Run a single trial from its spec.",
    "completion": "Print the shell's completion script.",
}
"""Core's commands in the order of `--help`, which imports none of them."""


class CommandGroup(click.Group):
    """Sub-commands from the entry-point group `rollout.commands`, listed from metadata and imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Core's in their order, then everybody else's by name."""
        names = dict.fromkeys(info.name for info in list_plugins("commands"))
        ours = [name for name in _SUMMARIES if name in names]
        return ours + sorted(set(names) - set(ours))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command.

        Raises:
            PluginError: it does not import, or two distributions offer it. Other commands go on working.
        """
        if cmd_name not in self.list_commands(ctx):
            return None
        command = find("commands", cmd_name).cls
        if not isinstance(command, click.Command):
            raise PluginError(f"the command {cmd_name!r} is a {type(command).__name__}; its plugin has to offer a click.Command")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`rollout -n 4 job.yaml`: options that are not the group's are those of `run`."""
        ours = {name for option in self.get_params(ctx) for name in option.opts}
        if args and args[0].startswith("-") and args[0] not in ours | {"--"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """A first word that is no command is a job file."""
        word = args[0]
        names = self.list_commands(ctx)
        if word in names:
            return super().resolve_command(ctx, args)
        if not _looks_like_file(word):
            from difflib import get_close_matches

            close = get_close_matches(word, names, n=1)
            hint = f"did you mean `{PROGRAM} {close[0]}`?" if close else f"`{PROGRAM} --help` lists the commands"
            raise UsageError(f"{word!r} is neither a command nor a file; {hint}")
        return super().resolve_command(ctx, ["run", *args])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._summary(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Command names, and files where no command begins so, without importing a command.

        Never both: a shell that is told to complete files forgets the names it was given.
        """
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands: list[Any] = [CompletionItem(name, help=self._summary(name)) for name in names]
        found = commands + click.Command.shell_complete(self, ctx, incomplete)
        return found or [CompletionItem(incomplete, type="file")]

    def _summary(self, name: str) -> str:
        plugins = [info for info in list_plugins("commands") if info.name == name]
        if all(info.dist == _CORE for info in plugins):
            return _SUMMARIES.get(name, "")
        return _provided_by(plugins)


def _provided_by(plugins: Sequence[PluginInfo]) -> str:
    return "Provided by " + " and by ".join(f"{info.dist} {info.version}" for info in plugins) + "."


def _looks_like_file(word: str) -> bool:
    return os.path.exists(word) or os.sep in word or word.lower().endswith(_JOB_FILE_SUFFIXES)


def _print_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from rollout.version import installed_version

        click.echo(f"{PROGRAM} {installed_version()}")
        ctx.exit()


@click.group(
    cls=CommandGroup,
    name=PROGRAM,
    no_args_is_help=True,
    subcommand_metavar="{COMMAND | JOB_FILE} [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`rollout job.yaml` is `rollout run job.yaml`. `rollout COMMAND --help` explains a command.",
)
@click.option(
    "-V", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def rollout() -> None:
    """Evaluate agents on tasks in sandboxes: `rollout job.yaml` runs every agent on every task and leaves the results."""


def run(args: Sequence[str]) -> int:
    """Run the command line and return its exit code. Nothing escapes: every error is one line on stderr."""
    as_json = "--json" in args
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks must not end a run.
            stream.reconfigure(errors="backslashreplace")
    try:
        with boundary(InternalError, "a bug of Rollout or of a plugin"):
            return _run(list(args), as_json)
    except InternalError as error:
        _report(InternalError(f"{error}; the traceback is in {_save_traceback(error)}"), as_json)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(args: list[str], as_json: bool) -> int:
    try:
        code = rollout.main(args, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.message, file=sys.stderr)
        return EXIT_USAGE
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else PROGRAM
        _report(UsageError(f"{error.format_message().rstrip('.')}; see `{where} --help`"), as_json)
        return EXIT_USAGE
    except RolloutError as error:
        _report(error, as_json)
        return EXIT_USAGE if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_BROKEN_PIPE
    return code if isinstance(code, int) else 0


def _report(error: RolloutError, as_json: bool) -> None:
    if not as_json:
        print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)
        return
    try:
        print(json.dumps({"error": {"code": error.code, "message": str(error)}}), flush=True)
    except BrokenPipeError:
        _forget_stdout()


def _forget_stdout() -> None:
    """Whoever read our output has gone. Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _save_traceback(error: BaseException) -> str:
    """Where the traceback of what happened was written, for a report of the bug."""
    import tempfile
    import traceback

    descriptor, path = tempfile.mkstemp(prefix="rollout-traceback-", suffix=".txt")
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(traceback.format_exception(error)))
    return path
