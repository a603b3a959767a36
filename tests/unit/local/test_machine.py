"""What the machine offers: control groups of both generations, refusals in plain words, accounts, messages."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from rollout.builtin.local import LocalOptions
from rollout.core.sandbox.diagnosis import explain
from rollout.core.sandbox.inside import accounts, cgroups, channel, trees
from rollout.core.sandbox.limits import unenforced
from rollout.core.types import Resources


class UnifiedTree:
    """A stand-in for a control group file system of version 2: folders and files as the kernel names them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.self_cgroup = folder / "self"
        self.mountinfo = folder / "mountinfo"
        self.mountinfo.write_text(f"31 23 0:28 / {self.root} rw,relatime - cgroup2 cgroup2 rw\n")

    def group(self, path: str, controllers: str, subtree: str) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(subtree)
        return folder

    def find(self, own: str) -> dict[str, list[str]]:
        self.self_cgroup.write_text(f"0::{own}\n")
        return cgroups.find(str(self.self_cgroup), str(self.mountinfo))


def test_a_delegated_parent_of_version_2_is_used(tmp_path: Path) -> None:
    tree = UnifiedTree(tmp_path)
    parent = tree.group("user.slice/app.slice", "cpu memory pids", "cpu memory pids")
    tree.group("user.slice/app.slice/terminal.scope", "cpu memory pids", "")
    assert tree.find("/user.slice/app.slice/terminal.scope") == {name: ["v2", str(parent)] for name in ("memory", "cpu", "pids")}


def test_only_the_controllers_that_are_handed_on_are_used(tmp_path: Path) -> None:
    tree = UnifiedTree(tmp_path)
    parent = tree.group("app.slice", "memory pids", "memory pids")
    tree.group("app.slice/x.scope", "memory pids", "")
    assert tree.find("/app.slice/x.scope") == {"memory": ["v2", str(parent)], "pids": ["v2", str(parent)]}


def test_without_controllers_there_are_no_limits(tmp_path: Path) -> None:
    tree = UnifiedTree(tmp_path)
    tree.group("a", "", "")
    assert tree.find("/a") == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_group_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    tree = UnifiedTree(tmp_path)
    parent = tree.group("app.slice", "memory", "memory")
    tree.group("app.slice/x.scope", "memory", "")
    parent.chmod(0o555)
    assert tree.find("/app.slice/x.scope") == {}


@pytest.mark.parametrize(
    ("generation", "controller", "expected"),
    [
        ("v2", "memory", {"memory.max": "100", "memory.swap.max": "0", "memory.oom.group": "0"}),
        ("v2", "cpu", {"cpu.max": "150000 100000"}),
        ("v2", "pids", {"pids.max": "7"}),
        ("v1", "memory", {"memory.limit_in_bytes": "100", "memory.memsw.limit_in_bytes": "100"}),
        ("v1", "cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}),
        ("v1", "pids", {"pids.max": "7"}),
    ],
)
def test_limits_are_written_as_each_generation_wants_them(generation: str, controller: str, expected: dict[str, str]) -> None:
    assert cgroups.settings(generation, controller, {"memory": 100, "cpu": 1.5, "pids": 7}) == expected
    assert cgroups.settings(generation, controller, {}) == {}


def test_what_is_not_enforced_is_named() -> None:
    everything = Resources(cpus=1, memory_bytes=1, storage_bytes=1)
    groups = {name: ["v2", "/x"] for name in ("memory", "cpu", "pids")}
    line = unenforced(everything, 10, {}, tmpfs=False)
    assert line is not None
    assert all(name in line for name in ("memory", "cpus", "pids", "storage"))
    assert unenforced(everything, 10, groups, tmpfs=True) is None
    assert unenforced(Resources(), None, {}, tmpfs=False) is None


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ({"/proc/sys/kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ({"/proc/sys/user/max_user_namespaces": "0"}, "user.max_user_namespaces=15000"),
        ({"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, "kernel.apparmor_restrict_unprivileged_userns=0"),
        ({"/proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, "systempaths=unconfined"),
        ({"/.dockerenv": ""}, "systempaths=unconfined"),
        ({}, "another `environment.type`"),
    ],
)
def test_a_refusal_says_what_to_do(files: dict[str, str], advice: str) -> None:
    text = explain({"error": "unshare: Operation not permitted", "errno": errno.EPERM}, files.get)
    assert advice in text
    assert "\n" not in text


def test_a_kernel_without_overlays_is_told() -> None:
    assert "no overlay file system" in explain({"error": "mount overlay", "errno": errno.ENODEV}, {}.get)


@pytest.mark.parametrize(
    "options",
    [{"share": ["relative"]}, {"mask": ["a\0b"]}, {"rootfs": "x"}, {"pids": 0}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|at least"):
        LocalOptions(**options)


@pytest.mark.parametrize(
    ("user", "uid", "gid"), [("root", 0, 0), (None, 0, 0), ("0", 0, 0), ("4294:7", 4294, 7), ("root:5", 0, 5)]
)
def test_accounts_are_found(user: str | None, uid: int, gid: int) -> None:
    account = accounts.find_account(user)
    assert account is not None
    assert (account.uid, account.gid) == (uid, gid)


@pytest.mark.parametrize("user", ["no-such-user", "root:no-such-group", "-1", "1x", " "])
def test_accounts_that_are_not_there_are_none(user: str) -> None:
    assert accounts.find_account(user) is None


@pytest.mark.parametrize("size", [0, 10, 47_000, 48_000, 49_000, 5_000_000])
def test_messages_of_any_size_arrive_with_their_descriptors(size: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    with ours, theirs:
        message = {"text": "x" * size, "odd": "\udc80\0é"}
        channel.send(ours, message, [write])
        os.close(write)
        received = channel.receive(theirs)
        assert received is not None
        assert received[0] == message
        os.write(received[1][0], b"through")
        os.close(received[1][0])
        assert os.read(read, 100) == b"through"
        ours.close()
        assert channel.receive(theirs) is None
    os.close(read)


def test_a_tree_is_removed_whatever_its_modes(tmp_path: Path) -> None:
    target = tmp_path / "tree"
    (target / "a" / "b").mkdir(parents=True)
    (target / "a" / "b" / "file").touch()
    (target / "link").symlink_to(tmp_path)
    for path in (target / "a" / "b", target / "a", target):
        path.chmod(0)
    trees.remove_tree(str(target))
    trees.remove_tree(str(target))
    assert list(tmp_path.iterdir()) == []
