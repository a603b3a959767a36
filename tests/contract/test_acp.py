"""The agent `acp` fulfils the contract of agents, with the scripted agent that speaks the protocol."""

from __future__ import annotations

import shlex
import sys

from rollout.testing import AgentSuite
from rollout.testing import acp_agent as scripted
from rollout_acp.agent import AcpAgent

COMMAND = shlex.join([sys.executable, scripted.__file__])


class TestAcpAgent(AgentSuite):
    agent = AcpAgent
    options = {"command": f"{COMMAND} --do 'say done'", "install": "mkdir -p /opt/demo"}
    env = {"DEMO_API_KEY": "demo-key-0123456789"}


class TestAcpAgentWithoutInstall(AgentSuite):
    agent = AcpAgent
    options = {"command": f"exec {COMMAND} --do 'env DEMO_KEY' --do 'noise x' --do 'stderr y'"}
