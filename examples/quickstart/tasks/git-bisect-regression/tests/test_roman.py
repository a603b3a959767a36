"""The culprit, and what main can do now."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CULPRIT = "cc106ce7c7bcba8da60bb12f15b678f8869bbb67"
OLD_MAIN = "b5cc317af27c25ca9e81445f0ef06bafc6711acd"
PAIRS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]


def roman(number):
    numeral = ""
    for value, letters in PAIRS:
        count, number = divmod(number, value)
        numeral += letters * count
    return numeral


def git(*args):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    base = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", "/app/roman"]
    return subprocess.run([*base, *args], env=env, capture_output=True, check=True, timeout=30).stdout


class RomanTest(unittest.TestCase):
    def convert(self, *args):
        """What the committed roman.py prints."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "roman.py")
            script.write_bytes(git("show", "main:roman.py"))
            done = subprocess.run([sys.executable, "-I", script, *map(str, args)], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_culprit(self):
        self.assertEqual(Path("/app/culprit.txt").read_text().strip(), CULPRIT)

    def test_one_commit_on_top_of_main(self):
        self.assertTrue(re.fullmatch(OLD_MAIN, git("rev-parse", "main^").decode().strip()), "main is not one commit further")
        self.assertEqual(git("symbolic-ref", "HEAD").strip(), b"refs/heads/main")
        self.assertEqual(git("status", "--porcelain", "--untracked-files=no"), b"")

    def test_every_number_both_ways(self):
        numbers = range(1, 4000)
        numerals = [roman(number) for number in numbers]
        self.assertEqual(self.convert(*numbers), numerals)
        self.assertEqual(self.convert("--parse", *numerals), [str(number) for number in numbers])

    def test_options(self):
        self.assertEqual(self.convert("--lower", 1994, 7), ["mcmxciv", "vii"])
        self.assertEqual(self.convert("--parse", "mcmxciv"), ["1994"])


if __name__ == "__main__":
    unittest.main()
