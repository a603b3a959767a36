"""Compare /app/intervals.py with a model that looks at every unit of time. The module runs in a process of its own."""

import json
import random
import subprocess
import sys

DRIVER = """
import json, sys
sys.path.insert(0, "/app")
import intervals
answers = []
for name, args in json.load(sys.stdin):
    pairs = [tuple(pair) for pair in args[0]]
    before = list(pairs)
    rest = [tuple(arg) for arg in args[1:]]
    answers.append([getattr(intervals, name)(pairs, *rest), pairs == before])
json.dump(answers, sys.stdout)
"""


def covered(pairs):
    return {moment for start, end in pairs for moment in range(start, end)}


def as_pairs(moments):
    pairs = []
    for moment in sorted(moments):
        if pairs and pairs[-1][1] == moment:
            pairs[-1][1] = moment + 1
        else:
            pairs.append([moment, moment + 1])
    return pairs


def expected(name, args):
    moments = covered(args[0])
    if name == "merge":
        return as_pairs(moments)
    if name == "total":
        return len(moments)
    return as_pairs(covered([args[1]]) - moments)


def cases():
    fixed = [[], [[1, 3]], [[1, 10], [2, 3]], [[2, 3], [1, 10]], [[1, 2], [2, 3]], [[5, 6], [1, 2]], [[1, 2], [1, 2]], [[-5, -1], [-1, 4]]]
    chance = random.Random(20240607)
    for _ in range(300):
        starts = [chance.randint(-20, 40) for _ in range(chance.randint(0, 9))]
        fixed.append([[start, start + chance.randint(1, 12)] for start in starts])
    for pairs in fixed:
        yield "merge", [pairs]
        yield "total", [pairs]
        start = chance.randint(-10, 25)
        yield "subtract", [pairs, [start, start + chance.randint(1, 30)]]


def main():
    asked = list(cases())
    done = subprocess.run([sys.executable, "-c", DRIVER], input=json.dumps(asked), capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        print(f"the module failed:\n{done.stderr}")
        return 1
    answers = json.loads(done.stdout)
    if len(answers) != len(asked):
        print("the module did not answer every case")
        return 1
    for (name, args), (answer, unchanged) in zip(asked, answers):
        if answer != expected(name, args):
            print(f"{name}{tuple(args)} is {answer}, should be {expected(name, args)}")
            return 1
        if not unchanged:
            print(f"{name}{tuple(args)} changed its argument")
            return 1
    print(f"{len(asked)} cases hold")
    return 0


sys.exit(main())
