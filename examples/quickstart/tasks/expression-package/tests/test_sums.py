"""Feed the calculator lines with known answers, and random expressions with a model's."""

import random
import re
import subprocess
import sys
import unittest
from fractions import Fraction
from pathlib import Path

TABLE = """
7 => 7
2.50 => 5/2
.5 + .25 => 3/4
1/3 + 1/6 => 1/2
-2^2 => -4
(-2)^2 => 4
2^-1 => 1/2
2^3^2 => 512
2^-2^2 => 1/16
- - 3 => 3
-+-3 => 3
2*-3 => -6
10 - 4 - 3 => 3
100 / 10 / 5 => 2
1 + 2 * 3 - 4 / 8 => 13/2
x = 2^10 => 1024
x / 3 => 1024/3
y=x*x => 1048576
y - x^2 => 0
_a1 = -x => -1024
abs(_a1) + 1 => 1025
min(3, 1/2, 2) => 1/2
max( 3 ,  x , 2 ) => 1024
max(min(1, 2), abs(-(3))) => 3
min(4) => 4
min = 5 => 5
min + min(1, 2) => 6
0^0 => 1
\t 1\t+ 1  => 2
1 / 0 => error: division by zero
0^-1 => error: division by zero
2^.5 => error: bad exponent
2^1001 => error: bad exponent
2^(1/2 + 1/2) => 2
z + 1 => error: unknown name
sin(1) => error: unknown name
abs => error: unknown name
abs() => error: wrong number of arguments
abs(1, 2) => error: wrong number of arguments
max() => error: wrong number of arguments
1 + => error: syntax
* 2 => error: syntax
(1 + 2 => error: syntax
1 + 2) => error: syntax
() => error: syntax
1 2 => error: syntax
2x => error: syntax
1..2 => error: syntax
1 , 2 => error: syntax
min(1,) => error: syntax
(1, 2) => error: syntax
x = => error: syntax
= 3 => error: syntax
x = y = 3 => error: syntax
2 = 3 => error: syntax
1 / 0 + ) => error: syntax
q = 1 / 0 => error: division by zero
q => error: unknown name
1 $ 2 => error: syntax
__import__("os") => error: syntax
x => 1024
"""


def show(value):
    return str(Fraction(value))


def expression(chance, depth):
    """A random expression, fully parenthesised in some places, and its value."""
    if depth == 0 or chance.random() < 0.2:
        number = Fraction(chance.randint(0, 999), chance.choice([1, 10, 100]))
        return (str(number) if number.denominator == 1 else f"{float(number)}"), number, 9
    left, a, left_binding = expression(chance, depth - 1)
    right, b, right_binding = expression(chance, depth - 1)
    operator, binding = chance.choice([("+", 1), ("-", 1), ("*", 2), ("/", 2)])
    if operator == "/" and b == 0:
        operator, binding = "+", 1
    if left_binding < binding:
        left = f"({left})"
    if right_binding <= binding:
        right = f"({right})"
    value = {"+": a + b, "-": a - b, "*": a * b}.get(operator) if operator != "/" else a / b
    blank = chance.choice(["", " ", "  "])
    return f"{left}{blank}{operator}{blank}{right}", value, binding


def calculate(lines):
    done = subprocess.run([sys.executable, "-m", "sums"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=30, cwd="/app")
    return done.returncode, done.stdout.split("\n"), done.stderr


class SumsTest(unittest.TestCase):
    def check(self, rows):
        code, answers, errors = calculate([line for line, _ in rows])
        self.assertEqual(code, 0, errors[-500:])
        for (line, expected), found in zip(rows, answers):
            self.assertEqual(found, expected, line[:200])
        self.assertEqual(len(answers), len(rows) + 1)

    def test_table(self):
        self.check([tuple(row.replace("\\t", "\t").split(" => ")) for row in TABLE.strip("\n").split("\n")])

    def test_random_expressions(self):
        chance = random.Random(1729)
        rows = []
        for _ in range(300):
            text, value, _ = expression(chance, 5)
            rows.append((text, show(value)))
        self.check(rows)

    def test_empty_lines_and_nesting(self):
        self.check([("", ""), ("1", "1"), ("   ", ""), ("(" * 1000 + "7" + ")" * 1000, "7"), ("-" * 1001 + "1", "-1"), ("2^1000", str(2**1000))])

    def test_nothing_forbidden_is_used(self):
        sources = list(Path("/app/sums").rglob("*.py"))
        self.assertTrue(sources)
        for source in sources:
            self.assertIsNone(re.search(r"\b(eval|exec|compile)\s*\((?<!re\.compile\()|\bimport ast\b|\bfrom ast\b", source.read_text()), source)


if __name__ == "__main__":
    unittest.main()
