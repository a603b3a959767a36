"""Write the tables of the documentation from the code: `make docs`. With --check, say which pages are not current.

A page marks the place of a table with `<!-- generated: NAME [ARGUMENT] -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

DOCS = Path(__file__).parent
ROOT = DOCS.parent
_PLACE = re.compile(r"(<!-- generated: (\w+)(?: ([^>]+?))? -->\n).*?(<!-- end -->)", re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".yaml": "yaml"}


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    stale = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        current = render(text)
        if current != text:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(current, "utf-8")
    for page in stale:
        sys.stdout.write(f"{page}: {'not current; run `make docs`' if check else 'written'}\n")
    return 1 if check and stale else 0


def render(text: str) -> str:
    """The page with every table as the code has it now."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}{GENERATORS[match[2]](match[3] or '')}{match[4]}"

    return _PLACE.sub(table, text)


def fields(target: str) -> str:
    """The keys of a Struct and of those inside it."""
    from rollout.core.config.describe import fields as described

    rows = [(f"`{row.path}`", row.type, _default(row), row.doc) for row in described(_load(target))]
    return _table(("key", "type", "default", "meaning"), rows)


def record(target: str) -> str:
    """The keys of what Rollout writes."""
    from rollout.core.config.describe import fields as described

    return _table(("key", "type", "meaning"), [(f"`{row.path}`", row.type, row.doc) for row in described(_load(target))])


def errors(_: str) -> str:
    """Every error class, from the most general on."""
    from rollout.core.errors import RolloutError

    rows = [
        (f"`{error.code}`", f"`{error.__name__}`", "yes" if error.retryable else "", _first_paragraph(error))
        for error in _descendants(RolloutError)
    ]
    return _table(("code", "class", "retryable", "meaning"), rows)


def commands(_: str) -> str:
    """Every command with its arguments and options."""
    from rollout.cli.main import rollout

    return "\n".join(_command_pages(rollout, "rollout"))


def events(_: str) -> str:
    """Every line of events.jsonl and of --json."""
    from rollout.cli import gate
    from rollout.core.job import events as job

    rows = []
    for event in [kind for module in (job, gate) for kind in vars(module).values() if _is_event(kind, module)]:
        names = [name for name in event.__struct_fields__ if name != "time"]
        rows.append((f"`{event.__struct_config__.tag}`", ", ".join(f"`{name}`" for name in names)))
    return _table(("event", "fields"), rows)


def hooks(_: str) -> str:
    from rollout.core.hooks import HOOKS, HookSpecs

    rows = [
        (f"`{name}({', '.join(arguments)})`", _first_paragraph(getattr(HookSpecs, name))) for name, arguments in HOOKS.items()
    ]
    return _table(("hook", "when"), rows)


def agents(_: str) -> str:
    """The agents that are manifests of rollout-agents."""
    from rollout_agents import manifests

    rows = []
    for name in manifests.names():
        one = getattr(manifests, name.replace("-", "_")).manifest
        called = ", ".join(f"`{word}`" for word in (one.name, *one.aliases))
        needs = "; ".join(" or ".join(f"`{word}`" for word in entry.split("|")) for entry in one.requires_env)
        vendor = f"Its vendor is needed: {one.vendor}." if one.vendor else ""
        notes = " ".join(filter(None, (one.notes, vendor)))
        elsewhere = "yes" if one.takes_base_url else "no"
        rows.append((called, f"[{one.description}]({one.homepage})", one.version, needs, elsewhere, one.verified, notes))
    return _table(("name", "agent", "version", "needs", "`base_url`", "verified", "notes"), rows)


def kinds(_: str) -> str:
    """Kinds of plugin, with the built-in ones of each."""
    from rollout.core.plugins import CORE, KINDS, list_plugins

    built_in = {kind: [info.name for info in list_plugins(kind) if info.dist == CORE] for kind in KINDS}
    rows = [(kind, f"`{group}`", ", ".join(f"`{name}`" for name in built_in[kind])) for kind, group in KINDS.items()]
    return _table(("kind", "entry-point group", "built in"), rows)


def contracts(_: str) -> str:
    """The suites of rollout.testing."""
    testing = import_module("rollout.testing")
    suites = [name for name in testing.__all__ if name.endswith("Suite")]
    return _table(("suite", "what it tests"), [(f"`{name}`", _first_paragraph(getattr(testing, name))) for name in suites])


def rewards(_: str) -> str:
    """Every reward function of the workspace, with its options; what all of them share is not repeated."""
    from rollout.core.config.describe import fields as described
    from rollout.core.plugins import CORE, find, list_plugins

    parts = []
    for info in list_plugins("rewards"):
        if info.dist not in (CORE, "rollout-rewards"):
            continue
        cls = find("rewards", info.name).cls
        parts.append(f"\n## {info.name}\n\n{_first_paragraph(cls)}\n")
        rows = described(cls.options_type) if hasattr(cls, "options_type") else []
        if rows:
            parts.append(_table(("option", "type", "default", "meaning"), [_option_row(row) for row in rows]).rstrip("\n") + "\n")
    return "".join(parts) + "\n"


def _option_row(row: Any) -> tuple[str, ...]:
    return f"`{row.path}`", row.type, _default(row), row.doc


def attacks(_: str) -> str:
    """What is tried on rewards, with its outcome at each level of isolation."""
    from rollout.core.records import ISOLATIONS
    from rollout.testing.attacks import table

    return _table(("what an agent tries", *(f"`{level}`" for level in ISOLATIONS)), table())


def package(folder: str) -> str:
    """Every file of a distribution, literally."""
    parts = []
    for path in sorted((ROOT / folder).rglob("*"), key=lambda path: (path.suffix != ".toml", path)):
        if path.is_file() and path.suffix in (".toml", ".py") and path.stat().st_size:
            name = path.relative_to(ROOT / folder)
            parts.append(f"```{_LANGUAGES[path.suffix]} {name}\n{path.read_text('utf-8').rstrip()}\n```\n")
    if not parts:
        raise FileNotFoundError(f"{folder}: no file to show")
    return "\n".join(["", *parts, ""])


GENERATORS: dict[str, Callable[[str], str]] = {
    generator.__name__: generator
    for generator in (fields, record, errors, commands, agents, events, hooks, kinds, contracts, attacks, rewards, package)
}


def _is_event(kind: Any, module: ModuleType) -> bool:
    from rollout.core.job.events import Event

    return isinstance(kind, type) and issubclass(kind, Event) and kind is not Event and kind.__module__ == module.__name__


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _descendants(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        if child.__module__ == cls.__module__:
            yield child
            yield from _descendants(child)


def _command_pages(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if path != "rollout":
        yield f"\n## {path}\n"
        yield inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        yield f"```text\n{usage}\n```\n"
        records = [record for option in command.params if (record := option.get_help_record(context))]
        if records:
            yield _table(("option", "meaning"), [(f"`{option}`", meaning) for option, meaning in records])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _command_pages(child, f"{path} {name}")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n" + "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(row: Any) -> str:
    if row.default is not None:
        return f"`{row.default}`"
    return "" if row.type == "block" else "required"


def _first_paragraph(thing: Any) -> str:
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    return inspect.cleandoc(own or "").split("\n\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
