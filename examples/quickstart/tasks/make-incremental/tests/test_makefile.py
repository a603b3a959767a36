"""Builds with /app/site/Makefile in fresh copies of the site; render.sh and index.sh note each call in $RENDER_LOG."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path


class MakefileTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.site = Path(scratch.name) / "site"
        self.log = Path(scratch.name) / "calls"
        shutil.copytree("/tests/site", self.site)
        for script in self.site.glob("*.sh"):
            script.chmod(0o755)
        shutil.copy("/app/site/Makefile", self.site / "Makefile")
        self.age_sources(100)

    def age_sources(self, seconds):
        old = time.time() - seconds
        for path in self.site.rglob("*"):
            if path.is_file() and "public" not in path.parts:
                os.utime(path, (old, old))

    def make(self, *args):
        """The calls of render.sh and index.sh, sorted, and make's exit code."""
        self.log.write_text("")
        env = {"PATH": os.environ["PATH"], "RENDER_LOG": str(self.log)}
        done = subprocess.run(["make", *args], cwd=self.site, env=env, capture_output=True, text=True, timeout=30)
        self.output = done.stdout + done.stderr
        return sorted(self.log.read_text().split("\n"))[1:], done.returncode

    def change(self, path, text=None):
        """Make everything built look older than a change made now."""
        old = time.time() - 50
        for built in [self.site / "public", *(self.site / "public").rglob("*")]:
            os.utime(built, (old, old))
        target = self.site / path
        target.write_text(target.read_text() if text is None else text)

    def pages(self):
        return sorted(path.name for path in (self.site / "public").glob("*.html"))

    def test_clean_checkout(self):
        calls, code = self.make("-j8")
        self.assertEqual(code, 0, self.output)
        self.assertEqual(calls, ["index", "render pages/about.txt", "render pages/contact.txt", "render pages/home.txt"])
        self.assertEqual(self.pages(), ["about.html", "contact.html", "home.html", "index.html"])
        self.assertIn('<a href="about.html">About us</a>', (self.site / "public/index.html").read_text())
        self.assertIn("<p>We bake bread.</p>", (self.site / "public/about.html").read_text())

    def test_second_make_does_nothing(self):
        self.make()
        calls, code = self.make()
        self.assertEqual((calls, code), ([], 0))
        self.assertEqual(subprocess.run(["make", "-q"], cwd=self.site, capture_output=True).returncode, 0)

    def test_one_page_changed(self):
        self.make()
        self.change("pages/about.txt", "All about us\n\nStill bread.\n")
        calls, code = self.make()
        self.assertEqual((calls, code), (["index", "render pages/about.txt"], 0), self.output)
        self.assertIn("All about us", (self.site / "public/index.html").read_text())

    def test_shared_files_changed(self):
        for path in ("layout/header.html", "layout/footer.html", "render.sh"):
            self.make()
            self.change(path)
            calls, code = self.make()
            self.assertEqual([call for call in calls if call != "index"], [f"render pages/{n}.txt" for n in ("about", "contact", "home")], path)
            self.age_sources(100)

    def test_page_added(self):
        self.make()
        self.change("pages/home.txt", "Home\n\nWelcome.\n")
        self.make()
        (self.site / "pages/news.txt").write_text("News\n\nNone.\n")
        calls, code = self.make()
        self.assertEqual((calls, code), (["index", "render pages/news.txt"], 0), self.output)
        self.assertIn('<a href="news.html">News</a>', (self.site / "public/index.html").read_text())

    def test_page_removed(self):
        self.make()
        (self.site / "pages/about.txt").unlink()
        _, code = self.make()
        self.assertEqual(code, 0, self.output)
        self.assertEqual(self.pages(), ["contact.html", "home.html", "index.html"])
        self.assertNotIn("about.html", (self.site / "public/index.html").read_text())

    def test_failing_recipe(self):
        (self.site / "pages/broken.txt").write_text("\nno title\n")
        _, code = self.make()
        self.assertNotEqual(code, 0)
        self.assertFalse((self.site / "public/broken.html").exists())

    def test_clean(self):
        (self.site / "clean").write_text("")
        self.assertEqual(self.make("clean")[1], 0, self.output)
        self.make()
        self.assertEqual(self.make("clean")[1], 0, self.output)
        self.assertFalse((self.site / "public").exists())


if __name__ == "__main__":
    unittest.main()
