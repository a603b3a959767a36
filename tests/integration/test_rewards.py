"""Jobs whose trials are verified by Python functions and by reward functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import rollout, trial_results, write_job, write_task

pytestmark = pytest.mark.needs("local")

SAYS_42 = {"name": "says", "execute": "echo 41; echo 42"}
WRITES_42 = {"name": "writes", "execute": "echo 42 > answer.txt"}


def run(folder: Path, verifier: dict[str, Any], *agents: dict[str, Any], code: int = 0) -> dict[str, dict[str, Any]]:
    path = write_job(folder, {"verifier": verifier, "agents": list(agents)})
    done = rollout(folder, path, "--name", "j", "-q")
    assert done.returncode == code, done.stdout + done.stderr
    return trial_results(folder / "jobs/j")


def test_reward_functions_of_a_job_file_score_its_trials(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a")
    rewards = [
        {"type": "string_match", "weight": 1, "options": {"expected": "42", "answer": {"last_line": True}}},
        {"type": "string_match", "name": "any", "weight": 3, "options": {"expected": "41", "fuzzy": True}},
    ]
    results = run(tmp_path, {"rewards": rewards}, SAYS_42)
    result = results["says/tasks/a__1"]
    assert result["rewards"] == {"reward": 1.0, "string_match": 1.0, "any": 1.0}
    verdict = json.loads((tmp_path / "jobs/j/says/tasks/a__1/verifier/verdict.json").read_text())
    assert verdict["items"] == {"string_match": 1.0, "any": 1.0}
    assert [event["source"] for event in verdict["events"]] == ["string_match", "any"]


def test_a_program_does_not_judge_itself(tmp_path: Path) -> None:
    """The verifier is root, and the program that it tests is not: it cannot write the reward of the task's script either."""

    def says(name: str, program: str) -> dict[str, Any]:
        return {"name": name, "execute": f"cat << 'END'\n```python\n{program}\n```\nEND"}

    write_task(tmp_path / "tasks/a")
    test = "assert double(2) == 4\nassert double('a') == 'aa'"
    verifier = {"rewards": [{"type": "code", "options": {"test": test}}, {"type": "test"}]}
    forges = "import os\nopen('/logs/verifier/reward.txt', 'w').write('1')\nos._exit(0)"
    agents = says("honest", "def double(x): return 2 * x"), says("forges", forges)
    results = run(tmp_path, verifier, *agents)
    assert results["honest/tasks/a__1"]["rewards"] == {"reward": 0.5, "code": 1.0, "code.passed": 1.0, "test": 0.0}
    assert results["forges/tasks/a__1"]["rewards"] == {"reward": 0.0, "code": 0.0, "code.passed": 0.0, "test": 0.0}


def test_a_hybrid_verifier_looks_into_the_environment(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks/a")
    (task / "tests/evaluate.py").write_text(
        "def evaluate(task, sandbox):\n"
        "    print('looking')\n"
        "    tests = sandbox.exec('ls /tests').split()\n"
        "    return {'reward': sandbox.exec('cat answer.txt').strip() == '42', 'tests': len(tests)}\n"
    )
    results = run(tmp_path, {"type": "python", "options": {"module": "tests.evaluate"}}, WRITES_42)
    assert results["writes/tasks/a__1"]["rewards"] == {"reward": 1.0, "tests": 2.0}
    assert (tmp_path / "jobs/j/writes/tasks/a__1/verifier/stdout.txt").read_text() == "looking\n"


def test_a_python_verifier_that_hangs_is_a_timeout_and_its_sibling_is_scored(tmp_path: Path) -> None:
    for name, code in {"hangs": "    while True: pass\n", "works": "    return 1\n"}.items():
        task = write_task(tmp_path / "tasks" / name)
        (task / "tests/evaluate.py").write_text(f"def evaluate(task):\n{code}")
    verifier = {"type": "python", "override_timeout_sec": 3, "options": {"module": "tests.evaluate"}}
    results = run(tmp_path, verifier, WRITES_42, code=1)
    assert results["writes/tasks/hangs__1"]["error"]["type"] == "verifier_timeout"
    assert results["writes/tasks/works__1"]["reward"] == 1.0


def test_agents_keys_are_not_in_a_python_verifiers_variables(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks/a")
    (task / "tests/evaluate.py").write_text(
        "import os\ndef evaluate(task): return {'reward': 'AGENT_KEY' not in os.environ, 'mine': os.environ['MINE'] == 'x'}\n"
    )
    verifier = {"type": "python", "env": {"MINE": "x"}, "options": {"module": "tests.evaluate"}}
    results = run(tmp_path, verifier, {**WRITES_42, "env": {"AGENT_KEY": "k"}})
    assert results["writes/tasks/a__1"]["rewards"] == {"reward": 1.0, "mine": 1.0}


@pytest.mark.parametrize(
    ("verifier", "why"),
    [
        ({"rewards": ["no_such"]}, "no reward 'no_such' is installed"),
        ({"rewards": [{"type": "string_match", "options": {"expectd": "x"}}]}, "did you mean 'expected'"),
        ({"type": "python"}, "exactly one of `module` and `import_path`"),
        ({"rubric": {"funcs": ["string_match", "test"], "weights": [0, 0]}}, "a weight above 0"),
    ],
)
def test_a_wrong_reward_stops_the_job_before_anything_starts(tmp_path: Path, verifier: dict[str, Any], why: str) -> None:
    write_task(tmp_path / "tasks/a")
    done = rollout(tmp_path, write_job(tmp_path, {"verifier": verifier}), "--name", "j")
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "jobs").exists()


def test_artifacts_are_kept_and_verified_again_from(tmp_path: Path) -> None:
    artifacts = 'artifacts = ["answer.txt", {source = "/app/extra", destination = "more", exclude = ["*.tmp"]}]\n'
    write_task(tmp_path / "tasks/a", toml=artifacts)
    agent = {"name": "writes", "execute": "echo 42 > answer.txt; mkdir extra; echo a > extra/a; echo b > extra/b.tmp"}
    run(tmp_path, {}, agent)
    trial = tmp_path / "jobs/j/writes/tasks/a__1"
    assert (trial / "artifacts/app/answer.txt").read_text() == "42\n"
    assert sorted(path.name for path in (trial / "artifacts/more").iterdir()) == ["a"]
    reward = {"type": "string_match", "options": {"expected": "42", "answer": {"file": "/app/answer.txt"}}}
    (tmp_path / "other.json").write_text(json.dumps({"rewards": [reward]}))
    done = rollout(tmp_path, "regrade", "jobs/j", "--verifier", "other.json")
    assert "1 regraded (0 changed)" in done.stdout, done.stdout + done.stderr


def test_the_tests_of_a_task_are_one_reward_of_several(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a")
    forger = {"name": "forges", "execute": "echo 41 > answer.txt; echo 1 > /logs/verifier/reward.txt"}
    rewards = ["test", {"type": "string_match", "options": {"expected": "41", "answer": {"file": "/app/answer.txt"}}}]
    results = run(tmp_path, {"rewards": rewards}, WRITES_42, forger)
    assert results["writes/tasks/a__1"]["rewards"] == {"reward": 0.5, "test": 1.0, "string_match": 0.0}
    assert results["forges/tasks/a__1"]["rewards"] == {"reward": 0.5, "test": 0.0, "string_match": 1.0}


def test_a_python_verifier_sees_what_an_agent_printed_as_its_answer(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks/a")
    (task / "tests/evaluate.py").write_text("def evaluate(trajectory): return trajectory['output'].split()[-1] == '42'\n")
    results = run(tmp_path, {"type": "python", "options": {"module": "tests.evaluate"}}, SAYS_42)
    assert results["says/tasks/a__1"]["reward"] == 1.0
