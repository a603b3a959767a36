"""Print the fraction of /app/answer.json that is right; say on standard error which answers are not."""

import json
import sys

with open("/tests/expected.json") as file:
    expected = json.load(file)
try:
    with open("/app/answer.json") as file:
        answer = json.load(file)
    if not isinstance(answer, dict) or set(answer) != set(expected):
        raise ValueError(f"an object with the keys {', '.join(expected)} is wanted")
except (OSError, ValueError) as error:
    print(f"/app/answer.json: {error}", file=sys.stderr)
    answer = {}
right = 0
for question, wanted in expected.items():
    given = answer.get(question)
    if type(given) is type(wanted) and given == wanted:
        right += 1
    else:
        print(f"{question}: {given!r} is wrong", file=sys.stderr)
print(right / len(expected))
