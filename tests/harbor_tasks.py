"""A data set in Harbor's format: task folders of many shapes, as the data sets of the field have them.

`write_tasks` makes every shape several times with other values. Each task is solved by its own solution and by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

Files = Mapping[str, str | bytes]
"""Path below the task's folder to content. What ends in `.sh` can be executed."""


class Values(NamedTuple):
    """What tells one copy of a shape from the next."""

    base: str
    """The image that everything starts from: a Debian with python3, pytest, git, make, gcc and sqlite3."""
    number: int

    @property
    def word(self) -> str:
        return ("amber", "birch", "coral", "delta")[self.number % 4]


def write_tasks(folder: Path, base: str, copies: int = 4) -> list[str]:
    """Write `copies` of every shape below `folder`, some in nested groups; the names of the tasks."""
    names = []
    for shape in SHAPES:
        for number in range(copies):
            name = f"{shape.__name__.removeprefix('_').replace('_', '-')}-{number}"
            group = {2: "group", 3: "group/deeper"}.get(number, "")
            for path, content in {**_COMMON, **shape(Values(base, number))}.items():
                target = folder / group / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content if isinstance(content, bytes) else content.encode())
                if path.endswith(".sh") and "not-executable" not in name:
                    target.chmod(0o755)
            names.append(name)
    return names


_COMMON: Files = {
    "instruction.md": "Do what the tests want.\n",
    "task.toml": 'version = "1.0"\n\n[metadata]\nauthor_name = "Somebody"\ndifficulty = "easy"\ntags = ["shape"]\n',
}


def _check(test: str) -> str:
    """A test.sh that rewards a shell test."""
    return f"#!/bin/bash\n\n{test}\nif [ $? -eq 0 ]; then\n  echo 1 > /logs/verifier/reward.txt\nelse\n  echo 0 > /logs/verifier/reward.txt\nfi\n"


def _plain(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\necho {v.word} > answer.txt\n",
        "tests/test.sh": _check(f'[ "$(cat answer.txt)" = {v.word} ]'),
    }


def _workdir_elsewhere(v: Values) -> Files:
    place = ("/srv/project", "/opt/work", "/home/dev/code", "/var/lib/thing")[v.number % 4]
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR {place}\nRUN echo {v.word} > here.txt\n",
        "solution/solve.sh": "#!/bin/bash\ncp here.txt there.txt\n",
        "tests/test.sh": _check(f"cmp {place}/here.txt {place}/there.txt"),
    }


def _workdir_of_the_task(v: Values) -> Files:
    return {
        "task.toml": 'schema_version = "1.3"\n\n[environment]\nworkdir = "/srv/other"\n',
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\nRUN mkdir /srv/other\n",
        "solution/solve.sh": f"#!/bin/bash\npwd > {v.word}\n",
        "tests/test.sh": _check(f"grep -qx /srv/other /srv/other/{v.word}"),
    }


def _image_user(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nRUN useradd -m -u 1{v.number % 2}01 dev && mkdir /app && chown dev /app\nUSER dev\nWORKDIR /app\n",
        "solution/solve.sh": '#!/bin/bash\nid -un > who.txt\necho "$HOME" >> who.txt\n',
        "tests/test.sh": _check('[ "$(cat /app/who.txt)" = "$(printf \'dev\\n/home/dev\')" ]'),
    }


def _users_of_the_task(v: Values) -> Files:
    return {
        "task.toml": 'schema_version = "1.4"\n\n[agent]\nuser = "worker"\n\n[verifier]\nuser = "root"\n',
        "environment/Dockerfile": f"FROM {v.base}\nRUN useradd -m worker && mkdir /app && chown worker /app\nWORKDIR /app\n",
        "solution/solve.sh": "#!/bin/bash\nid -un > who.txt\n",
        "tests/test.sh": _check("[ $(cat /app/who.txt) = worker ] && [ $(id -u) = 0 ]"),
    }


def _solution_of_several_files(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": '#!/bin/bash\nset -eu\nhere=$(dirname "$(readlink -f "$0")")\npython3 "$here/parts/make.py" "$here/data.bin" > out.txt\n',
        "solution/parts/make.py": "import sys\nprint(sum(open(sys.argv[1], 'rb').read()))\n",
        "solution/data.bin": bytes(range(v.number, 200)),
        "tests/test.sh": _check(f"[ $(cat out.txt) = {sum(range(v.number, 200))} ]"),
    }


def _tests_read_the_image(v: Values) -> Files:
    rows = "".join(f"{number},{number * (v.number % 2 + 2)}\n" for number in range(20))
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\nCOPY table.csv /data/table.csv\n",
        "environment/table.csv": rows,
        "solution/solve.sh": "#!/bin/bash\nawk -F, '{s += $2} END {print s}' /data/table.csv > sum.txt\n",
        "tests/test.sh": "#!/bin/bash\npython3 /tests/check.py\n",
        "tests/check.py": (
            "import pathlib\n"
            "wanted = sum(int(line.split(',')[1]) for line in pathlib.Path('/data/table.csv').read_text().splitlines())\n"
            "try:\n    good = int(pathlib.Path('/app/sum.txt').read_text()) == wanted\nexcept OSError:\n    good = False\n"
            "pathlib.Path('/logs/verifier/reward.txt').write_text(str(float(good)))\n"
        ),
    }


def _pytest(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\nCOPY . .\n",
        "environment/sums.py": f"def twice(x):\n    return x + {v.number % 2 + 1}\n",
        "solution/solve.sh": "#!/bin/bash\nprintf 'def twice(x):\\n    return 2 * x\\n' > sums_fixed.py\n",
        "tests/test.sh": _check("python3 -m pytest -q -p no:cacheprovider /tests/test_outputs.py"),
        "tests/test_outputs.py": (
            "import importlib.util\n\n\ndef test_twice():\n"
            "    spec = importlib.util.spec_from_file_location('fixed', '/app/sums_fixed.py')\n"
            f"    module = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(module)\n    assert module.twice({v.number + 4}) == {2 * v.number + 8}\n"
        ),
    }


def _reward_json(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\ntouch {v.word}\n",
        "tests/test.sh": f"#!/bin/bash\n[ -e {v.word} ] && value=1.0 || value=0.0\nprintf '{{\"reward\": %s}}' $value > /logs/verifier/reward.json\n",
    }


def _several_rewards(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\ntouch {v.word} second\n",
        "tests/test.sh": (
            f"#!/bin/bash\n[ -e {v.word} ] && a=1 || a=0\n[ -e second ] && b=1 || b=0\n"
            'printf \'{"reward": %s, "first": %s, "second": %s}\' $((a * b)) $a $b > /logs/verifier/reward.json\n'
        ),
    }


def _exit_code_says_otherwise(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\necho {v.number} > n\nexit 0\n",
        "tests/test.sh": f'#!/bin/bash\nif [ "$(cat n 2>/dev/null)" = {v.number} ]; then echo 1 > /logs/verifier/reward.txt; exit 3; fi\necho 0 > /logs/verifier/reward.txt\nexit 0\n',
    }


def _prebuilt_image(v: Values) -> Files:
    return {
        "task.toml": f'schema_version = "1.2"\n\n[environment]\ndocker_image = "{v.base}"\nworkdir = "/srv"\n',
        "solution/solve.sh": f"#!/bin/bash\necho {v.word} > /srv/prebuilt\n",
        "tests/test.sh": _check(f"grep -qx {v.word} /srv/prebuilt"),
    }


def _prebuilt_image_beside_a_dockerfile(v: Values) -> Files:
    return {
        "task.toml": f'version = "1.0"\n\n[environment]\ndocker_image = "{v.base}"\nworkdir = "/srv"\n',
        "environment/Dockerfile": "FROM an-image-that-nobody-has:0\n",
        "solution/solve.sh": f"#!/bin/bash\necho {v.word} > /srv/prebuilt\n",
        "tests/test.sh": _check(f"grep -qx {v.word} /srv/prebuilt"),
    }


def _arguments_and_variables(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"ARG BASE={v.base}\nFROM ${{BASE}}\nARG WHO=w{v.number % 2}\nENV WHO=${{WHO}} PLACE=/srv/${{WHO}}\nWORKDIR ${{PLACE}}\n",
        "solution/solve.sh": '#!/bin/bash\necho "$WHO $PWD" > said\n',
        "tests/test.sh": _check(f'[ "$(cat said)" = "w{v.number % 2} /srv/w{v.number % 2}" ]'),
    }


def _several_stages(v: Values) -> Files:
    return {
        "environment/Dockerfile": (
            f"FROM {v.base} AS build\nCOPY hello.c /hello.c\nRUN gcc -o /hello /hello.c\n\nFROM {v.base}\nCOPY --from=build /hello /usr/local/bin/hello\nWORKDIR /app\n"
        ),
        "environment/hello.c": '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n',
        "solution/solve.sh": f"#!/bin/bash\nhello > {v.word}\n",
        "tests/test.sh": _check(f"grep -qx hello {v.word} && [ ! -e /hello.c ]"),
    }


def _ignored_files(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\nCOPY . .\n",
        "environment/.dockerignore": "secret*\n**/*.log\n!keep.log\nDockerfile\n",
        "environment/secret.txt": "no\n",
        "environment/deep/a.log": "no\n",
        "environment/keep.log": "yes\n",
        "environment/data.txt": f"{v.number % 2}\n",
        "solution/solve.sh": "#!/bin/bash\nfind . -type f | LC_ALL=C sort > /tmp/list\nmv /tmp/list list.txt\n",
        "tests/test.sh": _check("[ \"$(tr '\\n' ' ' < list.txt)\" = \"./.dockerignore ./data.txt ./keep.log \" ]"),
    }


def _empty_task_toml(v: Values) -> Files:
    return {**_plain(v), "task.toml": ""}


def _every_key_of_harbor(v: Values) -> Files:
    return {
        **_plain(v),
        "task.toml": (
            'schema_version = "1.4"\nsource = "made/for-tests"\n\n[task]\nname = "made/every-key"\nversion = "1.0.0"\ndescription = "All of them."\n'
            'authors = [{name = "Somebody", email = "somebody@example.org"}]\nkeywords = ["a", "b"]\n\n'
            "[agent]\ntimeout_sec = 90.5\n\n[verifier]\ntimeout_sec = 60.0\n\n"
            '[environment]\nbuild_timeout_sec = 300.0\nos = "linux"\ncpus = 1\nmemory_mb = 512\nstorage_mb = 2048\ngpus = 0\nnetwork_mode = "no-network"\n'
        ),
    }


def _older_keys(v: Values) -> Files:
    return {
        **_plain(v),
        "task.toml": 'version = "1.0"\n\n[agent]\ntimeout_sec = 60\n\n[environment]\ncpus = 1\nmemory = "1G"\nstorage = "4G"\nallow_internet = false\n',
    }


def _variables_of_the_task(v: Values) -> Files:
    return {
        "task.toml": f'version = "1.0"\n\n[environment.env]\nCOLOUR = "{v.word}"\n\n[verifier.env]\nWANTED = "{v.word}!"\n\n[solution.env]\nMARK = "!"\n',
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": '#!/bin/bash\necho "$COLOUR$MARK" > out\n',
        "tests/test.sh": _check('[ "$(cat out)" = "$WANTED" ] && [ -z "$MARK" ]'),
    }


def _text_of_the_world(v: Values) -> Files:
    return {
        "instruction.md": "<!-- canary GUID 00000000-0000-0000-0000-000000000000 -->\nSchreibe „größer“ 日本語 🚀 in die Datei.\n",
        "environment/Dockerfile": f'FROM {v.base}\nENV LANG=C.UTF-8\nWORKDIR /app\nCOPY ["größe und raum.txt", "./"]\n',
        "environment/größe und raum.txt": "größer 日本語\n",
        "solution/solve.sh": f"#!/bin/bash\ncp 'größe und raum.txt' '{v.word} 🚀.txt'\n",
        "tests/test.sh": _check(f"grep -qx 'größer 日本語' '/app/{v.word} 🚀.txt'"),
    }


def _not_executable(v: Values) -> Files:
    return _plain(v)


def _solution_in_python(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/usr/bin/env python3\nopen('made.txt', 'w').write('{v.word}')\n",
        "tests/test.sh": f"#!/usr/bin/env python3\nimport os\ngood = os.path.exists('made.txt') and open('made.txt').read() == '{v.word}'\nopen('/logs/verifier/reward.txt', 'w').write('1' if good else '0')\n",
    }


def _image_with_entrypoint(v: Values) -> Files:
    return {
        "environment/Dockerfile": (
            f'FROM {v.base}\nWORKDIR /app\nENTRYPOINT ["/bin/echo", "not a shell"]\nCMD ["nothing"]\nEXPOSE 8{v.number % 2}80\nVOLUME /data\nSTOPSIGNAL SIGINT\n'
            'HEALTHCHECK CMD false\nLABEL a=b\nSHELL ["/bin/bash", "-c"]\nRUN [[ -n "$BASH_VERSION" ]]\n'
        ),
        "solution/solve.sh": f"#!/bin/bash\necho {v.word} > /data/kept\n",
        "tests/test.sh": _check(f"grep -qx {v.word} /data/kept"),
    }


def _service_left_running(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\nRUN echo {v.number % 2} > index.html\n",
        "solution/solve.sh": (
            "#!/bin/bash\nsetsid nohup python3 -m http.server 8137 --bind 127.0.0.1 > server.log 2>&1 < /dev/null &\n"
            "for _ in $(seq 100); do curl -s -o /dev/null http://127.0.0.1:8137/ && exit 0; sleep 0.1; done\nexit 1\n"
        ),
        "tests/test.sh": _check(f"curl -s http://127.0.0.1:8137/index.html | grep -qx {v.number % 2}"),
    }


def _git_history(v: Values) -> Files:
    return {
        "environment/Dockerfile": (
            f"FROM {v.base}\nWORKDIR /app\nRUN git init -q . && git config user.email a@b && git config user.name n && "
            f"echo {v.number % 2} > kept && git add . && git commit -qm one && git rm -q kept && git commit -qm two\n"
        ),
        "solution/solve.sh": "#!/bin/bash\ngit checkout -q HEAD~1 -- kept\n",
        "tests/test.sh": _check(f"grep -qx {v.number % 2} kept"),
    }


def _database(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\nCOPY make.sql .\nRUN sqlite3 shop.db < make.sql\n",
        "environment/make.sql": f"create table t (a int, b text);\ninsert into t values (1, 'x'), ({v.number % 2 + 2}, 'y');\n",
        "solution/solve.sh": "#!/bin/bash\nsqlite3 shop.db 'select max(a) from t' > most\n",
        "tests/test.sh": _check(f"grep -qx {v.number % 2 + 2} most"),
    }


def _tests_with_folders(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\nprintf '\\0\\1{v.word}' > out.bin\n",
        "tests/test.sh": '#!/bin/bash\nset -eu\ncd "$(dirname "$0")"\n. lib/reward.sh\nreward cmp data/deep/expected.bin /app/out.bin\n',
        "tests/lib/reward.sh": 'reward() { if "$@"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt; }\n',
        "tests/data/deep/expected.bin": b"\0\1" + v.word.encode(),
        "tests/data/empty": "",
    }


def _solution_at_the_root(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solve.sh": f"#!/bin/bash\necho {v.word} > answer.txt\n",
        "tests/test.sh": _check(f'[ "$(cat answer.txt)" = {v.word} ]'),
    }


def _artifacts(v: Values) -> Files:
    return {
        "environment/Dockerfile": f"FROM {v.base}\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\nmkdir -p /logs/artifacts/sub\necho {json.dumps(v.word)} > /logs/artifacts/sub/report.json\n",
        "tests/test.sh": _check(f"grep -q {v.word} /logs/artifacts/sub/report.json"),
    }


SHAPES: tuple[Callable[[Values], Files], ...] = (
    _plain,
    _workdir_elsewhere,
    _workdir_of_the_task,
    _image_user,
    _users_of_the_task,
    _solution_of_several_files,
    _tests_read_the_image,
    _pytest,
    _reward_json,
    _several_rewards,
    _exit_code_says_otherwise,
    _prebuilt_image,
    _prebuilt_image_beside_a_dockerfile,
    _arguments_and_variables,
    _several_stages,
    _ignored_files,
    _empty_task_toml,
    _every_key_of_harbor,
    _older_keys,
    _variables_of_the_task,
    _text_of_the_world,
    _not_executable,
    _solution_in_python,
    _image_with_entrypoint,
    _service_left_running,
    _git_history,
    _database,
    _tests_with_folders,
    _solution_at_the_root,
    _artifacts,
)
