"""`rollout agents`: the agents that are manifests, one of them in full, and whether it can be installed here."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from rollout import PluginError, UsageError
from rollout_agents.agent import ManifestAgent, ManifestOptions, execute_script, install_script
from rollout_agents.manifest import Manifest
from rollout_agents.mcp import WRITERS

_INSTALL_SEC = 1800.0


@click.group(name="agents")
def command() -> None:
    """List command line agents, show one, or try whether one can be installed."""


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_agents(as_json: bool) -> None:
    """List the agents that are manifests, with what they need and whether it is set."""
    found = manifests()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    rows = [("NAME", "VERSION", "VERIFIED", "NEEDS", "DESCRIPTION")]
    rows += [(one.name, one.version, one.verified, _needs(one), one.description) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        click.echo("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]]).rstrip())


@command.command(name="show")
@click.argument("name")
@click.option("--job", "as_job", is_flag=True, help="Print it as an item of a job's `agents:`, scripts and all.")
def show_agent(name: str, as_job: bool) -> None:
    """Show the manifest of NAME."""
    manifest = manifest_of(name)
    if as_job:
        options = ManifestOptions()
        variables = [entry.split("|")[0] for entry in manifest.requires_env]
        block = {
            "name": manifest.name,
            "description": manifest.description,
            "env": {**manifest.env, **{name: f"${{{name}}}" for name in variables}},
            "install": install_script(manifest) if manifest.install else None,
            "execute": execute_script(_told_by_file(manifest), options),
            "trajectory": manifest.trajectory,
        }
        import yaml

        agents = [{key: value for key, value in block.items() if value}]
        click.echo(yaml.dump({"agents": agents}, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=4096), nl=False)
        return
    for key, value in msgspec.to_builtins(manifest).items():
        if isinstance(value, str) and "\n" in value:
            click.echo(f"{key}:")
            click.echo("\n".join(f"    {line}" for line in value.strip("\n").splitlines()))
        elif isinstance(value, list | dict) and value:
            pairs = value.items() if isinstance(value, dict) else ((item, None) for item in value)
            click.echo(f"{key}: " + ", ".join(item if text is None else f"{item}={text}" for item, text in pairs))
        elif value not in ("", None, [], {}):
            click.echo(f"{key}: {value}")


@command.command(name="check")
@click.argument("name")
@click.option("--environment", "kind", default="local", show_default=True, help="Type of the environment to install it in.")
@click.option("--image", help="Image to install it in, where the environment uses images.")
@click.option(
    "--option", "-o", "options", multiple=True, metavar="NAME=VALUE", help="An option of the environment; the value is YAML."
)
@click.option("--version", help="The agent's version, instead of the pinned one.")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME[=VALUE]", help="For the installer.")
def check_agent(
    name: str, kind: str, image: str | None, options: tuple[str, ...], version: str | None, variables: tuple[str, ...]
) -> None:
    """Install NAME in an environment and ask it for its version."""
    manifest = manifest_of(name)
    with tempfile.TemporaryDirectory(prefix="rollout-check-") as folder:
        code = asyncio.run(_check(manifest, kind, image, _options(options), version, _variables(variables), Path(folder)))
    raise SystemExit(code)


def _told_by_file(manifest: Manifest) -> Manifest:
    """As a script of a job it finds MCP servers in the common form alone: nothing writes another one for it."""
    return msgspec.structs.replace(manifest, mcp="") if manifest.mcp in WRITERS else manifest


def manifests() -> list[Manifest]:
    """Those of every distribution that is installed, each once."""
    from rollout.core.plugins import list_plugins, load

    found: dict[str, Manifest] = {}
    for info in list_plugins("agents"):
        if info.dist == "rollout-core":
            continue
        try:
            manifest = _manifest(load(info).cls)
        except PluginError as error:
            click.echo(f"warning: {error}", err=True)
            continue
        if manifest is not None:
            found[manifest.name] = manifest
    return [found[name] for name in sorted(found)]


def manifest_of(name: str) -> Manifest:
    """Raises UsageError: no agent of this name, or one that is no manifest."""
    from rollout.core.plugins import find

    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        from rollout_agents.manifest import read_manifest

        return read_manifest(path)
    manifest = _manifest(find("agents", name).cls)
    if manifest is None:
        raise UsageError(f"agent {name} is no manifest; `rollout plugins show agents {name}` shows it")
    return manifest


def _manifest(cls: Any) -> Manifest | None:
    found = getattr(cls, "manifest", None)
    return found if isinstance(found, Manifest) and issubclass(cls, ManifestAgent) else None


def _needs(manifest: Manifest) -> str:
    missing = []
    for entry in manifest.requires_env:
        names = entry.split("|")
        if not any(os.environ.get(name) for name in names):
            missing.append(names[0] + (" ..." if len(names) > 1 else ""))
    return ", ".join(missing) if missing else "-"


async def _check(
    manifest: Manifest,
    kind: str,
    image: str | None,
    options: dict[str, Any],
    version: str | None,
    more: dict[str, str],
    folder: Path,
) -> int:
    from rollout.core.config.interpolate import expand
    from rollout.core.plugins import decode_options, find
    from rollout.core.protocols import BackendContext
    from rollout.core.trial.script import run_script
    from rollout.core.types import EnvironmentSpec

    plugin = find("environments", kind)
    context = BackendContext(
        job_id="agents-check", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=1, base_dir=Path.cwd()
    )
    backend = plugin.cls(decode_options(plugin, options, "environment"), context)
    spec = EnvironmentSpec(task_name=manifest.name, directory=None, digest="check", docker_image=image, workdir="/tmp")

    def sink(stream: str, chunk: bytes) -> None:
        click.echo(chunk, nl=False, err=stream == "stderr")

    env = {key: expand(text, os.environ) for key, text in manifest.env.items()}
    env |= more
    scripts = [("install", install_script(manifest, version))] if manifest.install else []
    asking = ManifestOptions(version=version)
    told = msgspec.structs.replace(manifest, execute=f"exec {manifest.check or 'true'} < /dev/null\n")
    scripts.append(("check", execute_script(told, asking)))
    try:
        backend.check(spec)
        environment = await backend.start(spec, await backend.prepare(spec))
        try:
            for step, text in scripts:
                result = await asyncio.wait_for(
                    run_script(environment, text, record=folder / f"{step}.sh", env=env, cwd=None, user=None, sink=sink),
                    _INSTALL_SEC,
                )
                if result.exit_code != 0:
                    click.echo(f"{manifest.name}: {step} exited with code {result.exit_code}", err=True)
                    return 1
        finally:
            await environment.stop()
    finally:
        await backend.aclose()
    click.echo(f"{manifest.name}: installed, and it runs")
    return 0


def _options(given: tuple[str, ...]) -> dict[str, Any]:
    import yaml

    found = {}
    for text in given:
        name, is_given, value = text.partition("=")
        if not is_given:
            raise UsageError(f"--option {text}: write NAME=VALUE")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--option {name}: the value is no YAML") from error
    return found


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, is_given, value = text.partition("=")
        if not is_given and name not in os.environ:
            raise UsageError(f"--env {name}: it is not set on this machine")
        found[name] = value if is_given else os.environ[name]
    return found


def _dumper() -> Any:
    """YAML with scripts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper
