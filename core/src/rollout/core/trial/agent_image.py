"""The image in which a trial's agent is installed already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from rollout.core.errors import AgentInstallError
from rollout.core.protocols import Agent, AgentContext, Environment
from rollout.core.records import TrialSpec
from rollout.core.trial.deadlines import foreign
from rollout.core.trial.equipment import EQUIPMENT_VARIABLES
from rollout.core.trial.installs import SharedInstall
from rollout.core.trial.instruction import INSTRUCTION_FILE_VARIABLE, INSTRUCTION_VARIABLE
from rollout.core.trial.isolation import OWN_USER
from rollout.core.trial.redact import secrets_of
from rollout.core.trial.services import Services
from rollout.core.types import OutputSink


async def image_with_agent(
    spec: TrialSpec, services: Services, make_context: Callable[[], AgentContext], image: str
) -> tuple[str, str] | None:
    """`image` with the agent in it, and where in the job's `images/` its installation is recorded.

    None: the agent is to be installed in the trial.

    Raises:
        AgentInstallError and its kinds, StartError
    """
    if not (spec.agent_cache and services.installs.possible):
        return None
    plugin, options = services.agent(spec.agent)
    shared_install = getattr(plugin.cls, "shared_install", None)
    if shared_install is None:
        return None
    context = make_context()
    own, outer = spec.agent.env, spec.environment.env
    secret = frozenset(name for block in (own, outer) for name in block if secrets_of([{name: block[name]}], services.environ))
    withheld = secret | {INSTRUCTION_VARIABLE, INSTRUCTION_FILE_VARIABLE, *EQUIPMENT_VARIABLES}
    with foreign(AgentInstallError, "installing the agent"):
        made_of = shared_install(plugin.cls(options, context), withheld)
    if made_of is None:
        return None

    env = {name: value for name, value in context.env.items() if name not in withheld}
    plain = {name: value for name, value in services.expand(outer).items() if name not in withheld}

    def make(environment: Environment, folder: Path, sink: OutputSink) -> Agent:
        there = replace(context, environment=environment, env=env, log_dir=folder, sink=sink, instruction="", mcp_servers=())
        agent: Agent = plugin.cls(options, there)
        return agent

    wanted = SharedInstall(
        agent=spec.trial_id.partition("/")[0],
        made_of=made_of,
        withheld=secret,
        environment=replace(spec.environment, env=plain, later_networks=(), labels={"rollout.job": spec.job_id}),
        env=env,
        user=spec.agent.user,
        root_user=context.root_user,
        admit=spec.isolation in OWN_USER,
        timeout_sec=spec.timeouts.install_sec,
        make=make,
    )
    made = await services.installs.image(image, wanted)
    return None if made is None else (made, f"{wanted.agent}-{wanted.key()[:12]}")
