"""A few examples. Exit code 0 when all hold."""

import sys

from intervals import merge, subtract, total

EXAMPLES = [
    ("merge([(1, 3), (2, 5)])", merge([(1, 3), (2, 5)]), [(1, 5)]),
    ("merge([(5, 6), (1, 2)])", merge([(5, 6), (1, 2)]), [(1, 2), (5, 6)]),
    ("merge([(1, 2), (2, 3)])", merge([(1, 2), (2, 3)]), [(1, 3)]),
    ("subtract([(3, 4)], (1, 6))", subtract([(3, 4)], (1, 6)), [(1, 3), (4, 6)]),
    ("total([(1, 4), (2, 3)])", total([(1, 4), (2, 3)]), 3),
]

failed = 0
for text, found, expected in EXAMPLES:
    if found != expected:
        failed += 1
        print(f"{text} is {found}, should be {expected}")
print(f"{len(EXAMPLES) - failed} of {len(EXAMPLES)} examples hold")
sys.exit(1 if failed else 0)
