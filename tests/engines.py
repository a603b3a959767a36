"""Docker engines, SSH servers and registries that tests start for themselves, and may kill. As root."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

IMAGE = "rollout-test/busybox:latest"
"""A small image with a shell and the usual tools."""

_START_SEC = 60.0
_TOOLS = "sh cat ls mkdir rm cp mv chmod chown id echo sleep kill ps tar head tail touch test true false env pwd stat sync wc"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _bridge() -> str:
    """A bridge for test engines. `--bridge=none` would remove docker0, and with it the network of the machine's own engine."""
    if not Path("/sys/class/net/rollout-test0").exists():
        subprocess.run(["ip", "link", "add", "rollout-test0", "type", "bridge"], check=True)
        subprocess.run(["ip", "addr", "add", "10.213.0.1/24", "dev", "rollout-test0"], check=True)
        subprocess.run(["ip", "link", "set", "rollout-test0", "up"], check=True)
    return "rollout-test0"


class Dockerd:
    """An engine of its own: socket, data, bridge. Nothing routes its containers' packets anywhere."""

    def __init__(self, folder: Path, *arguments: str, disk: str | None = None) -> None:
        """`disk`: the size of a disk of its own, as mount takes it ("64m")."""
        self.folder = folder
        self._disk = disk
        self.socket = folder / "d.sock"
        self.url = f"unix://{self.socket}"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        data = self.folder / "data"
        if self._disk is not None and not data.is_mount():
            data.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._disk}", "disk", data], check=True)
        (self.folder / "pid").unlink(missing_ok=True)
        flags = [f"--bridge={_bridge()}", "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false"]
        places = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", *places, *flags, "-H", self.url, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SEC
        while subprocess.run(["docker", "-H", self.url, "version"], capture_output=True, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd does not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def restart(self) -> None:
        """As an upgrade of the engine does it: its containers end, and it comes back with what it stored."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)
        self.start()

    def kill(self) -> None:
        """As if the machine went away: nothing of it goes on."""
        assert self._process is not None
        containerd = int((self.folder / "exec/containerd/containerd.pid").read_text())
        self._process.kill()
        self._process.wait()
        os.kill(containerd, signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-f", f"containerd-shim.*{self.folder}/exec"], check=False)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait(60)
        for mount in reversed(Path("/proc/mounts").read_text().splitlines()):
            place = mount.split()[1]
            if place.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        done = subprocess.run(["docker", "-H", self.url, *arguments], input=stdin, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def load_image(self) -> None:
        if not self.docker("images", "-q", IMAGE):
            self.docker("import", "-", IMAGE, stdin=busybox_image())


def busybox_image() -> bytes:
    """A root file system, as `docker import` takes it."""
    program = shutil.which("busybox")
    assert program is not None
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(program, "bin/busybox")
        for tool in [*_TOOLS.split(), "find", "grep", "sed", "mktemp", "dirname", "basename", "printf", "date", "ln", "bash"]:
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox" if tool != "bash" else "sh"
            archive.addfile(link)
        for folder in ("tmp", "root", "etc", "app"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for name, text in {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n"}.items():
            entry = tarfile.TarInfo(f"etc/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


@contextlib.contextmanager
def engine(*arguments: str, disk: str | None = None) -> Iterator[Dockerd]:
    """An engine with the small image, for a `with` block. In a folder of its own: a socket's path must be short."""
    started = Dockerd(Path(tempfile.mkdtemp(prefix="rollout-dockerd-")), *arguments, disk=disk)
    try:
        started.start()
        started.load_image()
        yield started
    finally:
        started.stop()


def certificates(folder: Path) -> Path:
    """An authority, an engine at 127.0.0.1 and a client: `ca.pem`, `server.pem`, `server-key.pem`, `cert.pem`, `key.pem`."""
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(*new, "-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca.pem")
    for name, key, extra in (
        ("server", "server-key.pem", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"),
        ("cert", "key.pem", "extendedKeyUsage=clientAuth"),
    ):
        (folder / "ext").write_text(f"basicConstraints=CA:FALSE\n{extra}\n")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", "csr.pem")
        sign = ("x509", "-req", "-days", "2", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "ext")
        openssl(*sign, "-in", "csr.pem", "-out", f"{name}.pem")
    return folder


class Sshd:
    """An SSH server on 127.0.0.1 for root, with a key and a configuration that `ssh -F` takes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        self.config = folder / "config"
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {(folder / 'host.pub').read_text()}")
        self.config.write_text(
            f"Host engines\n HostName 127.0.0.1\n Port {self.port}\n User root\n IdentityFile {folder}/user\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known\n StrictHostKeyChecking yes\n"
        )
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"PidFile {folder}/pid\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n"
            "PermitRootLogin yes\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd") or "/usr/sbin/sshd"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([program, "-D", "-e", "-f", self.folder / "sshd_config"], stderr=log)
        deadline = time.monotonic() + _START_SEC
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise RuntimeError(f"sshd does not start: {(self.folder / 'log').read_text()}")

    def stop(self) -> None:
        """The server and every connection."""
        process, self._process = self._process, None
        if process is not None:
            for child in _children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            process.kill()
            process.wait()


def _children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(below for child in found for below in _children(child))]


@contextlib.contextmanager
def registry(folder: Path, *, password: str | None = None) -> Iterator[str]:
    """An image registry; its `host:port`. With a password it knows only the user `reader`."""
    folder.mkdir()
    port = free_port()
    auth = ""
    if password is not None:
        (folder / "users").write_text(_htpasswd("reader", password))
        auth = f"auth:\n  htpasswd:\n    realm: tests\n    path: {folder}/users\n"
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {folder}/data\nhttp:\n  addr: 127.0.0.1:{port}\n{auth}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SEC
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"the registry does not start: {(folder / 'log').read_text()}")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _htpasswd(user: str, password: str) -> str:
    salt = "$2b$04$abcdefghijklmnopqrstuu"  # Debian's perl knows bcrypt, which registries want
    argv = ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", password, salt]
    return f"{user}:{subprocess.run(argv, check=True, capture_output=True, text=True).stdout}\n"
