"""Jobs on data sets of rows and on folders with a dataset.toml, by the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import command, environ, rollout, trial_results, write_job
from rollout.testing import acp_agent
from unit.tasks.datasets import EVALUATE, folder_task, rows_dataset, write_files

FLOW = """
def solve(task, config):
    if task.metadata.get("fail"):
        raise RuntimeError("no model")
    return str(task.metadata["answer"] if task.id != "wrong" else "?")
"""
AGENT = {"name": "flow", "options": {"import_path": "flow.py:solve"}}


def write_rows_job(folder: Path, rows: list[Any], toml: str = '[dataset]\nname = "sums"\n', **job: Any) -> Path:
    rows_dataset(folder / "rows", rows, toml)
    (folder / "flow.py").write_text(FLOW)
    # No environment is named: the default, docker, is not asked for rows that need none.
    path = folder / "job.json"
    path.write_text(json.dumps({"agents": [AGENT], "datasets": [{"path": "rows"}], "metrics": [{"type": "mean"}], **job}))
    return path


def row(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "question": f"What of {id_}?", "answer": 4, **more}


def finished(folder: Path, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    done = rollout(folder, "job.json", "-q", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return trial_results(folder / "jobs/job")


def test_rows_run_without_an_environment(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a"), row("wrong")])
    results = finished(tmp_path)
    assert {key: result["reward"] for key, result in results.items()} == {"flow/sums/a__1": 1.0, "flow/sums/wrong__1": 0.0}
    assert {result["environment_type"] for result in results.values()} == {"none"}
    trial = tmp_path / "jobs/job/flow/sums/a__1"
    spec = json.loads((trial / "config.json").read_text())
    assert (spec["task"]["instruction"], spec["task"]["row"]) == ("What of a?", row("a"))
    episode = json.loads((trial / "agent/episode.json").read_text())
    assert (episode["id"], episode["task_id"], episode["trajectories"][0]["output"]) == ("a:0", "a", "4")
    lock = json.loads((tmp_path / "jobs/job/lock.json").read_text())
    assert [(task["dataset"], task["rows"]) for task in lock["tasks"]] == [("sums", 2)]


def test_a_flow_that_is_not_in_its_file_is_named(tmp_path: Path) -> None:
    agent = {"name": "flow", "options": {"import_path": "flow.py:solv"}}
    write_rows_job(tmp_path, [row("a")], agents=[agent])
    done = rollout(tmp_path, "job.json")
    assert (done.returncode, "flow.py: has no `solv`" in done.stderr) == (2, True)
    assert not (tmp_path / "jobs").exists()


def test_an_oracle_of_rows_without_answers_is_refused(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [{"id": "a", "question": "What?"}], agents=[{"name": "oracle"}])
    done = rollout(tmp_path, "job.json")
    assert (done.returncode, "no row says one (as ground_truth, " in done.stderr) == (2, True), done.stderr


def test_what_began_afresh_goes_on_as_its_last_line_says(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError\n\ndef solve(task, config): ...\n")
    agent = {"name": "flow", "options": {"import_path": "broken.py:solve"}}
    write_rows_job(tmp_path, [row("a")], agents=[agent])
    finished(tmp_path, code=1)
    fresh = rollout(tmp_path, "job.json", "--fresh")
    assert "`--name job-2` instead of --fresh runs only those" in fresh.stdout
    again = rollout(tmp_path, "job.json", "--name", "job-2")
    assert "job job-2: 1 trial (0 kept, 1 again (errored))" in again.stderr
    assert not (tmp_path / "jobs/job-3").exists()


def test_a_finished_job_of_rows_is_kept_and_only_what_changed_runs_again(tmp_path: Path) -> None:
    rows = [row("a"), row("b"), row("c")]
    write_rows_job(tmp_path, rows)
    finished(tmp_path)
    assert "3 kept" in rollout(tmp_path, "job.json").stderr
    write_rows_job(tmp_path, [rows[0], row("b", answer=5), rows[2], row("d")])
    said = rollout(tmp_path, "job.json").stderr
    assert "2 kept" in said
    assert "1 again (task changed)" in said
    (tmp_path / "rows/tests/evaluate.py").write_text(EVALUATE + "# another\n")
    assert "4 again (verifier changed)" in rollout(tmp_path, "job.json").stderr
    assert not list((tmp_path / "rows").rglob("__pycache__"))


def test_a_changed_flow_runs_again(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a"), row("b")])
    finished(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW + "# another\n")
    assert "2 again (agent changed)" in rollout(tmp_path, "job.json").stderr


def test_rows_that_change_while_the_job_runs_stop_it_with_one_line_and_lose_nothing(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row(f"r{number}") for number in range(30)], n_concurrent_trials=1)
    (tmp_path / "flow.py").write_text(
        "import pathlib\n"
        "def solve(task, config):\n"
        "    if task.id == 'r9':\n"
        "        with open('rows/data/test.jsonl', 'a') as file:\n"
        "            file.write('{}')\n"
        "    return '4'\n"
    )
    done = rollout(tmp_path, "job.json")
    assert done.returncode != 0
    assert "test.jsonl: has changed since the job was planned; run the job again" in done.stderr
    assert "Traceback" not in done.stderr
    results = trial_results(tmp_path / "jobs/job")
    assert {f"flow/sums/r{number}__1" for number in range(9)} <= set(results)


def test_more_attempts_extend_a_job_of_rows(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a"), row("b")])
    finished(tmp_path)
    write_rows_job(tmp_path, [row("a"), row("b")], n_attempts=2)
    assert "2 kept" in rollout(tmp_path, "job.json").stderr
    assert len(trial_results(tmp_path / "jobs/job")) == 4


def test_ids_that_differ_only_in_case_or_in_odd_characters_have_folders_of_their_own(tmp_path: Path) -> None:
    ids = ["a", "A", "a/b", "a b", "..", "ü"]
    write_rows_job(tmp_path, [row(id_) for id_ in ids])
    results = finished(tmp_path)
    assert sorted(result["task_name"] for result in results.values()) == sorted(ids)
    assert len({trial.casefold() for trial in results}) == len(ids)
    assert all((tmp_path / "jobs/job" / trial / "result.json").is_file() for trial in results)


def test_selection_works_on_rows(tmp_path: Path) -> None:
    datasets = [{"path": "rows", "task_names": ["a*"], "exclude_task_names": ["a2"], "n_tasks": 2}]
    write_rows_job(tmp_path, [row(f"a{number}") for number in range(6)] + [row("b")], datasets=datasets)
    assert sorted(result["task_name"] for result in finished(tmp_path).values()) == ["a0", "a1"]
    assert "1 trial" in rollout(tmp_path, "job.json", "--task", "a3", "--set", "datasets.0.n_tasks=9", "--name", "one").stderr


def test_a_row_on_which_the_flow_fails_is_recorded_and_touches_no_other(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a", fail=True), row("b")])
    results = finished(tmp_path)
    assert results["flow/sums/a__1"]["error"]["message"] == "the agent: RuntimeError: no model"
    assert (results["flow/sums/a__1"]["reward"], results["flow/sums/b__1"]["reward"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            {"agents": [{"name": "s", "execute": "echo 4"}], "environment": {"type": "none"}},
            "the agent s needs an environment, and `environment.type` is none",
        ),
        ({"environment": {"type": "none", "options": {"x": 1}}}, "option"),
        ({"agents": [{"name": "x", "type": "flow", "options": {"import_path": "flow.py"}}]}, "write `package.module:name`"),
        ({"agents": [{"name": "x", "type": "flow", "options": {"import_path": "no.py:f"}}]}, "no.py: No such file or directory"),
        ({"datasets": [{"path": "rows", "split": "dev"}]}, "dev.jsonl: no such file; there are test"),
        ({"agents": []}, "agents: the list is empty"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    write_rows_job(tmp_path, [row("a")], **job)
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "jobs").exists()


def test_faulty_rows_stop_the_job_unless_they_may_be_skipped(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a"), {"id": "b"}, "nonsense", row("a")])
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 2
    assert [line.split(": ")[0].strip() for line in done.stderr.splitlines()[1:]] == [
        f"{tmp_path}/rows/data/test.jsonl:{line}" for line in (2, 3, 4)
    ]
    assert list(finished(tmp_path, "--skip-invalid")) == ["flow/sums/a__1"]


def test_a_flow_may_be_a_class_asynchronous_and_return_an_episode(tmp_path: Path) -> None:
    write_rows_job(
        tmp_path, [row("a")], agents=[{"name": "f", "type": "flow", "options": {"import_path": "flow:Flow", "model": "m"}}]
    )
    (tmp_path / "flow.py").write_text(
        "from rollout import Episode, Step, Trajectory\n"
        "class Flow:\n"
        "    async def arun(self, task, config):\n"
        "        steps = [Step(model_response=f'{config.model} {config.session_uid}')]\n"
        "        return Episode(task=task, trajectories=[Trajectory(steps=steps)], artifacts={'answer': '4'})\n"
    )
    assert finished(tmp_path)["f/sums/a__1"]["reward"] == 1.0
    episode = json.loads((tmp_path / "jobs/job/f/sums/a__1/agent/episode.json").read_text())
    assert episode["trajectories"][0]["steps"][0]["model_response"] == "m a:0"
    assert episode["task"]["id"] == "a"


def test_a_killed_job_of_rows_resumes_and_runs_nothing_twice(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row(f"r{number}") for number in range(60)], n_concurrent_trials=2)
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    (tmp_path / "flow.py").write_text(
        "import pathlib\n"
        "def solve(task, config):\n"
        "    if task.id == 'r40' and pathlib.Path('wait').exists():\n"
        "        open('ready', 'w').close()\n"
        "        import time; time.sleep(600)\n"
        "    return str(task.metadata['answer'])\n"
    )
    (tmp_path / "wait").touch()
    process = subprocess.Popen(command("job.json", "-q"), cwd=tmp_path, env=environ(tmp_path))
    ready.read_bytes()  # returns when the flow has opened and closed the other end
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = set(trial_results(tmp_path / "jobs/job"))
    assert 30 <= len(before) < 60
    (tmp_path / "wait").unlink()
    results = finished(tmp_path)  # a trial that finished twice is an error there
    assert len(results) == 60
    assert before < set(results)
    assert json.loads((tmp_path / "jobs/job/result.json").read_text())["mean_reward"] == 1.0


@pytest.mark.needs("local")
def test_rows_run_in_an_environment_when_the_agent_or_the_verifier_does(tmp_path: Path) -> None:
    files = {
        "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/out)" = 4 ] && echo 1 > /tmp/rllm/x; mkdir -p /tmp/rllm\n'
        'echo "{\\"reward\\": $(test "$(cat /app/out)" = 4 && echo 1 || echo 0)}" > /tmp/rllm/reward.json\n',
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\n",
    }
    toml = '[dataset]\nname = "sums"\ndefault_sandbox = "local"\n[verifier]\nscript = "tests/test.sh"\n'
    agents = [
        {"name": "w", "execute": 'test "$ROLLOUT_TASK_INSTRUCTION" = "What of a?" && echo 4 > /app/out || echo 5 > /app/out'}
    ]
    write_rows_job(tmp_path, [row("a"), row("b")], toml, agents=agents)
    write_files(tmp_path / "rows", files)
    results = finished(tmp_path)
    assert {name: result["reward"] for name, result in results.items()} == {"w/sums/a__1": 1.0, "w/sums/b__1": 0.0}
    assert {result["environment_type"] for result in results.values()} == {"local"}


def test_a_job_without_agents_runs_the_default_agent(tmp_path: Path) -> None:
    toml = '[dataset]\nname = "sums"\ndefault_agent = "nop"\n'
    path = write_rows_job(tmp_path, [row("a")], toml)
    path.write_text(json.dumps({"datasets": [{"path": "rows"}]}))
    assert finished(tmp_path)["nop/sums/a__1"]["reward"] == 0.0
    write_rows_job(tmp_path, [row("a")], "[dataset]\n")
    path.write_text(json.dumps({"datasets": [{"path": "rows"}]}))
    assert "no dataset.toml names a default_agent" in rollout(tmp_path, "job.json").stderr


@pytest.mark.needs("local")
def test_folders_share_the_verifier_of_their_data_set(tmp_path: Path) -> None:
    """A shared script, a shared Python function and a task's own test, in one data set and one job."""
    root = tmp_path / "bench"
    write_files(root, {"dataset.toml": '[dataset]\nname = "mixed"\n[verifier]\nmodule = "tests.evaluate"\ntimeout_sec = 50\n'})
    write_files(
        root, {"tests/evaluate.py": "def evaluate(task):\n    return {'reward': 0.5, 'dir': float(task.task_dir.name == 'b')}\n"}
    )
    folder_task(root, "a", '[verifier]\nscript = "check/run.sh"\n', {"check/run.sh": "echo 0.25 > /logs/verifier/reward.txt\n"})
    folder_task(root, "b", "[agent]\ntimeout_sec = 5\n")
    (tmp_path / "r.json").write_text(json.dumps([{"name": "some", "version": "1", "tasks": [{"name": "b", "path": "bench/b"}]}]))
    datasets = [{"path": "bench"}, {"path": "bench/b", "name": "alone"}, {"registry": {"path": "r.json"}, "name": "some"}]
    write_job(tmp_path, {"agents": [{"name": "nop"}], "datasets": datasets})
    results = finished(tmp_path)
    for name in ("alone", "some"):
        assert results[f"nop/{name}/b__1"]["rewards"] == {"reward": 0.5, "dir": 1.0}
    assert results["nop/mixed/a__1"]["rewards"] == {"reward": 0.25}
    assert results["nop/mixed/b__1"]["rewards"] == {"reward": 0.5, "dir": 1.0}
    assert (results["nop/mixed/a__1"]["environment_type"], results["nop/mixed/b__1"]["environment_type"]) == ("local", "none")


def test_images_reach_a_flow_as_content_blocks(tmp_path: Path) -> None:
    toml = '[dataset]\nname = "sums"\ncategory = "vlm"\n'
    write_rows_job(tmp_path, [row("a", picture="images/1.png")], toml)
    write_files(tmp_path / "rows", {"images/1.png": b"PNG"})
    (tmp_path / "flow.py").write_text(
        "def solve(task, config):\n"
        "    kinds = [block['type'] for block in task.instruction]\n"
        "    good = kinds == ['text', 'image_url'] and task.instruction[1]['image_url']['url'] == 'data:image/png;base64,UE5H'\n"
        "    return '4' if good else 'no'\n"
    )
    assert finished(tmp_path)["flow/sums/a__1"]["reward"] == 1.0


@pytest.mark.needs("local")
def test_images_reach_agents_in_an_environment_as_files_and_through_acp_as_content(tmp_path: Path) -> None:
    look = 'printf "%s" "$ROLLOUT_TASK_INSTRUCTION"; tail -n 2 "$ROLLOUT_TASK_INSTRUCTION_FILE"; cat /tmp/instruction-images/*'
    acp = "python3 /app/acp_agent.py --do images"
    write_rows_job(
        tmp_path,
        [row("a", pictures=["images/1.png", "images/2.jpg"])],
        '[dataset]\nname = "sums"\ncategory = "vlm"\n',
        environment={"type": "local"},
        agents=[
            {"name": "script", "execute": look},
            {"name": "sees", "type": "acp", "options": {"command": f"{acp} --images"}},
            {"name": "reads", "type": "acp", "options": {"command": acp}},
        ],
    )
    docker = "FROM x\nWORKDIR /app\nCOPY acp_agent.py .\n"
    files = {"images/1.png": b"PNG", "images/2.jpg": b"JPG", "environment/Dockerfile": docker}
    write_files(tmp_path / "rows", {**files, "environment/acp_agent.py": Path(acp_agent.__file__).read_bytes()})
    finished(tmp_path)
    trials = tmp_path / "jobs/job"
    named = "- /tmp/instruction-images/1.png\n- /tmp/instruction-images/2.jpg\n"
    said = (trials / "script/sums/a__1/agent/stdout.txt").read_text()
    assert said == f"What of a?\n\nThe images that belong to this, in their order, are the files:\n{named}{named}PNGJPG"
    for agent, answer in (("sees", "image/png:UE5H image/jpeg:SlBH"), ("reads", None)):
        episode = trials / agent / "sums/a__1/agent/episode.json"
        answered = json.loads(episode.read_text())["trajectories"][0]["output"] if episode.is_file() else None
        assert answered == answer


@pytest.mark.needs("local")
def test_files_and_setup_commands_prepare_the_environment(tmp_path: Path) -> None:
    root = write_files(tmp_path / "bench", {"dataset.toml": '[dataset]\nname = "b"\ndefault_sandbox = "local"\n'})
    check = "[ \"$(cat /app/seed.txt /app/script /app/command)\" = 'seed\n1\n2' ] && echo 1 > /logs/verifier/reward.txt\n"
    files = {
        "tests/test.sh": check,
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "environment/files/seed.txt": "seed\n",
        "environment/setup.sh": "#!/bin/sh\ntest -f /app/seed.txt && echo 1 > /app/script\n",
    }
    folder_task(root, "good", '[rllm]\nsetup_commands = ["echo 2 > /app/command"]\n', files)
    folder_task(root, "bad", '[environment]\nsetup_commands = ["echo no such thing >&2; exit 3"]\n', files)
    (tmp_path / "job.json").write_text(json.dumps({"agents": [{"name": "nop"}], "datasets": [{"path": "bench"}]}))
    results = finished(tmp_path, code=1)
    assert results["nop/b/good__1"]["reward"] == 1.0
    error = results["nop/b/bad__1"]["error"]
    assert error["type"] == "environment_start_failed"
    assert "setup command 1 (echo no such thing >&2; exit 3) exited with code 3: no such thing" in error["message"]


def test_the_oracle_gives_a_rows_answer_and_so_proves_its_verifier(tmp_path: Path) -> None:
    rows_dataset(tmp_path / "rows", [row("a"), {"id": "b", "question": "q", "ground_truth": ["x", "y"], "answer": "y"}])
    done = rollout(tmp_path, "tasks", "check", "rows", "--oracle", "--nop")
    assert done.returncode == 1
    assert "b" in done.stdout
    assert "its solution gets 0" in done.stdout
    assert done.stdout.count("error") == 2  # the finding, and the count
    (tmp_path / "rows/data/test.jsonl").write_text(json.dumps(row("a")) + "\n")
    done = rollout(tmp_path, "tasks", "check", "rows", "--oracle", "--nop", "--fresh")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 task, 0 errors, 0 warnings")


def test_a_trial_of_a_row_runs_from_its_spec_alone(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a")])
    finished(tmp_path)
    trial = tmp_path / "jobs/job/flow/sums/a__1"
    (tmp_path / "spec.json").write_bytes((trial / "config.json").read_bytes())
    (trial / "result.json").unlink()
    done = rollout(tmp_path, "trial", "run", "spec.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((trial / "result.json").read_text())["reward"] == 1.0


def test_data_sets_are_listed_with_their_rows(tmp_path: Path) -> None:
    write_rows_job(tmp_path, [row("a"), row("b")])
    listed = rollout(tmp_path, "datasets", "list", "job.json").stdout.splitlines()
    assert listed[1].split()[:2] == ["sums", "2"]


@pytest.mark.needs("local")
def test_rows_that_lead_to_task_folders_are_run_in_them(tmp_path: Path) -> None:
    tests = 'test "$(cat /app/said)" = "$WANTED" && echo 1 > /logs/verifier/reward.txt\n'
    toml = '[verifier.env]\nWANTED = "{}"\n[metadata]\nlevel = "hard"\n'
    for name, wanted in (("one", "Do one."), ("two", "Row two.")):
        files = {"tests/test.sh": tests, "environment/Dockerfile": "FROM x\nWORKDIR /app\n"}
        folder_task(tmp_path / "elsewhere", name, toml.format(wanted), files)
    rows = [{"id": "r1", "task_path": "../elsewhere/one"}, {"id": "r2", "task_path": "../elsewhere/two", "question": "Row two."}]
    execute = 'printf %s "$ROLLOUT_TASK_INSTRUCTION" > /app/said'
    write_rows_job(tmp_path, rows, environment={"type": "local"}, agents=[{"name": "it", "execute": execute}])
    results = finished(tmp_path)
    assert {key: result["reward"] for key, result in results.items()} == {"it/sums/r1__1": 1.0, "it/sums/r2__1": 1.0}
    (tmp_path / "rows/data/test.jsonl").write_text('{"id": "r1", "task_path": "../nowhere"}\n{"id": "r2", "question": "?"}\n')
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 2
    assert "test.jsonl:1: " in done.stderr
    assert "nowhere: does not exist" in done.stderr
    assert "test.jsonl:2: has no task_path, which other rows have" in done.stderr
