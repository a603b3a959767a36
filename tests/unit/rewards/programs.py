"""Programs and tests of them: right ones, and programs that want to pass a test that they do not fulfil."""

from __future__ import annotations

CHECK = """
def check(candidate):
    assert candidate(2) == 4
    assert abs(candidate(1.5) - 3) < 1e-6
"""
RIGHT = """
def double(x):
    return 2 * x
"""
STACK = """
class Empty(LookupError): ...
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise Empty('nothing')
        return self.items.pop()
    def __eq__(self, other): return self.items == other.items
"""

WORKS: dict[str, tuple[str, str, str | None]] = {
    "check": (
        RIGHT,
        CHECK,
        "double",
    ),
    "assertions": (
        RIGHT,
        """
assert double(3) == 6
assert double('a') == 'aa'
""",
        None,
    ),
    "big numbers": (
        RIGHT,
        """
assert double(10**30) == 2 * 10**30
assert double(float('inf')) == float('inf')
""",
        None,
    ),
    "its imports": (
        """
import math
from typing import List
def f(x: List[int]): return math.pi
""",
        "assert math.isclose(f([]), math.pi)",
        None,
    ),
    "kinds": (
        "def same(*x): return x",
        """
v = ([1], {'a': (2, None)}, {3}, b'x', 1j, range(3), True)
assert same(*v) == v
assert type(same(True)[0]) is bool
""",
        None,
    ),
    "in place": (
        "def order(items): items.sort()",
        """
l = [3, 1]
assert order(l) is None
assert l == [1, 3]
""",
        None,
    ),
    "generator": (
        """
def count():
    n = 0
    while True:
        yield n
        n += 1
""",
        """
import itertools
assert list(itertools.islice(count(), 3)) == [0, 1, 2]
""",
        None,
    ),
    "callback": (
        "def apply(f, x): return f(x) + 1",
        "assert apply(lambda x: x * 10, 4) == 41",
        None,
    ),
    "objects": (
        STACK,
        """
s = Stack().push(1).push(2)
assert s.pop() == 2
assert isinstance(s, Stack)
assert s == Stack().push(1)
s.items = [7]
assert s.items == [7]
""",
        None,
    ),
    "its exceptions": (
        STACK,
        """
try:
    Stack().pop()
except Empty as error:
    assert isinstance(error, LookupError) and str(error) == 'nothing'
else:
    raise AssertionError
""",
        None,
    ),
    "built-in exceptions": (
        "def f(x): return 1 / x",
        """
try:
    f(0)
except ZeroDivisionError:
    pass
else:
    assert False
""",
        None,
    ),
    "unittest": (
        RIGHT,
        """
import unittest
class T(unittest.TestCase):
    def test_it(self):
        self.assertEqual(double(2), 4)
""",
        None,
    ),
    "unittest.main": (
        RIGHT,
        """
import unittest
class T(unittest.TestCase):
    def test_it(self):
        self.assertEqual(double(2), 4)
unittest.main()
""",
        None,
    ),
    "test functions": (
        RIGHT,
        """
def test_it():
    assert double(2) == 4
""",
        None,
    ),
    "named as a built-in": (
        "def sum(x): return 2 * x",
        CHECK,
        "sum",
    ),
}
"""Program, test, entry point."""

ATTACKS = {
    "exits": """
import sys
sys.exit(0)
""",
    "exits at once": """
import os
os._exit(0)
""",
    "exits when called": """
import os
def double(x): os._exit(0)
""",
    "prints what was expected": """
import os
for fd in (1, 2, *range(3, 20)):
    try: os.write(fd, b'{"passed": true}\\n')
    except OSError: pass
def double(x): return 0
""",
    "is equal to everything": """
class E:
    __eq__ = lambda *a: True
    __sub__ = __rsub__ = __abs__ = lambda *a: 0
    __lt__ = lambda *a: True
    __bool__ = lambda *a: True
def double(x): return E()
""",
    "is a number that is everything": """
class E(int):
    __eq__ = lambda *a: True
    __sub__ = lambda *a: 0
def double(x): return E(7)
""",
    "patches what the test uses": """
import builtins
builtins.abs = lambda x: 0
def abs(x): return 0
builtins.AssertionError = SystemExit
def double(x): return 4
""",
    "looks at the test": """
import gc, sys, os
text = ''.join(str(o) for o in gc.get_objects()) + str(sys._current_frames()) + open(f'/proc/{os.getpid()}/cmdline').read()
def double(x): return 4 if x == 2 else 3.0 if ''.join(('candi', 'date(1.5)')) in text else 0
""",
    "reads the tester's memory": """
import os
def double(x):
    open(f'/proc/{os.getppid()}/mem', 'rb').close()
    return 2 * x
""",
    "writes to the tester's output": """
import os
def double(x):
    fd = os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY)
    return 2 * x
""",
    "traces the tester": """
import ctypes, os
libc = ctypes.CDLL(None)
def double(x):
    if libc.ptrace(16, os.getppid(), 0, 0) < 0: raise PermissionError
    return 2 * x
""",
    "raises what the test may catch": """
def double(x): raise SystemExit(0)
""",
    "never ends": """
def double(x):
    while True: pass
""",
    "floods": """
import os, sys
for fd in range(3, 20):
    try: os.write(fd, b'\\xff' * 1000)
    except OSError: pass
def double(x): return 0
""",
    "nests": """
def double(x):
    y = []
    for _ in range(10**5): y = [y]
    return y
""",
    "wants names that are not its own": """
def double(x, f=None): return __import__('builtins').candidate
""",
}
"""None of them doubles its argument, or not before it has tried something else."""
