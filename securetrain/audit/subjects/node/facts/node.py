# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about one node: a section for each collector.

Roles of paths that have one on every machine are in `ALWAYS_THERE`: none of such a role is missing
evidence.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    ONLY_FAULTS,
    Body,
    Fact,
    FileFact,
    Location,
    Mode,
    Observed,
    Reading,
    Section,
    SeenFile,
    decode_body,
)
from securetrain.audit.subjects.node.facts.access import Identities, Machine, Rendezvous, Sudo
from securetrain.audit.subjects.node.facts.artifacts import (
    Artifacts,
    IndexSource,
    NetworkMount,
    RecordSample,
    Requirements,
)
from securetrain.audit.subjects.node.facts.network import Firewall, Gloo, Rdma, Route

SysctlName: TypeAlias = Literal[
    "fs.protected_fifos",
    "fs.protected_hardlinks",
    "fs.protected_regular",
    "fs.protected_symlinks",
    "fs.suid_dumpable",
    "kernel.dmesg_restrict",
    "kernel.kptr_restrict",
    "kernel.unprivileged_bpf_disabled",
    "kernel.yama.ptrace_scope",
    "net.ipv4.conf.all.accept_redirects",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_forward",
]


class Interface(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One network interface and its own settings (None: the kernel did not say)."""

    name: str
    kind: str = ""
    """The kernel's name for its kind, as in ``bridge``; empty for hardware."""
    up: bool | None
    loopback: bool | None
    rp_filter: int | None
    forwarding: int | None = None
    accept_redirects: int | None = None
    ipv6: bool | None
    """Whether IPv6 runs on it; False when the kernel has no IPv6."""
    accept_ra: int | None
    forwarding6: int | None

    @property
    def label(self) -> str:
        """The interface's name."""
        return self.name


class Mount(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The mount that is on top at `target`."""

    target: str
    fstype: str
    options: Annotated[tuple[str, ...], MAY_BE_EMPTY]

    @property
    def label(self) -> str:
        """The mount point."""
        return self.target


class Program(StrEnum):
    """Programs that checks ask about, by what they are for."""

    TENSORBOARD = "tensorboard"
    JUPYTER = "jupyter"
    RAY = "ray"
    MLFLOW = "mlflow"
    AIM = "aim"
    CLEARML = "clearml"
    WANDB = "wandb"
    DEBUGPY = "debugpy"
    GDBSERVER = "gdbserver"
    DYNOLOG = "dynolog"
    DCGM = "dcgm"
    EXPORTER = "exporter"
    OTHER = "other"


class Process(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The process behind a listener; never its arguments."""

    pid: int
    name: str
    loads_torch: bool | None
    """Whether libtorch is mapped; None when its map cannot be read."""
    program: Program | None = None
    """None when its arguments cannot be read."""
    guarded: bool | None = None
    """Whether it asks clients for a password or token, as far as its settings say."""
    tensorpipe: bool | None = None
    """Whether torch's RPC runs in it; None when its threads cannot be listed."""


class Scope(StrEnum):
    """The reach of a listener."""

    LOOPBACK = "loopback"
    ADDRESS = "address"
    ANY = "any"


class Listener(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A socket that hears from anybody: listening TCP, or UDP without a peer."""

    protocol: Literal["tcp", "udp"] = "tcp"
    address: str
    port: int
    scope: Scope
    uid: int
    process: Process | None
    """None when the owner's descriptors cannot be read."""
    kernel: bool | None = False
    """Whether no process shows it, as with a tunnel of the kernel; None when not all were seen."""

    @property
    def is_out_of_sight(self) -> bool:
        """Return whether a process has it that does not show: any program, of any user."""
        return self.process is None and self.kernel is not True

    @property
    def label(self) -> str:
        """Address and port, and the protocol when it is not TCP."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}" + ("" if self.protocol == "tcp" else f"/{self.protocol}")


class EnvKind(StrEnum):
    """The reason why a variable was recorded."""

    FABRIC = "fabric"
    TORCH = "torch"
    LOADER = "loader"
    SECRET = "secret"  # noqa: S105 - a kind of variable


class EnvVariable(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable of the job's environment; a secret has a name and no value."""

    name: str
    kind: EnvKind
    value: str | None

    @property
    def label(self) -> str:
        """The variable's name."""
        return self.name


class ConfVariable(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One assignment or option in a configuration file."""

    name: str
    value: str
    line: int = 0
    """Its line, from 1; 0 when nobody counted."""


class ConfFile(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A configuration file, reduced to the options that checks ask about."""

    options: Annotated[tuple[ConfVariable, ...], MAY_BE_EMPTY] | None = None


class SshdOption(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option that sshd would use: the first of each name in its block."""

    name: str
    value: str
    match: str = ""
    """The criteria of the Match block that it stands in; empty for everybody."""
    path: str
    line: int

    @property
    def location(self) -> Location:
        """The file and the line."""
        return Location(path=self.path, line=self.line)


class SshdConfig(Observed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The configuration of sshd, its includes read where they stand."""

    path: str
    options: Annotated[tuple[SshdOption, ...], MAY_BE_EMPTY] | None = None


class PathRole(StrEnum):
    """The reason why a path was looked at."""

    INDUCTOR_CACHE = "inductor-cache"
    TRITON_CACHE = "triton-cache"
    TORCH_EXTENSIONS = "torch-extensions"
    CHECKPOINTS = "checkpoints"
    DATASET_CACHE = "dataset-cache"
    KERNEL_CACHE = "kernel-cache"
    TORCH_HUB = "torch-hub"
    NCCL_CONF = "nccl-conf"
    NCCL_PLUGIN = "nccl-plugin"
    EXECUTABLES = "executables"
    LIBRARIES = "libraries"
    PRELOAD = "preload"
    PYTHON_MODULES = "python-modules"
    NCCL_SEARCHED = "nccl-searched"
    FLIGHT_RECORDER = "flight-recorder"
    CONTROL_SOCKET = "control-socket"
    MPS = "mps"
    FILE_STORE = "file-store"


SEARCHED: Final = {
    "PATH": PathRole.EXECUTABLES,
    "LD_LIBRARY_PATH": PathRole.LIBRARIES,
    "LD_PRELOAD": PathRole.PRELOAD,
    "LD_AUDIT": PathRole.PRELOAD,
    "PYTHONPATH": PathRole.PYTHON_MODULES,
}
"""Variables that list what the loader and Python search."""
ALWAYS_THERE: Final = frozenset(
    {
        PathRole.INDUCTOR_CACHE,
        PathRole.TRITON_CACHE,
        PathRole.TORCH_EXTENSIONS,
        PathRole.DATASET_CACHE,
        PathRole.KERNEL_CACHE,
        PathRole.TORCH_HUB,
        PathRole.NCCL_CONF,
        PathRole.EXECUTABLES,
        PathRole.PRELOAD,
        PathRole.FLIGHT_RECORDER,
    }
)
"""Roles that have a path on every machine: a default of torch, NCCL or the loader."""


class Link(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One component on the way to a path, in the order in which the kernel walks it."""

    path: str
    kind: Literal["directory", "file", "link", "other"]
    uid: int
    mode: Mode
    group_uids: Annotated[tuple[int, ...], MAY_BE_EMPTY] | None = ()
    """The members of its group, when the group may write; None when they are not known."""


class PathFact(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A path that the job will use, with everything on the way to it that exists."""

    role: PathRole
    origin: str
    """Which variable or default names it."""
    chain: tuple[Link, ...] = ()


class SharedSegment(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A shared-memory file of NCCL, CUDA or torch."""

    name: str
    uid: int
    mode: Mode

    @property
    def label(self) -> str:
        """Its path."""
        return f"/dev/shm/{self.name}"  # noqa: S108 - where shared memory is


class Package(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An installed Python distribution."""

    version: str


class EntryPoint(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry point that torchrun loads into its agent."""

    name: str
    value: str
    distribution: str

    @property
    def label(self) -> str:
        """Name and distribution."""
        return f"{self.distribution}:{self.name}"


class KeyForm(StrEnum):
    """The form of a file of credentials that may be a private key."""

    NONE = "none"
    ENCRYPTED = "encrypted"
    CLEAR = "clear"


class SecretFile(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file where credentials usually are: never its content."""

    uid: int | None = None
    mode: Mode | None = None
    network_filesystem: bool | None = None
    key: KeyForm | None = None
    """Whether it is a private key, and one that a passphrase protects; None when it is unread."""


class Kernel(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The running kernel."""

    cmdline: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Words of the command line that switch protections, one for each comma."""
    lockdown: Reading[str]
    lsm: Reading[tuple[str, ...]]


class StartupFile(FileFact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that every start of this Python executes or reads."""

    claimed_by: str
    """The distribution whose RECORD lists it, ``system`` for the OS's package; empty: nobody."""


class Python(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The interpreter that the job would use."""

    startup_files: Annotated[tuple[StartupFile, ...], ONLY_FAULTS]


class Hardware(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices that decide which checks apply."""

    nvidia_driver: Reading[str]
    infiniband: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    tpm: Reading[str]
    tee: Reading[str]
    """The guest device of a confidential machine (SEV-SNP, TDX)."""
    container_toolkit: Reading[str]
    """The version of what gives containers their GPUs."""
    cloud: Reading[str]
    """The cloud that the firmware names."""
    bmc: Reading[str]
    """The place that shows a management processor."""


class Context(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The surroundings that decide how much a failure weighs here."""

    container: Reading[str]
    """The kind of container that this was seen from inside; ``none`` on the machine itself."""
    private_tmp: Reading[bool]
    """Whether /tmp is this user's or this container's own."""
    logins: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Accounts beside root and the job's user that can log in."""
    services: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Users beside root and the job's that processes run as now."""


class Node(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node: a section for each collector."""

    sysctls: Section[dict[SysctlName, Reading[int]]]
    interfaces: Section[tuple[Interface, ...]]
    mounts: Section[tuple[Mount, ...]]
    firewall: Section[Firewall]
    routes: Section[Annotated[tuple[Route, ...], MAY_BE_EMPTY]]
    listeners: Section[Annotated[tuple[Listener, ...], MAY_BE_EMPTY]]
    env: Section[Annotated[tuple[EnvVariable, ...], MAY_BE_EMPTY]]
    nccl_conf: Section[tuple[ConfFile, ...]]
    gloo: Section[Gloo]
    paths: Section[tuple[PathFact, ...]]
    shm: Section[Annotated[tuple[SharedSegment, ...], MAY_BE_EMPTY]]
    packages: Section[dict[str, Package]]
    entry_points: Section[Annotated[tuple[EntryPoint, ...], MAY_BE_EMPTY]]
    secrets: Section[tuple[SecretFile, ...]]
    ssh: Section[tuple[ConfFile, ...]]
    sshd: Section[SshdConfig]
    sudo: Section[Sudo]
    identities: Section[Identities]
    machine: Section[Machine]
    rendezvous: Section[Rendezvous]
    rdma: Section[Rdma]
    kernel: Section[Kernel]
    python: Section[Python]
    hardware: Section[Hardware]
    context: Section[Context]
    artifacts: Section[Artifacts]
    indexes: Section[tuple[IndexSource, ...]]
    requirements: Section[Annotated[tuple[Requirements, ...], MAY_BE_EMPTY]]
    records: Section[RecordSample]
    versions: Section[str]
    network_mounts: Section[Annotated[tuple[NetworkMount, ...], MAY_BE_EMPTY]]


class Job(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The user that the job would run as."""

    uid: int
    gid: int
    user: str
    home: str


class NodeFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="node"):
    """A facts document about one node."""

    job: Job
    node: Node

    @property
    def asset(self) -> str:
        """The node, by its name."""
        return f"node:{self.collected.hostname}"


def decode_facts(data: bytes, where: str) -> NodeFacts:
    """Parse a facts document about a node.

    Raises:
        AuditError: ST-AUDT-002 when it is malformed, or a section's value contradicts its outcome.
    """
    return decode_body(data, {"node": NodeFacts}, where)
