"""Users: of a sandbox, as its own /etc/passwd and /etc/group have them, and the further ids that an ordinary user may map."""

from __future__ import annotations

import os


class Account:
    def __init__(self, uid: int, gid: int, home: str, groups: list[int]) -> None:
        self.uid, self.gid, self.home, self.groups = uid, gid, home, groups

    def become(self) -> None:
        if (self.uid, self.gid) == (0, 0) and not self.groups:
            return
        try:
            os.setgroups(self.groups)
        except PermissionError:
            pass  # a namespace with one id has no groups to give
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


def find_account(user: str | None) -> Account | None:
    """Look up `name`, `uid`, `name:group` or `uid:gid`; None when there is no such name.

    The sandbox's files are read as text: the C library's look-up would load code from them into process 1.
    """
    name, _, group = (user or "0").partition(":")
    uid, gid, home, known = None, 0, "/", name
    for fields in _records("/etc/passwd", 7):
        if fields[0] == name or (name.isdigit() and fields[2] == name):
            known, uid, gid, home = fields[0], int(fields[2]), int(fields[3]), fields[5]
            break
    if uid is None:
        if not name.isdigit():
            return None
        uid = int(name)
        home = "/root" if uid == 0 else "/"
    groups = [int(fields[2]) for fields in _records("/etc/group", 4) if known in fields[3].split(",")] if uid != 0 else []
    if group:
        found = [int(fields[2]) for fields in _records("/etc/group", 4) if fields[0] == group]
        if not found and not group.isdigit():
            return None
        gid = found[0] if found else int(group)
    return Account(uid, gid, home or "/", groups)


def _records(path: str, size: int) -> list[list[str]]:
    try:
        with open(path, "rb") as file:
            lines = file.read(4 * 1024 * 1024).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    records = [line.split(":") for line in lines]
    return [fields for fields in records if len(fields) >= size and fields[2].isdigit() and (size < 7 or fields[3].isdigit())]


def subordinate_ranges(user: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The further user and group ids that an ordinary user may map (first, count), or None."""
    return subordinate_ids(user) if user != 0 else None


def subordinate_ids(user: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The user and group ids that the machine gives to a user, who may be root (first, count), or None."""
    users, groups = _subordinate("/etc/subuid", user), _subordinate("/etc/subgid", user)
    if users is None or groups is None or not _which("newuidmap") or not _which("newgidmap"):
        return None
    return users, groups


def _subordinate(path: str, user: int) -> tuple[int, int] | None:
    """First id and count that this user may map, from /etc/subuid or /etc/subgid."""
    names = {str(user)}
    try:
        with open("/etc/passwd", errors="replace") as file:
            names.update(line.split(":")[0] for line in file if line.split(":")[2:3] == [str(user)])
        with open(path, errors="replace") as file:
            for line in file:
                fields = line.strip().split(":")
                if len(fields) == 3 and fields[0] in names and fields[2].isdigit() and int(fields[2]) >= 1000:
                    return int(fields[1]), int(fields[2])
    except OSError:
        pass  # no such file: no such ids
    return None


def _which(program: str) -> bool:
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in os.environ.get("PATH", "").split(":"))
