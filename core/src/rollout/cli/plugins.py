"""`rollout plugins` and `rollout plugins show`: what is installed, whether it works, and what its options are."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click

from rollout.cli.completion import complete_kind, complete_plugin
from rollout.cli.display.text import plural, printable, table
from rollout.core.errors import PluginError
from rollout.core.plugins import KINDS, PluginInfo, find, list_plugins, load, problems

_NO_LIMIT = 10_000
_TEXT_WIDTH = 100


class _Plugins(click.Group):
    """`rollout plugins agents` is `rollout plugins list agents`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        completing = ctx.resilient_parsing and not args
        return super().parse_args(ctx, args if completing or (args and args[0] in known) else ["list", *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return list_command.shell_complete(click.Context(list_command, info_name="list", parent=ctx), incomplete)
        kinds: list[Any] = [CompletionItem(kind) for kind in KINDS if kind.startswith(incomplete)]
        return super().shell_complete(ctx, incomplete) + kinds


@click.group("plugins", cls=_Plugins, epilog="`rollout plugins [KIND]` is `rollout plugins list [KIND]`.")
def command() -> None:
    """List the installed plugins, check them, and explain their options."""


@command.command("list")
@click.argument("kind", required=False, shell_complete=complete_kind)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--check", is_flag=True, help="Import each one and check that it is complete; exit code 1 when one is not.")
def list_command(kind: str | None, as_json: bool, check: bool) -> int:
    """List the installed plugins, or those of one KIND.

    Names come from the metadata of what is installed: nothing is imported unless --check says so.
    """
    plugins = list_plugins(kind)
    unreadable = problems()
    faults = {info: _fault(info) for info in plugins} if check else {}
    if as_json:
        _print_json([_record(info, faults) for info in plugins])
    else:
        _print_table(plugins, faults)
    for text in unreadable:
        click.echo(printable(f"rollout: {text}"), err=True)
    broken = [fault for fault in faults.values() if fault is not None]
    if check and not as_json:
        for fault in broken:
            click.echo(printable(fault), err=True)
        click.echo(f"{plural(len(plugins), 'plugin')}, {len(broken)} broken")
    return 1 if check and (broken or unreadable) else 0


@command.command("show")
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", shell_complete=complete_plugin)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of its options.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def show(kind: str, name: str, schema: bool, as_json: bool) -> int:
    """Explain the plugin NAME of a KIND: where it comes from, what it is, and its options."""
    plugin = find(kind, name)
    options = getattr(plugin.cls, "options_type", None)
    if schema:
        if options is None:
            raise PluginError(f"{plugin.info} has no options")
        _print_json(_schema(options))
        return 0

    from rollout.core.fields import describe_fields

    fields = describe_fields(options) if options is not None else []
    version = ".".join(map(str, getattr(plugin.cls, "api_version", ())))
    about = _about(plugin.cls)
    if as_json:
        record = {**_record(plugin.info, {}), "api_version": version or None, "description": about, "options": fields}
        _print_json({**record, "schema": _schema(options) if options is not None else None})
        return 0
    info = plugin.info
    click.echo(f"{info.name}  ({kind}, from {info.dist} {info.version}{f', plugin API {version}' if version else ''})")
    click.echo(f"{info.target}\n")
    if about:
        click.echo(printable(about) + "\n")
    if fields:
        click.echo("Options:")
        for field in fields:
            default = "required" if field.required else f"default {field.default}"
            click.echo(f"  {field.name}: {field.type} ({default})")
            if field.doc:
                click.echo(click.wrap_text(printable(field.doc), min(_width(), _TEXT_WIDTH), "      ", "      "))
    elif kind == "commands":
        click.echo(f"`rollout {info.name} --help` lists its options.")
    else:
        click.echo("It has no options.")
    return 0


def _fault(info: PluginInfo) -> str | None:
    """Why the plugin cannot be used; None when it can."""
    try:
        plugin = load(info)
        if info.kind == "hooks":
            from rollout.core.hooks import HookBus

            HookBus().register(plugin.cls, f"{info.dist}:{info.name}")
    except PluginError as error:
        return str(error)
    return None


def _record(info: PluginInfo, faults: dict[PluginInfo, str | None]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "kind": info.kind,
        "name": info.name,
        "dist": info.dist,
        "version": info.version,
        "target": info.target,
    }
    if info in faults:
        record |= {"status": "ok" if faults[info] is None else "error", "error": faults[info]}
    return record


def _schema(options: Any) -> dict[str, Any]:
    """The options' JSON Schema, with the text under each field as its description."""
    import msgspec

    from rollout.core.fields import field_docs

    try:
        schema = msgspec.json.schema(options)
    except TypeError as error:
        raise PluginError(f"the options of {options.__module__}.{options.__name__} have no JSON Schema: {error}") from error
    properties = schema.get("$defs", {}).get(options.__name__, {}).get("properties", {})
    for name, doc in field_docs(options).items():
        properties.get(name, {}).setdefault("description", doc)
    return schema


def _about(cls: Any) -> str:
    from inspect import cleandoc

    doc = cls.help if isinstance(cls, click.Command) else getattr(cls, "__doc__", None)
    return cleandoc(doc).replace("\b\n", "") if isinstance(doc, str) else ""


def _print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _print_table(plugins: list[PluginInfo], faults: dict[PluginInfo, str | None]) -> None:
    titles = ["kind", "name", "distribution", "version"] + ["status"] * bool(faults)
    rows = [
        [info.kind, info.name, info.dist, info.version] + (["ok" if faults[info] is None else "error"] if info in faults else [])
        for info in plugins
    ]
    for line in table(titles, rows, align=["left"] * len(titles), width=_width()):
        click.echo(line)


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _NO_LIMIT
