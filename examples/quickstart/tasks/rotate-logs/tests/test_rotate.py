"""What /app/rotate.sh does to folders of logs."""

import gzip
import os
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = "/app/rotate.sh"


def rotate(*args):
    return subprocess.run([SCRIPT, *map(str, args)], capture_output=True, text=True, timeout=20)


class RotateTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.log = self.folder / "web server.log"

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def state(self):
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def test_generations_move_up_and_the_last_goes(self):
        for number in range(1, 7):
            self.log.write_text(f"run {number}\n")
            done = rotate(self.log, 3)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.names(), ["web server.log", "web server.log.1", "web server.log.2.gz", "web server.log.3.gz"])
        self.assertEqual(self.log.read_text(), "")
        self.assertEqual((self.folder / "web server.log.1").read_text(), "run 6\n")
        self.assertEqual(gzip.decompress((self.folder / "web server.log.2.gz").read_bytes()), b"run 5\n")
        self.assertEqual(gzip.decompress((self.folder / "web server.log.3.gz").read_bytes()), b"run 4\n")

    def test_ten_generations_are_not_confused(self):
        for number in range(1, 14):
            self.log.write_text(f"{number}")
            self.assertEqual(rotate(self.log, 11).returncode, 0)
        self.assertEqual(len(self.names()), 12)
        self.assertEqual(gzip.decompress((self.folder / "web server.log.10.gz").read_bytes()), b"4")
        self.assertEqual(gzip.decompress((self.folder / "web server.log.11.gz").read_bytes()), b"3")

    def test_keeping_one(self):
        for text in ("a", "b"):
            self.log.write_text(text)
            self.assertEqual(rotate(self.log, 1).returncode, 0)
        self.assertEqual(self.state(), {"web server.log": b"", "web server.log.1": b"b"})

    def test_permissions_stay(self):
        self.log.write_text("x")
        os.chmod(self.log, 0o640)
        self.assertEqual(rotate(self.log, 2).returncode, 0)
        self.assertEqual(stat.S_IMODE(self.log.stat().st_mode), 0o640)

    def test_an_empty_log_changes_nothing(self):
        self.log.write_text("")
        (self.folder / "web server.log.1").write_text("old")
        before = self.state()
        self.assertEqual(rotate(self.log, 2).returncode, 0)
        self.assertEqual(self.state(), before)

    def test_neighbours_are_left_alone(self):
        self.log.write_text("x")
        for name in ("web server.log.1.bak", "web server.log.old", "other.log", "other.log.1"):
            (self.folder / name).write_text(name)
        self.assertEqual(rotate(self.log, 2).returncode, 0)
        for name in ("web server.log.1.bak", "web server.log.old", "other.log", "other.log.1"):
            self.assertEqual((self.folder / name).read_text(), name)

    def test_wrong_arguments(self):
        self.log.write_text("x")
        before = self.state()
        for args in [(), (self.log,), (self.log, 0), (self.log, "two"), (self.log, -1), (self.log, 1, 1), (self.folder / "absent", 2)]:
            done = rotate(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, args)
            self.assertEqual(self.state(), before)


if __name__ == "__main__":
    unittest.main()
