"""Taking off, in a mount namespace of its own, what others have mounted, while they go on mounting and unmounting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount"), pytest.mark.needs("local")]

PRELUDE = """
import os, sys
from rollout.core.sandbox.inside import kernel, view

here = sys.argv[1]

def private_namespace(more=0):
    kernel.unshare(kernel.CLONE_NEWNS | more)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)

def tmpfs(name):
    os.makedirs(f"{here}/{name}", exist_ok=True)
    kernel.mount("tmpfs", f"{here}/{name}", "tmpfs")

def mounted():
    with open("/proc/self/mountinfo") as lines:
        return [line.split()[4].removeprefix(here + "/") for line in lines if here in line]

private_namespace()  # stands for the machine: nothing of this is seen outside
"""


@pytest.fixture
def shown() -> Iterator[Path]:
    """A folder below one that sandboxes are shown."""
    folder = Path(tempfile.mkdtemp(prefix="rollout-test-", dir="/var/lib"))
    yield folder
    shutil.rmtree(folder)


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PRELUDE + program, str(folder)], capture_output=True, text=True, timeout=120)


# What happens on the machine after the mount table was read and before its first mount is taken off.
MEANWHILE = {
    "a folder goes with its mount": "kernel.unmount(f'{here}/b'); os.rmdir(f'{here}/b')",
    "a folder is made anew": "kernel.unmount(f'{here}/b'); os.rmdir(f'{here}/b'); os.mkdir(f'{here}/b')",
    "a file takes the folder's place": "kernel.unmount(f'{here}/b'); os.rmdir(f'{here}/b'); open(f'{here}/b', 'w').close()",
    "a mount appears": "tmpfs('new')",
}


@pytest.mark.parametrize("event", MEANWHILE)
def test_mounts_that_come_and_go_meanwhile_hurt_nobody(shown: Path, event: str) -> None:
    program = f"""
for name in "abc":
    tmpfs(name)
asked, ask = os.pipe()
told, tell = os.pipe()
if os.fork():
    os.read(asked, 1)
    {MEANWHILE[event]}
    os.write(tell, b"x")
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
private_namespace()
read = view._mount_points
def read_and_wait():
    points = read()
    view._mount_points = read
    os.write(ask, b"x")
    os.read(told, 1)
    return points
view._mount_points = read_and_wait
view.detach_foreign_mounts()
print(mounted())
"""
    done = run(program, shown)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param(["a/in", "a"], id="hidden by a mount above it"),
        pytest.param(["a", "a", "a"], id="stacked"),
        pytest.param(["a", "a/in", "a/in/most"], id="nested"),
        pytest.param(["a b", "c\\nd", "\N{SNOWMAN}"], id="odd names"),
    ],
)
def test_every_foreign_mount_is_taken_off(shown: Path, mounts: list[str]) -> None:
    done = run(f"for name in {mounts!r}:\n    tmpfs(name)\nview.detach_foreign_mounts()\nprint(mounted())\n", shown)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_mount_that_stays_is_an_error(shown: Path) -> None:
    program = """
tmpfs("locked")
private_namespace(kernel.CLONE_NEWUSER)  # what comes from a namespace with more rights is locked
try:
    view.detach_foreign_mounts()
except OSError as error:
    print(error.strerror, error.filename)
"""
    done = run(program, shown)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Invalid argument umount /" in done.stdout
