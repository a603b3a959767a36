"""Random logs, with a model of the report that shares nothing with the script."""

import os
import random
import subprocess
import sys
from collections import defaultdict

NOISE = ['{ip} - - [10/Jun/2024:13:56:01 +0000] "-" 408 -', '{ip} - - [10/Jun/2024:13:56:20 +0000] "\\x16\\x03\\x01" 400 226', "", "garbage", '{ip} - - [10/Jun/2024:13:56:20 +0000] "GET /cut-off']


def make_log(chance, size):
    lines, table, malformed = [], defaultdict(lambda: [0, 0, 0, set()]), 0
    paths = ["/", "/shop", "/Shop", "/style.css", "/a-b", "/a_b", "/a/b", "/img/logo.png", "/search", "/api/v1/items/77"]
    for _ in range(size):
        address = f"192.0.2.{chance.randint(1, 12)}"
        if chance.random() < 0.1:
            lines.append(chance.choice(NOISE).format(ip=address))
            malformed += 1
            continue
        path = chance.choice(paths)
        query = chance.choice(["", "", "?q=1", "?next=/shop?x=2", "?"])
        status = chance.choice([200, 200, 201, 301, 304, 399, 400, 404, 500, 503])
        length = chance.choice(["-", "0", str(chance.randint(1, 3_000_000_000))])
        user = chance.choice(["-", "ana"])
        lines.append(f'{address} - {user} [10/Jun/2024:13:55:36 +0000] "{chance.choice(["GET", "POST", "HEAD"])} {path}{query} HTTP/1.1" {status} {length}')
        row = table[path]
        row[0] += 1
        row[1] += status >= 400
        row[2] += 0 if length == "-" else int(length)
        row[3].add(address)
    rows = sorted(table.items(), key=lambda item: (-item[1][0], item[0].encode()))
    report = [f"{path}\t{n}\t{errors}\t{total}\t{len(clients)}" for path, (n, errors, total, clients) in rows]
    return "\n".join(lines) + "\n", [*report, f"malformed\t{malformed}"]


def main():
    if not os.access("/app/report.sh", os.X_OK):
        print("/app/report.sh is not an executable file")
        return 1
    chance = random.Random(8128)
    for size in (1, 5, 40, 400, 3000):
        log, expected = make_log(chance, size)
        done = subprocess.run(["/app/report.sh"], input=log, capture_output=True, text=True, timeout=20, env={"PATH": "/tmp/tools"}, cwd="/")
        if done.returncode != 0 or done.stdout.splitlines() != expected:
            print(f"{size} lines: exit code {done.returncode}\n{done.stderr}")
            for found, wanted in zip([*done.stdout.splitlines(), "(nothing)"], expected):
                if found != wanted:
                    print(f"found {found!r}, should be {wanted!r}")
                    break
            return 1
    done = subprocess.run(["/app/report.sh"], input="", capture_output=True, text=True, timeout=20, env={"PATH": "/tmp/tools"}, cwd="/")
    print(f"an empty log: {done.stdout!r}")
    return 0 if done.stdout == "malformed\t0\n" else 1


sys.exit(main())
