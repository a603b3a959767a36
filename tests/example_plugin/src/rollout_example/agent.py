"""An agent that writes a greeting."""

import shlex

from rollout import ScriptAgent, Struct


class GreeterOptions(Struct, frozen=True, kw_only=True):
    greeting: str = "hello"
    """What to say."""
    path: str
    """The file to write it to, in the working directory or absolute."""


class Greeter(ScriptAgent):
    """Writes a greeting to a file, whatever the task says."""

    api_version = (1, 0)
    options_type = GreeterOptions

    def install_script(self) -> None:
        return None  # nothing to install

    def execute_script(self) -> str:
        greeting, path = shlex.quote(self.options.greeting), shlex.quote(self.options.path)
        return f"printf '%s\\n' {greeting} > {path}\n"
