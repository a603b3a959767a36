"""Compare /app/photos with the list of hashes that was made with the environment."""

import hashlib
import os
import unittest
from collections import defaultdict
from pathlib import Path

PHOTOS = Path("/app/photos")
BEFORE = Path("/opt/photos/before.sha256")
BEFORE_SHA256 = "df368f394dbbcff6f29bd3593f09e2ebea5c69af3a58457f69eda2834864c99f"
EMPTY = hashlib.sha256(b"").hexdigest()


def groups():
    """Path to hash, and what is to become of each duplicate: path to the path that is kept."""
    hashes = {}
    for line in BEFORE.read_text().splitlines():
        digest, path = line[:64], line[66:]
        hashes[path.removeprefix("./")] = digest
    same = defaultdict(list)
    for path, digest in hashes.items():
        if digest != EMPTY:
            same[digest].append(path)
    replaced = {}
    for paths in same.values():
        keep, *others = sorted(paths, key=lambda path: (len(os.fsencode(path)), os.fsencode(path)))
        replaced.update(dict.fromkeys(others, keep))
    return hashes, replaced


class PhotosTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hashes, cls.replaced = groups()

    def test_the_list_of_hashes_is_the_one_that_was_made(self):
        self.assertEqual(hashlib.sha256(BEFORE.read_bytes()).hexdigest(), BEFORE_SHA256)

    def test_tree(self):
        found = {str(path.relative_to(PHOTOS)) for path in PHOTOS.rglob("*") if path.is_symlink() or path.is_file()}
        self.assertEqual(found, {*self.hashes, "favourite", "lost"})
        self.assertEqual((os.readlink(PHOTOS / "favourite"), os.readlink(PHOTOS / "lost")), ("2023", "nowhere"))
        for path, digest in self.hashes.items():
            place = PHOTOS / path
            self.assertEqual(hashlib.sha256(place.read_bytes()).hexdigest(), digest, path)
            self.assertEqual(place.is_symlink(), path in self.replaced, path)

    def test_links_are_relative_and_lead_to_what_is_kept(self):
        for path, keep in self.replaced.items():
            self.assertFalse(os.path.isabs(os.readlink(PHOTOS / path)), path)
            self.assertEqual((PHOTOS / path).resolve(), PHOTOS / keep, path)

    def test_table(self):
        rows = sorted(self.replaced.items(), key=lambda row: os.fsencode(row[0]))
        text = "".join(f"{path}\t{keep}\n" for path, keep in rows)
        self.assertEqual(Path("/app/duplicates.tsv").read_text(), text)


if __name__ == "__main__":
    unittest.main()
