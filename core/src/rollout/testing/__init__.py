"""What plugin authors test with: contract suites to subclass, and fakes. The suites need pytest and pytest-asyncio.

from rollout.testing import AgentSuite

class TestMine(AgentSuite):
    agent = MyAgent
"""

import sys

_HOME = {
    "AgentSuite": "rollout.testing.agent",
    "AttackSuite": "rollout.testing.attack_suite",
    "EnvironmentSuite": "rollout.testing.environment",
    "ExecutorSuite": "rollout.testing.executor",
    "FakeAgent": "rollout.testing.fakes",
    "FakeBackend": "rollout.testing.fakes",
    "FakeEnvironment": "rollout.testing.fakes",
    "FakeVerifier": "rollout.testing.fakes",
    "FakeWorld": "rollout.testing.fakes",
    "MetricSuite": "rollout.testing.metric",
    "RegistrySuite": "rollout.testing.registry",
    "VerifierSuite": "rollout.testing.verifier",
}

__all__ = [*_HOME]  # noqa: PLE0604

if "pytest" in sys.modules:
    # So that a failing contract shows the values of its assertion, as the author's own tests do.
    sys.modules["pytest"].register_assert_rewrite(*sorted({*_HOME.values()}))


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
