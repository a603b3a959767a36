"""Carrying out a Dockerfile's instructions inside a sandbox whose writes become the layer."""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollout.core.dockerfile import Step, assignments, expand, split_words
from rollout.core.errors import BuildError
from rollout.core.sandbox.ignore import IgnoreRules, compile_glob
from rollout.core.sandbox.recipe import Recipe
from rollout.core.types import Command, ExecResult, OutputSink

_QUOTED_LINES = 20
_PLATFORMS = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass
class ImageState:
    """What instructions have said so far."""

    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @property
    def variables(self) -> dict[str, str]:
        return {**self.arguments, **self.env}


class BuildEnvironment(Protocol):
    """The sandbox that instructions are carried out in."""

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult: ...

    async def send(
        self,
        source: Path,
        target: str,
        *,
        owner: str | None = None,
        mode: int | None = None,
        keep: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """`Environment.upload`, with the modes replaced and files left out as `rollout.core.archive.pack` has it."""
        ...

    async def stop(self) -> None: ...


async def run_steps(
    recipe: Recipe, environment: BuildEnvironment, machine: str, sink: OutputSink | None, base: ImageState | None = None
) -> ImageState:
    """Carry out every instruction in turn. `machine`: the architecture as `uname -m` says it. `base`: what FROM's image says.

    Raises:
        BuildError: the text quotes the instruction that failed and the end of what it printed.
    """
    return await _Build(recipe, environment, machine, sink, base or ImageState()).run()


class _Build:
    def __init__(
        self, recipe: Recipe, environment: BuildEnvironment, machine: str, sink: OutputSink | None, state: ImageState
    ) -> None:
        self._recipe = recipe
        self._environment = environment
        self._sink = sink
        self._state = state
        self._context = recipe.path.parent
        self._ignore = IgnoreRules.of(self._context)
        self._outer = _predefined(machine)

    async def run(self) -> ImageState:
        for step in self._recipe.arguments:
            for name, value in self._assignments(step, self._outer):
                self._outer[name] = value or ""
        for step in self._recipe.steps:
            if self._sink is not None:
                self._sink("stdout", f"{step.name} {step.text}\n".encode("utf-8", "surrogateescape"))
            match step.name:
                case "ENV":
                    self._state.env.update((name, value or "") for name, value in self._assignments(step, self._state.variables))
                case "ARG":
                    for name, value in self._assignments(step, self._state.variables):
                        default = self._outer.get(name) if value is None else value
                        if default is not None:
                            self._state.arguments[name] = default
                case "USER":
                    self._state.user = self._expand(step, step.text)
                case "SHELL":
                    self._state.shell = tuple(step.words or ())
                case "WORKDIR":
                    self._state.workdir = posixpath.normpath(posixpath.join(self._state.workdir, self._expand(step, step.text)))
                    await self._make_folder(step, self._state.workdir)
                case "VOLUME":
                    for path in step.words or split_words(step.text, self._recipe.escape):
                        await self._make_folder(step, posixpath.join("/", self._expand(step, path)))
                case "RUN":
                    await self._run(step)
                case "COPY" | "ADD":
                    await self._copy(step)
        return self._state

    async def _run(self, step: Step) -> None:
        argv, stdin = step.words, None
        if argv is None:
            text = step.text
            alone = len(step.heredocs) == 1 and text.startswith("<<") and len(text.split()) == 1
            if alone and step.heredocs[0].content.startswith("#!"):
                script = step.heredocs[0].content.encode("utf-8", "surrogateescape")
                argv = ["sh", "-c", 'f=$(mktemp) && cat > "$f" && chmod 755 "$f" && "$f"; s=$?; rm -f "$f"; exit $s']
                stdin = script
            elif alone:
                argv = [*self._state.shell, step.heredocs[0].content]
            else:
                text += "".join(f"\n{document.content}{document.name}" for document in step.heredocs)
                argv = [*self._state.shell, text]
        if not argv:
            raise BuildError(f"{self._recipe.where(step)}: RUN with an empty list")
        await self._must(step, argv, stdin=stdin, user=self._state.user, cwd=self._state.workdir)

    async def _copy(self, step: Step) -> None:
        words = step.words
        if words is None:
            words = split_words(step.text, self._recipe.escape)
        if len(words) < 2:
            raise BuildError(f"{self._recipe.where(step)}: {step.name} needs a source and a destination")
        *sources, destination = [self._expand(step, word) for word in words]
        into_folder = destination.endswith("/") or destination in (".", "..")
        target = posixpath.normpath(posixpath.join(self._state.workdir, destination))
        documents = {f"<<{document.name}": document for document in step.heredocs}
        owner = self._expand(step, step.flags["chown"]) if "chown" in step.flags else None
        mode = self._mode(step)
        found: list[Path] = []
        for source in sources:
            document = documents.get(source.replace("<<-", "<<").replace('"', "").replace("'", ""))
            if document is not None:
                path = posixpath.join(target, document.name) if into_folder else target
                await self._write_document(step, document.content, document.expands, path, owner, mode)
            else:
                found.extend(self._find(step, source))
        if len(found) > 1 and not into_folder:
            raise BuildError(f"{self._recipe.where(step)}: several sources, so the destination must be a folder and end with /")
        for match in found:
            await self._copy_one(step, match, target, into_folder, owner, mode)

    async def _copy_one(
        self, step: Step, path: Path, target: str, into_folder: bool, owner: str | None, mode: int | None
    ) -> None:
        if step.name == "ADD" and path.is_file() and _is_archive(path):
            await self._make_folder(step, target)
            packed = "/tmp/.rollout-add"
            await self._environment.send(path, packed)
            await self._must(step, ["tar", "-xf", packed, "-C", target], cwd="/")
            await self._must(step, ["rm", "-f", packed], cwd="/")
            return
        if path.is_dir():
            await self._environment.send(path, target, owner=owner, mode=mode, keep=self._keep_below(path))
            return
        if into_folder or (await self._try(["test", "-d", target])).exit_code == 0:
            target = posixpath.join(target, path.name)
        await self._environment.send(path, target, owner=owner, mode=mode)

    def _keep_below(self, folder: Path) -> Callable[[str], bool]:
        """Which files below a folder of the context are part of it."""
        prefix = os.path.relpath(folder, os.path.realpath(self._context))
        start = "" if prefix == "." else prefix + "/"
        return lambda path: self._ignore.keeps(start + path, folder=(folder / path).is_dir())

    def _find(self, step: Step, pattern: str) -> list[Path]:
        """Files and folders of the context that a source names."""
        clean = posixpath.normpath("/" + pattern).lstrip("/")
        root = Path(os.path.realpath(self._context))
        if not clean:
            return [root]
        if not any(character in clean for character in "*?["):
            candidates = [clean]
        else:
            matches = compile_glob(clean)
            depth = clean.count("/")
            candidates = [path for path in _paths(root, depth) if matches.fullmatch(path)]
        found = []
        for candidate in candidates:
            real = Path(os.path.realpath(root / candidate))
            inside = real == root or root in real.parents
            if inside and real.exists() and self._ignore.keeps(candidate, folder=real.is_dir()):
                found.append(real)
        if not found:
            raise BuildError(f"{self._recipe.where(step)}: {step.name} {pattern}: there is no such file in {self._context}")
        return found

    async def _write_document(
        self, step: Step, content: str, expands: bool, path: str, owner: str | None, mode: int | None
    ) -> None:
        if expands:
            content = _expand_document(content, self._state.variables)
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1" && { [ -z "$3" ] || chown "$3" "$1"; }'
        argv = ["sh", "-c", script, "sh", path, f"{mode if mode is not None else 0o644:o}", owner or ""]
        await self._must(step, argv, stdin=content.encode("utf-8", "surrogateescape"), cwd="/")

    async def _make_folder(self, step: Step, path: str) -> None:
        await self._must(step, ["mkdir", "-p", path], cwd="/")

    async def _must(self, step: Step, argv: list[str], *, stdin: bytes | None = None, user: str | None = "0", cwd: str) -> None:
        command = Command(argv=tuple(argv), stdin=stdin, env=self._state.variables, cwd=cwd, user=user)
        result = await self._environment.exec(command, self._sink)
        if result.exit_code != 0:
            said = (result.stdout + result.stderr).decode("utf-8", "replace").strip().splitlines()[-_QUOTED_LINES:]
            quoted = "\n".join(["", *said]) if said else ""
            line = f"{step.name} {step.text}"[:300]
            raise BuildError(f"{self._recipe.where(step)}: `{line}` ended with exit code {result.exit_code}{quoted}")

    async def _try(self, argv: list[str]) -> ExecResult:
        return await self._environment.exec(Command(argv=tuple(argv), cwd="/", user="0"))

    def _mode(self, step: Step) -> int | None:
        if "chmod" not in step.flags:
            return None
        text = self._expand(step, step.flags["chmod"])
        try:
            return int(text, 8) & 0o7777
        except ValueError:
            raise BuildError(f"{self._recipe.where(step)}: --chmod={text} is not an octal mode") from None

    def _assignments(self, step: Step, variables: dict[str, str]) -> list[tuple[str, str | None]]:
        try:
            return assignments(step, variables, self._recipe.escape)
        except ValueError as error:
            raise BuildError(f"{self._recipe.where(step)}: {error}") from error

    def _expand(self, step: Step, text: str) -> str:
        try:
            return expand(text, self._state.variables, self._recipe.escape)
        except ValueError as error:
            raise BuildError(f"{self._recipe.where(step)}: {error}") from error


def _predefined(machine: str) -> dict[str, str]:
    """Arguments that every build has: the platform, and the proxies of this machine."""
    architecture = _PLATFORMS.get(machine, machine)
    values = {"TARGETOS": "linux", "TARGETARCH": architecture, "TARGETPLATFORM": f"linux/{architecture}", "TARGETVARIANT": ""}
    values.update({name.replace("TARGET", "BUILD"): value for name, value in values.items()})
    for name in _PROXIES:
        for spelling in (name, name.lower()):
            if spelling in os.environ:
                values[spelling] = os.environ[spelling]
    return values


def _expand_document(content: str, variables: dict[str, str]) -> str:
    """Variables of a here-document; quotes mean nothing in it."""
    quoted = content.replace("'", "\\'").replace('"', '\\"')
    return expand(quoted, variables)


def _paths(root: Path, depth: int) -> list[str]:
    """Everything below `root`, at exactly `depth` folders down, in order."""
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        level = "" if folder == str(root) else os.path.relpath(folder, root) + "/"
        if level.count("/") == depth:
            found.extend(level + name for name in [*folders, *files])
            folders.clear()
    return sorted(found)


def _is_archive(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except OSError:
        return False
