"""python3 -m sums: a line in, a line out."""

import sys

from sums.errors import SumError
from sums.machine import run
from sums.parser import parse
from sums.tokens import tokens


def answer(line, variables):
    if not line.strip():
        return ""
    try:
        target, steps = parse(tokens(line))
        value = run(steps, variables)
    except SumError as error:
        return f"error: {error}"
    if target is not None:
        variables[target] = value
    return str(value)


def main():
    sys.set_int_max_str_digits(0)
    variables = {}
    for line in sys.stdin:
        print(answer(line.rstrip("\n"), variables))


main()
