"""The built-in agents fulfil the contract of agents."""

from __future__ import annotations

from rollout.builtin.nop import NopAgent
from rollout.builtin.oracle import OracleAgent
from rollout.builtin.script_agent import ScriptAgent
from rollout.testing.agent import AgentSuite
from rollout.testing.fakes import FakeAgent


class TestScriptAgent(AgentSuite):
    agent = ScriptAgent
    options = {
        "install": "mkdir -p /opt/demo && echo 'echo done' > /opt/demo/run",
        "execute": '#!/bin/bash -eu\nif [ -n "$DEMO_KEY" ]; then sh /opt/demo/run; fi\n',
    }
    env = {"DEMO_KEY": "demo-key-0123456789"}


class TestScriptAgentWithoutInstall(AgentSuite):
    agent = ScriptAgent
    options = {"execute": "#!/usr/bin/env python3\nprint('{')\n"}


class TestNopAgent(AgentSuite):
    agent = NopAgent


class TestOracleAgent(AgentSuite):
    agent = OracleAgent


class TestFakeAgent(AgentSuite):
    agent = FakeAgent
