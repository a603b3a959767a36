"""The merge commit, and what its convert.sh does."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

MAIN = "11a4284f7cd2998d4df28ca98470841da8d28b8e"
IMPERIAL = "64c3bd771a1da2038d1d8976cd936199f3cdb6f6"


def git(*args):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    base = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", "/app/units"]
    return subprocess.run([*base, *args], env=env, capture_output=True, text=True, check=True, timeout=30).stdout


class MergeTest(unittest.TestCase):
    def convert(self, *args, stdin=""):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "convert.sh")
            script.write_text(git("show", "main:convert.sh"))
            return subprocess.run(["sh", script, *args], input=stdin, capture_output=True, text=True, timeout=20)

    def test_main_is_the_merge(self):
        self.assertEqual(git("rev-list", "--parents", "-n", "1", "main").split()[1:], [MAIN, IMPERIAL])
        self.assertEqual(git("symbolic-ref", "HEAD").strip(), "refs/heads/main")
        self.assertEqual(git("status", "--porcelain"), "")
        self.assertIn("100755", git("ls-tree", "main", "convert.sh"))

    def test_readme_has_the_lines_of_both(self):
        lines = ["# convert.sh", "", "- f-c, km-mi", "- numbers from standard input", "- ft-m, m-ft, lb-kg"]
        self.assertEqual(git("show", "main:README.md").splitlines(), lines)

    def test_every_conversion_in_both_ways(self):
        table = {
            "f-c": [("212", "100.00"), ("-40", "-40.00")],
            "km-mi": [("42.195", "26.22")],
            "ft-m": [("10", "3.05")],
            "m-ft": [("1", "3.28")],
            "lb-kg": [("150", "68.04")],
        }
        for conversion, rows in table.items():
            numbers, expected = [row[0] for row in rows], [row[1] for row in rows]
            done = self.convert(conversion, *numbers)
            self.assertEqual((done.stdout.split(), done.returncode), (expected, 0), conversion)
            done = self.convert(conversion, stdin="\n".join(numbers) + "\n")
            self.assertEqual((done.stdout.split(), done.returncode), (expected, 0), conversion)

    def test_unknown_conversion_is_refused(self):
        for done in (self.convert("stone-kg", "1"), self.convert("stone-kg", stdin="1\n")):
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1))

    def test_function_was_renamed(self):
        script = git("show", "main:convert.sh")
        self.assertIn("f_to_c", script)
        self.assertNotIn("celsius", script)


if __name__ == "__main__":
    unittest.main()
