"""`environment.options` of `type: ssh`."""

from __future__ import annotations

from typing import Any, Literal

from rollout.core.types import Struct

Mode = Literal["namespace", "host", "docker", "apptainer"]


class SshOptions(Struct, frozen=True, kw_only=True):
    """`environment.options` of `type: ssh`. Local paths are relative to the job file; paths of the hosts are absolute."""

    hosts: list[str] = []
    """Each `[user@]host[:port]`, or a name of the ssh configuration; `slots=4` after it overrides `slots`."""
    host_file: str | None = None
    """More hosts, one a line as in `hosts`; `#` starts a comment."""
    slots: int | None = None
    """Trials that one host runs at once; unset is no limit but the job's, and in `mode: host` always one."""
    mode: Mode = "namespace"
    """`namespace`: a sandbox as `type: local` has it; needs python3 (3.9 or newer) on the host, and a kernel that allows it.
    `host`: the bare machine, leased to one trial at a time; needs a shell, tar and coreutils. `docker`, `apptainer`: a container
    of the host's engine."""
    identity_file: str | None = None
    """A private key. Unset: the configuration's, the agent's, then those in ~/.ssh."""
    agent: bool = True
    """Use the keys of a running ssh agent."""
    password_file: str | None = None
    """A file that holds the password and that nobody else may read."""
    config: str | None = "~/.ssh/config"
    """ssh configuration, where it exists: HostName, User, Port, IdentityFile, ProxyJump, ProxyCommand, HostKeyAlias,
    UserKnownHostsFile. null is none."""
    known_hosts: str = "~/.ssh/known_hosts"
    """Host keys that are known."""
    unknown_hosts: Literal["refuse", "accept_new"] = "refuse"
    """`refuse`: a host whose key is not in `known_hosts` is refused. `accept_new`: its key is added there. A key that differs
    from the known one is refused in any case."""
    connect_timeout_sec: float = 20.0
    """For each connection to be made."""
    lost_after_sec: float = 90.0
    """A host that says nothing for so long is lost; shorter cuts of the network are sat out. A host that has heard nothing from
    us for twice as long ends its trials by itself."""
    folder: str = "~/.cache/rollout/ssh"
    """Rollout's folder on the hosts: layers, and what sandboxes write."""
    python: str = "python3"
    """The Python of the hosts."""
    rootfs: str | None = None
    """`mode: namespace`: a root file system on the hosts, as a folder or a tar archive, instead of their own folders."""
    share: list[str] = []
    """`mode: namespace`: further folders of the hosts that sandboxes see at the same path, copy-on-write."""
    mask: list[str] = []
    """`mode: namespace`: files and folders of the hosts that sandboxes must not see."""
    network: Literal["none", "host"] | None = None
    """`mode: namespace`: as for `type: local`."""
    pids: int | None = 4096
    """`mode: namespace` and `mode: host`: processes and threads of one trial; null is no limit."""
    tmpfs: bool = False
    """`mode: namespace`: keep what a sandbox writes in memory, limited to the task's storage."""
    image: str | None = None
    """`mode: apptainer`: a SIF file or a sandbox folder of the hosts, in which every task runs; nothing is built or sent."""
    engine: dict[str, Any] = {}
    """`mode: docker` and `mode: apptainer`: options of that environment."""

    def __post_init__(self) -> None:
        if not self.hosts and self.host_file is None:
            raise ValueError("`hosts` or `host_file` must name at least one host")
        for path in [*self.share, *self.mask, *(path for path in (self.rootfs, self.image) if path)]:
            if not path.startswith(("/", "~")) or "\0" in path:
                raise ValueError(f"{path!r} must be an absolute path of the hosts, or start with ~")
        if self.slots is not None and self.slots < 1:
            raise ValueError("`slots` must be at least 1")
        if self.pids is not None and self.pids < 1:
            raise ValueError("`pids` must be at least 1")
        for name in ("connect_timeout_sec", "lost_after_sec"):
            if getattr(self, name) <= 0:
                raise ValueError(f"`{name}` must be above 0")
        if not self.folder.startswith(("/", "~/")):
            raise ValueError(f"`folder`: {self.folder!r} must be an absolute path of the hosts, or start with ~/")
        if self.image is not None and self.mode != "apptainer":
            raise ValueError("`image` goes with `mode: apptainer`")
        if self.engine and self.mode not in ("docker", "apptainer"):
            raise ValueError("`engine` goes with `mode: docker` and `mode: apptainer`")
