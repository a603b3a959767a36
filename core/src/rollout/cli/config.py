"""`rollout config JOB`: the job as it will be run, and where each of its values came from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollout.cli.display.text import cells, printable

if TYPE_CHECKING:
    from rollout.core.config.load import JobFile
    from rollout.core.config.place import PlacePath

_MASK = "[not shown]"
_WIDEST = 60


@click.command("config")
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Lay a value over the file, as `rollout run` does.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: each value as {value, origin}.")
def command(job: Path, sets: tuple[str, ...], as_json: bool) -> None:
    """Print the resolved JOB as YAML, with the origin of each value behind it.

    An origin is a line of the file, a ROLLOUT_ variable, --set or default. Variables in `env` stay `${NAME}`; values that look
    secret are not shown.
    """
    import msgspec

    from rollout.core.config.load import load_job

    loaded = load_job(job, sets=sets)
    resolved = msgspec.to_builtins(loaded.config)
    if as_json:
        click.echo(json.dumps(_with_origins(resolved, (), loaded), indent=2, ensure_ascii=False))
    else:
        for line in _aligned(list(_yaml_lines(resolved, (), loaded, "", ""))):
            click.echo(line)
    for warning in loaded.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)


def _with_origins(value: Any, path: PlacePath, job: JobFile) -> Any:
    if isinstance(value, dict) and value:
        return {key: _with_origins(item, (*path, key), job) for key, item in value.items()}
    if isinstance(value, list) and value:
        return [_with_origins(item, (*path, index), job) for index, item in enumerate(value)]
    return {"value": _shown(value, path), "origin": _origin(path, job)}


def _origin(path: PlacePath, job: JobFile) -> str:
    from rollout.core.config.place import dotted

    return job.origins[dotted(path)]


def _shown(value: Any, path: PlacePath) -> Any:
    from rollout.core.config.interpolate import looks_secret, referenced_names

    secret = isinstance(value, str) and value and any(looks_secret(key) for key in path if isinstance(key, str))
    return _MASK if secret and not referenced_names(value) else value


def _yaml_lines(value: Any, path: PlacePath, job: JobFile, indent: str, lead: str) -> Iterator[tuple[str, str]]:
    """Lines of YAML, each with the comment that goes behind it. `lead` is what stands before the value on its first line."""
    if isinstance(value, dict) and value:
        for index, (key, item) in enumerate(value.items()):
            start = lead if index == 0 else indent
            yield from _entry(f"{start}{_text(key)}:", item, (*path, key), job, indent)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _item(f"{indent}- ", item, (*path, index), job, indent)
    else:
        yield from _leaf(lead, value, path, job, indent)


def _entry(start: str, value: Any, path: PlacePath, job: JobFile, indent: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list) and value:
        yield start, ""
        inner = f"{indent}  "
        yield from _yaml_lines(value, path, job, inner, inner)
    else:
        yield from _leaf(f"{start} ", value, path, job, indent)


def _item(start: str, value: Any, path: PlacePath, job: JobFile, indent: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, list) and value:
        yield start.rstrip(), ""
        start = f"{indent}  "
    yield from _yaml_lines(value, path, job, f"{indent}  ", start)


def _leaf(lead: str, value: Any, path: PlacePath, job: JobFile, indent: str) -> Iterator[tuple[str, str]]:
    value = _shown(value, path)
    comment = _origin(path, job)
    if path and len(path) > 1 and path[-2] == "env" and isinstance(value, str) and (missing := _unset(value)):
        comment += f", not set here: {', '.join(missing)}"
    if isinstance(value, str) and _is_block(value):
        yield f"{lead}|{'' if value.endswith(chr(10)) else '-'}", comment
        for line in value.removesuffix("\n").split("\n"):
            yield (f"{indent}  {line}" if line else ""), ""
    else:
        yield f"{lead}{_text(value)}", comment


def _unset(value: str) -> list[str]:
    from rollout.core.config.interpolate import unset_names

    return unset_names([value], os.environ)


def _is_block(text: str) -> bool:
    """Whether the text can be written as a block: printable lines, the first not indented and the last not empty."""
    lines = text.removesuffix("\n").split("\n")
    return (
        len(lines) > 1
        and lines[0][:1] not in ("", " ", "\t")
        and bool(lines[-1])
        and all(character.isprintable() or character == "\t" for line in lines for character in line)
    )


def _text(value: Any) -> str:
    """A scalar, an empty list or an empty mapping as one line of YAML."""
    import yaml

    # Only within double quotes are line breaks and controls escaped, so that the text stays on one line.
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    dumped = yaml.safe_dump(value, default_flow_style=True, default_style=style, allow_unicode=True, width=float("inf"))
    return str(dumped).removesuffix("\n").removesuffix("\n...")


def _aligned(lines: list[tuple[str, str]]) -> Iterator[str]:
    column = min(max((cells(text) for text, comment in lines if comment), default=0), _WIDEST)
    for text, comment in lines:
        yield f"{text}{' ' * max(column - cells(text), 0)}  # {printable(comment)}" if comment else text
