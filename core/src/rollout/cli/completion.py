"""`rollout completion`: the shell's completion script; and what completes to the names of plugins, from metadata alone."""

from __future__ import annotations

from collections.abc import Callable

import click

from rollout.core.plugins import KINDS, list_plugins

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_ROLLOUT_COMPLETE"

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(rollout completion bash)"                      in ~/.bashrc
    zsh:   eval "$(rollout completion zsh)"                       in ~/.zshrc
    fish:  rollout completion fish > ~/.config/fish/completions/rollout.fish
    """
    from click.shell_completion import get_completion_class

    from rollout.cli.main import rollout

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(rollout, {}, "rollout", _VARIABLE).source())


def complete_plugins(kind: str) -> Completer:
    """A `shell_complete` for the names of one kind of plugin."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return _names(kind, incomplete)

    return complete


def complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_plugin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the kind that stands before."""
    kind = ctx.params.get("kind")
    return _names(kind, incomplete) if kind in KINDS else []


def _names(kind: str, incomplete: str) -> list[str]:
    return sorted({info.name for info in list_plugins(kind) if info.name.startswith(incomplete)})
