"""What is left in /app/repo. /tests/history.json describes the history as it was, without the key."""

import json
import os
import subprocess
import unittest

REPOSITORY = "/app/repo"
SECRET = b"Nn7hQ2f0w5mVb1sK-e9xTqZr4LpYc8ud"
PATH = "config/deploy.key"
REFS = ["main", "release", "v1.0", "v1.1"]


def git(*args):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    base = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", REPOSITORY]
    return subprocess.run([*base, *args], env=env, capture_output=True, check=True, timeout=30).stdout


def history(ref):
    """Each commit from the newest on: parents, author, date, message, and every file but the key."""
    found = []
    for record in git("log", "--topo-order", "-z", "--format=%H%x1f%P%x1f%an <%ae>%x1f%aI%x1f%B", ref).decode().split("\0"):
        if not record.strip():
            continue
        commit, parents, author, date, message = record.split("\x1f")
        files = [line for line in git("ls-tree", "-r", commit).decode().splitlines() if not line.endswith("\t" + PATH)]
        found.append({"parents": len(parents.split()), "author": author, "date": date, "message": message.strip(), "files": files})
    return found


def without_removal(commits):
    return [commit for commit in commits if commit["message"] != "Remove the deploy key"]


class HistoryTest(unittest.TestCase):
    def test_no_object_holds_the_key(self):
        listing = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").decode().split("\n")
        self.assertGreater(len(listing), 20)
        self.assertNotIn(SECRET, git("cat-file", "--batch-all-objects", "--batch", "--unordered"))

    def test_no_commit_has_the_path(self):
        self.assertEqual(git("log", "--all", "--format=%H", "--", PATH), b"")

    def test_the_rest_of_the_history_is_unchanged(self):
        with open("/tests/history.json") as file:
            expected = json.load(file)
        for ref in REFS:
            self.assertEqual(without_removal(history(ref)), without_removal(expected[ref]), ref)
            self.assertLessEqual(len(history(ref)), len(expected[ref]), ref)

    def test_tags_and_branches(self):
        refs = git("for-each-ref", "--format=%(refname) %(objecttype)", "refs/heads", "refs/tags").decode().split("\n")
        self.assertEqual(
            sorted(filter(None, refs)),
            ["refs/heads/main commit", "refs/heads/release commit", "refs/tags/v1.0 commit", "refs/tags/v1.1 tag"],
        )
        self.assertEqual(git("tag", "-l", "--format=%(contents)", "v1.1").strip(), b"Second release")
        self.assertEqual(git("rev-parse", "v1.1^{commit}"), git("rev-parse", "release"))
        self.assertEqual(git("merge-base", "main", "release"), git("rev-parse", "release"))

    def test_main_is_checked_out_and_clean(self):
        self.assertEqual(git("symbolic-ref", "HEAD").strip(), b"refs/heads/main")
        self.assertEqual(git("status", "--porcelain"), b"")
        with open(f"{REPOSITORY}/app.py") as file:
            self.assertIn("ready for", file.read())


if __name__ == "__main__":
    unittest.main()
