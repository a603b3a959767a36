"""The environment type `none`: trials without a sandbox, for agents and verifiers that need none."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.core.protocols import API_VERSION, BackendContext, NoOptions
from rollout.core.trial.nowhere import NoEnvironment
from rollout.core.types import EnvironmentSpec, OutputSink


class NoneBackend:
    """Makes nothing and starts nothing. Core does not ask it for environments; whoever does gets one that refuses everything."""

    api_version = API_VERSION
    options_type = NoOptions
    capabilities: frozenset[str] = frozenset()

    def __init__(self, options: NoOptions, context: BackendContext) -> None:
        pass

    def check(self, spec: EnvironmentSpec) -> None:
        pass

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        return "none"

    async def start(self, spec: EnvironmentSpec, image: str) -> NoEnvironment:
        return NoEnvironment()

    async def remove(self, image: str) -> None:
        pass

    async def reap(self, job_id: str) -> Sequence[str]:
        return ()

    async def aclose(self) -> None:
        pass
