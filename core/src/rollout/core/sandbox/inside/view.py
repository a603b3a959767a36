"""What a sandbox sees of the machine: which folders, copy-on-write, with what left out.

`survey` looks once per backend and writes two kinds of folders below `base`: `@root`, the skeleton of the root folder, and for
each folder shown one that lies between the machine's and the trial's own, holding what is different in every sandbox: whiteouts
over what is hidden, a password file without passwords, folders that an ordinary user may write to. `mounts` builds roots from it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from typing import Any

from . import kernel

# The folders of a Linux system that programs need. Everything else at the top of the machine is hidden.
SHOWN = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "srv", "nix", "gnu")
OWN = {"app": 0o755, "logs": 0o755, "tmp": 0o1777, "home": 0o755, "root": 0o700, "run": 0o755, "run/lock": 0o1777, "mnt": 0o755}
OWN.update({"media": 0o755, "dev": 0o755, "proc": 0o555, "sys": 0o555, "boot": 0o755})

# Secrets of a machine in folders that are shown, and the stores of other sandboxes.
HIDDEN = (
    "/etc/shadow-", "/etc/gshadow-", "/etc/passwd-", "/etc/group-", "/etc/security/opasswd", "/etc/ssl/private",
    "/etc/krb5.keytab", "/etc/letsencrypt", "/etc/wireguard", "/etc/openvpn", "/etc/wpa_supplicant",
    "/etc/NetworkManager/system-connections", "/etc/kubernetes", "/etc/rancher", "/etc/docker/key.json", "/var/backups",
    "/var/spool/cron", "/var/mail", "/var/spool/mail", "/var/log/journal", "/var/lib/docker", "/var/lib/containers",
    "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/lxc", "/var/lib/lxd", "/var/lib/machines",
    "/var/lib/cloud", "/var/lib/sss", "/var/lib/NetworkManager",
)  # fmt: skip
EMPTIED = ("/var/tmp",)

# Mounts beneath a shown folder that belong to the system's disk layout. Others (of containers, FUSE, tmpfs) are left out.
_DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "nfs", "nfs4", "jfs", "reiserfs"})
_WRITABLE_FOR_USER = (
    "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/libexec", "usr/include", "usr/share", "usr/src", "usr/local",
    "usr/local/bin", "usr/local/sbin", "usr/local/lib", "usr/local/share", "usr/local/include", "usr/local/etc",
    "usr/local/src", "usr/local/man", "usr/share/man", "usr/lib/python3", "usr/lib/python3/dist-packages", "etc", "opt",
    "srv", "var", "var/lib", "var/log", "var/cache", "var/spool", "var/opt", "var/local",
)  # fmt: skip
# What umount says of a path that is gone, or on which nothing is mounted (or what is, is locked).
_NOT_MOUNTED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL})
_NOBODY = 65534  # what ids without a mapping look like
_MAX_COPIED_BYTES = 16 * 1024 * 1024


def survey(base: str, *, share: Iterable[str], hide: Iterable[str], rootfs: str | None, writable: bool) -> dict[str, Any]:
    """Decide what is shown and write `base`. `writable`: make folders writable that an ordinary user cannot write to."""
    root = os.path.join(base, "@root")
    os.makedirs(root)
    os.chmod(root, 0o755)
    for name, mode in OWN.items():
        _folder(os.path.join(root, name), mode)
    if rootfs is not None:
        etc = os.path.join(root, "etc")
        _folder(etc, 0o755)
        for path in ("/etc/resolv.conf", "/etc/hosts"):
            if os.path.isfile(path):
                _copy_file(os.path.realpath(path), root + path)
        return {"overlays": [["/", [root, rootfs]]]}
    plan = _Plan(base, {point: kind for point, (_, kind) in _mount_points().items()})
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.name in SHOWN:
            plan.show(entry.path)
    for path in share:
        plan.show(os.path.realpath(path), shared=True)
    for path in EMPTIED:
        plan.empty(path, 0o1777)
    for path in [*HIDDEN, *_key_files(), *_home_folders(plan), *hide]:
        plan.hide(path)
    plan.replace_passwords()
    plan.copy_linked("/etc/resolv.conf", "/etc/hosts", "/etc/localtime")
    if writable:
        for path in _WRITABLE_FOR_USER:
            plan.make_writable("/" + path)
    overlays = [[path, [plan.between(path), lower]] for path, lower in sorted(plan.lowers.items())]
    return {"overlays": [["/", [root]], *overlays]}


class _Plan:
    def __init__(self, base: str, mounts: dict[str, str]) -> None:
        self.base = base
        self.mounts = mounts
        self.lowers: dict[str, str] = {}
        self.emptied: list[str] = []

    def between(self, path: str) -> str:
        folder = os.path.join(self.base, layer_name(path))
        if not os.path.isdir(folder):
            os.mkdir(folder)
            copy_ownership(self.lowers[path], folder)
        return folder

    def show(self, path: str, *, shared: bool = False) -> None:
        """Show a folder, in several pieces when something is mounted beneath it.

        The kernel refuses to a user namespace an overlay that would uncover what a mount hides.
        """
        target = os.path.join(self.base, "@root") + path
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            _parents(self.base + "/@root", path)
            os.symlink(os.readlink(path), target)
            return
        if not stat.S_ISDIR(status.st_mode):
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_COPIED_BYTES:
                _copy_file(path, target)
            return
        _parents(self.base + "/@root", path)
        if not os.path.isdir(target):
            os.mkdir(target)
            copy_ownership(path, target)
        kind = self.mounts.get(path)
        if (kind is not None and kind not in _DISKS and not shared) or _is_empty(path):
            return
        beneath = [point for point in self.mounts if point.startswith(path + "/")]
        if not beneath:
            self.lowers[path] = path
        elif path == "/etc":  # mostly files, some of them mounted by a container engine
            copy = os.path.join(self.base, "@etc")
            _copy_tree(path, copy)
            self.lowers[path] = copy
        else:
            for entry in list(os.scandir(path)):
                try:
                    self.show(entry.path)
                except FileNotFoundError:
                    if os.path.lexists(entry.path):
                        raise  # not for want of the entry itself: others may remove that meanwhile

    def cover(self, path: str) -> str | None:
        """The shown folder that `path` belongs to."""
        while path not in self.lowers:
            if path == "/":
                return None
            path = os.path.dirname(path)
        return path

    def hide(self, path: str) -> None:
        path = os.path.realpath(path)
        for shown in [shown for shown in self.lowers if shown == path or shown.startswith(path + "/")]:
            del self.lowers[shown]
        if any(within(path, folder) for folder in self.emptied):
            return
        where = self._place(path)
        if where is not None and not os.path.lexists(where):
            os.mknod(where, stat.S_IFCHR | 0o000, os.makedev(0, 0))

    def empty(self, path: str, mode: int) -> None:
        """Show a folder as empty."""
        for shown in [shown for shown in self.lowers if within(shown, path)]:
            del self.lowers[shown]
        where = self._place(path) if os.path.isdir(path) and not os.path.islink(path) else None
        if where is None or os.path.lexists(where):
            return
        _folder(where, mode)
        try:
            os.setxattr(where, b"user.overlay.opaque", b"y")
        except OSError:  # a file system without such attributes: leave it out altogether
            os.rmdir(where)
            os.mknod(where, stat.S_IFCHR | 0o000, os.makedev(0, 0))
        self.emptied.append(path)

    def replace_passwords(self) -> None:
        """Every account is locked; tools that edit these files still find them."""
        for path, names, rest in (
            ("/etc/shadow", "/etc/passwd", ":*:19000:0:99999:7:::"),
            ("/etc/gshadow", "/etc/group", ":*::"),
        ):
            where = self._place(path) if os.path.exists(path) else None
            if where is None:
                continue
            lines = [line.split(b":", 1)[0] + rest.encode() + b"\n" for line in _lines(names)]
            _write(where, b"".join(lines), 0o640)
            copy_ownership(path, where)

    def copy_linked(self, *paths: str) -> None:
        """Replace a link that leads out of what is shown by the file it means."""
        for path in paths:
            real = os.path.realpath(path)
            where = self._place(path) if real != path and self.cover(real) is None and os.path.isfile(real) else None
            if where is not None and not os.path.lexists(where):
                _copy_file(real, where)

    def make_writable(self, path: str) -> None:
        if path in self.lowers:
            self.between(path)
        where = self._place(path) if os.path.isdir(path) and not os.path.islink(path) else None
        if where is not None and not os.path.lexists(where):
            _folder(where, 0o755)

    def _place(self, path: str) -> str | None:
        """Where, in the folder between, `path` is to be changed; its first missing parent if it has one."""
        shown = self.cover(path)
        if shown is None or shown == path:
            return None
        where, lower = self.between(shown), self.lowers[shown]
        parts = path[len(shown) :].strip("/").split("/")
        for part in parts[:-1]:
            where, lower = os.path.join(where, part), os.path.join(lower, part)
            if not os.path.isdir(lower):
                return None if os.path.lexists(lower) else where
            if not os.path.lexists(where):
                os.mkdir(where)
                copy_ownership(lower, where)
            elif not os.path.isdir(where):
                return None  # a parent is hidden already
        return os.path.join(where, parts[-1])


def layer_name(path: str) -> str:
    """The folder, within a layer, of what is shown at `path`: `/var/lib` is `var%lib`."""
    return path.strip("/").replace("%", "%25").replace("/", "%") or "@root"


def detach_foreign_mounts() -> None:
    """With the rights of the machine's root, in this mount namespace only: uncover shown folders, so that each is one piece.

    Wants a namespace without propagation, so that mounts can only become fewer. They do: where anybody removes the folder, our
    mount on it goes too. And some can be reached only when what hides them is off. Hence rounds, while they achieve anything.

    Raises:
        OSError: a mount that is there cannot be taken off.
    """
    while True:
        achieved, refused = False, []
        for point, (number, kind) in sorted(_mount_points().items(), reverse=True):
            if not _is_foreign(point, kind):
                continue
            try:
                kernel.unmount(point)
                achieved = True
            except OSError as error:
                if error.errno not in _NOT_MOUNTED:
                    raise
                refused.append((point, number, error))
        if not achieved:
            break
    for point, number, refusal in refused:
        if _reached_mount(point) == number:
            raise refusal


def _is_foreign(point: str, kind: str) -> bool:
    top = point.split("/")[1]
    return top in SHOWN and "/" in point[1:] and (kind not in _DISKS or any(within(point, hidden) for hidden in HIDDEN))


def _reached_mount(path: str) -> int | None:
    """The number of the mount that `path` leads to."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return next(int(line.split()[1]) for line in _lines(f"/proc/self/fdinfo/{descriptor}") if line.startswith(b"mnt_id:"))
    finally:
        os.close(descriptor)


def _mount_points() -> dict[str, tuple[int, str]]:
    """Every mount point of this namespace, with the number and the type of what is mounted last on it."""
    points = {}
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields = line.split(b" ")
            kind = fields[fields.index(b"-") + 1].decode()
            points[os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))] = int(fields[0]), kind
    return points


def _home_folders(plan: _Plan) -> list[str]:
    """Home folders of people, and of root, that lie in a shown folder."""
    found = []
    for line in _lines("/etc/passwd"):
        fields = os.fsdecode(line).split(":")
        if len(fields) < 6 or not fields[2].isdigit() or not (fields[2] == "0" or int(fields[2]) >= 1000):
            continue
        home = os.path.realpath(fields[5]) if fields[5].startswith("/") else "/"
        if (
            home.count("/") > 1
            and home not in plan.lowers
            and not home.startswith(("/usr/bin", "/usr/sbin", "/usr/lib", "/var/empty"))
        ):
            found.append(home)
    return found


def _key_files() -> list[str]:
    try:
        return [entry.path for entry in os.scandir("/etc/ssh") if entry.name.endswith("_key")]
    except OSError:
        return []


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _is_empty(path: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return [line.rstrip(b"\n") for line in file if b":" in line]
    except OSError:
        return []


def _folder(path: str, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)


def _parents(base: str, path: str) -> None:
    os.makedirs(os.path.dirname(base + path), exist_ok=True)


def _write(path: str, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _copy_file(source: str, target: str) -> None:
    """Copy if it may be read; what may not be read is not shown."""
    try:
        with open(source, "rb") as file:
            data = file.read(_MAX_COPIED_BYTES)
    except OSError:
        return
    _write(target, data, stat.S_IMODE(os.stat(source).st_mode))
    copy_ownership(source, target)


def _copy_tree(source: str, target: str) -> None:
    os.mkdir(target)
    copy_ownership(source, target)
    try:
        entries = list(os.scandir(source))
    except OSError:
        return
    for entry in entries:
        copy = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            _copy_tree(entry.path, copy)
        elif entry.is_file():
            _copy_file(entry.path, copy)


def copy_ownership(source: str, target: str) -> None:
    """Mode always, owner where this user may give it."""
    status, made = os.stat(source), os.stat(target)
    if _NOBODY not in (status.st_uid, status.st_gid) and (status.st_uid, status.st_gid) != (made.st_uid, made.st_gid):
        try:
            os.chown(target, status.st_uid, status.st_gid)
        except OSError:
            pass  # an ordinary user keeps it: nothing is lost but the name of the owner
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(made.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))
