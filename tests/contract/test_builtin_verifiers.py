"""The built-in verifier and the fake one, against the contract of verifiers."""

from __future__ import annotations

from pathlib import Path

from rollout.builtin.rewards_verifier import RewardsVerifier
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


class TestRewardsVerifier(VerifierSuite):
    verifier = RewardsVerifier
    options = {"rewards": [{"type": "string_match", "options": {"expected": "42", "answer": {"file": "/app/answer.txt"}}}]}

    def arrange(self, work: Work, environment: FakeEnvironment, task: Path) -> None:
        if work != "unusable":
            environment.files["/app/answer.txt"] = b"42" if work == "right" else b"41"
