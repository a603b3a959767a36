"""The built-in verifier and the fake one, against the contract of verifiers."""

from __future__ import annotations

from pathlib import Path

from rollout.builtin.script_verifier import ScriptVerifier
from rollout.testing.fakes import FakeEnvironment, reward
from rollout.testing.verifier import VerifierSuite, Work


class TestScriptVerifier(VerifierSuite):
    verifier = ScriptVerifier

    def arrange(self, work: Work, environment: FakeEnvironment, task: Path) -> None:
        (task / "tests").mkdir()
        (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        if work != "unusable":
            environment.commands["test.sh"] = reward(1.0 if work == "right" else 0.0)
