"""test_restored.py FRESH: compare /srv/backup with what a fresh copy of the backup says."""

import gzip
import hashlib
import io
import os
import stat
import sys
import tarfile
import unittest
from pathlib import Path

FRESH = Path(sys.argv.pop(1))
BACKUP = Path("/srv/backup")


def sound(name, data):
    return hashlib.sha256(data).hexdigest() == name


class RestoredTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pieces, cls.damaged = [], []
        for line in sorted((FRESH / "MANIFEST").read_text().splitlines(), key=lambda line: int(line.split()[0])):
            name = line.split()[1]
            part = FRESH / "parts" / name
            piece = part.read_bytes() if part.exists() else b""
            if not sound(name, piece):
                cls.damaged.append(name)
                piece = gzip.decompress((FRESH / "mirror" / f"{name}.gz").read_bytes())
            pieces.append(piece)
        cls.archive = b"".join(pieces)

    def test_restored_tree(self):
        restored = BACKUP / "restored"
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            members = tar.getmembers()
            found = {str(path.relative_to(restored)) for path in restored.rglob("*") if path.is_symlink() or not path.is_dir()}
            self.assertEqual(found, {member.name for member in members})
            for member in members:
                path = restored / member.name
                if member.issym():
                    self.assertEqual(os.readlink(path), member.linkname)
                    continue
                self.assertEqual(path.read_bytes(), tar.extractfile(member).read(), member.name)
                self.assertEqual(stat.S_IMODE(path.stat().st_mode), member.mode, member.name)
                self.assertEqual(int(path.stat().st_mtime), member.mtime, member.name)

    def test_damaged_list(self):
        self.assertEqual((BACKUP / "damaged.txt").read_text().splitlines(), sorted(self.damaged))

    def test_stores_are_untouched(self):
        for name in ("parts", "mirror"):
            fresh, now = ({path.name: path.read_bytes() for path in (root / name).iterdir()} for root in (FRESH, BACKUP))
            self.assertEqual(now, fresh, name)
        self.assertEqual((BACKUP / "MANIFEST").read_text(), (FRESH / "MANIFEST").read_text())


if __name__ == "__main__":
    unittest.main()
