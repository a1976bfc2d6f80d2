# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts: what was seen on one node, as data. Nothing here judges.

Rules:

1. a document has one schema name and forbids unknown fields;
2. each section says how its collection ended (`Outcome`) and why; only an ``ok`` section has a
   value;
3. inside a section, a record that reads one thing has an outcome of its own: ``absent`` is a
   definite observation (the file does not exist), ``denied``, ``error`` and ``timeout`` are not;
4. None means "not known"; it never means "no";
5. a collection is empty only where its type says so (`MAY_BE_EMPTY`, and `ALWAYS_THERE` for the
   roles of paths): elsewhere its collector always finds something, and nothing is missing evidence;
6. secrets appear as names, owners and modes, never as values.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AuditError, UsageError

SCHEMA: Final = "securetrain.facts/v2"
FACTS_LIMIT: Final = 4 << 20
"""The largest facts document that is read, in bytes; one node makes about 50 KB."""

T = TypeVar("T")

MAY_BE_EMPTY: Final = Meta(extra={"may_be_empty": True})
"""On the type of a collection: nothing in it is an answer (rule 5)."""

Mode: TypeAlias = Annotated[str, Meta(pattern=r"^[0-7]{4}\Z")]
"""Permission bits with set-id and sticky, four octal digits."""


class Outcome(StrEnum):
    """The outcome of reading something."""

    OK = "ok"
    DENIED = "denied"
    ABSENT = "absent"
    ERROR = "error"
    TIMEOUT = "timeout"


class Location(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The place that a fact was read from; lines begin with 1, and 0 is not known."""

    path: str
    line: int = 0


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of every record."""

    @property
    def label(self) -> str:
        """The name of this record in a finding's subject."""
        return ""

    @property
    def location(self) -> Location | None:
        """The place that it was read from; None when that is the kernel and no file."""
        return None


class Observed(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record that reads one thing and says how that ended."""

    outcome: Outcome
    reason: str = ""


class Section(Observed, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of one collector; `value` is there exactly when the outcome is ``ok``."""

    value: T | None = None


class Reading(Observed, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One value that may be absent or out of reach."""

    value: T | None = None


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


class Process(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The process behind a listener; never its arguments."""

    pid: int
    name: str
    loads_torch: bool | None
    """Whether libtorch is mapped; None when its map cannot be read."""


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


class ConfFile(Observed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A configuration file, reduced to the options that checks ask about."""

    path: str
    options: Annotated[tuple[ConfVariable, ...], MAY_BE_EMPTY] | None = None

    @property
    def label(self) -> str:
        """The file."""
        return self.path

    @property
    def location(self) -> Location:
        """The file."""
        return Location(path=self.path)


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
    NCCL_CONF = "nccl-conf"
    NCCL_PLUGIN = "nccl-plugin"
    EXECUTABLES = "executables"
    LIBRARIES = "libraries"
    PRELOAD = "preload"
    PYTHON_MODULES = "python-modules"


ALWAYS_THERE: Final = frozenset(
    {
        PathRole.INDUCTOR_CACHE,
        PathRole.TRITON_CACHE,
        PathRole.TORCH_EXTENSIONS,
        PathRole.NCCL_CONF,
        PathRole.EXECUTABLES,
        PathRole.PRELOAD,
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


class PathFact(Observed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A path that the job will use, with everything on the way to it that exists."""

    role: PathRole
    path: str
    origin: str
    """Which variable or default names it."""
    chain: tuple[Link, ...] = ()

    @property
    def label(self) -> str:
        """The path."""
        return self.path

    @property
    def location(self) -> Location:
        """The path."""
        return Location(path=self.path)


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


class SecretFile(Observed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file where credentials usually are: never its content."""

    path: str
    uid: int | None = None
    mode: Mode | None = None
    network_filesystem: bool | None = None

    @property
    def label(self) -> str:
        """The file."""
        return self.path

    @property
    def location(self) -> Location:
        """The file."""
        return Location(path=self.path)


class Kernel(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The running kernel."""

    cmdline: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Words of the command line that switch protections, one for each comma."""
    lockdown: Reading[str]
    lsm: Reading[tuple[str, ...]]


class StartupFile(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that every start of this Python executes or reads."""

    path: str
    claimed_by: str
    """The distribution whose RECORD lists it, ``system`` for the OS's package; empty: nobody."""

    @property
    def label(self) -> str:
        """The file."""
        return self.path

    @property
    def location(self) -> Location:
        """The file."""
        return Location(path=self.path)


class Python(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The interpreter that the job would use."""

    startup_files: Annotated[tuple[StartupFile, ...], MAY_BE_EMPTY]


class Hardware(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices that decide which checks apply."""

    nvidia_driver: Reading[str]
    infiniband: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    tpm: Reading[str]
    tee: Reading[str]
    """The guest device of a confidential machine (SEV-SNP, TDX)."""


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
    listeners: Section[Annotated[tuple[Listener, ...], MAY_BE_EMPTY]]
    env: Section[Annotated[tuple[EnvVariable, ...], MAY_BE_EMPTY]]
    nccl_conf: Section[tuple[ConfFile, ...]]
    paths: Section[tuple[PathFact, ...]]
    shm: Section[Annotated[tuple[SharedSegment, ...], MAY_BE_EMPTY]]
    packages: Section[dict[str, Package]]
    entry_points: Section[Annotated[tuple[EntryPoint, ...], MAY_BE_EMPTY]]
    secrets: Section[tuple[SecretFile, ...]]
    ssh: Section[tuple[ConfFile, ...]]
    sshd: Section[SshdConfig]
    kernel: Section[Kernel]
    python: Section[Python]
    hardware: Section[Hardware]
    context: Section[Context]


class Job(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The user that the job would run as."""

    uid: int
    gid: int
    user: str
    home: str


class Collected(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time, place and tool of the collection of facts."""

    at: datetime
    hostname: str
    collector: str
    boot_id: str = ""


class NodeFacts(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A facts document about one node."""

    schema: Literal["securetrain.facts/v2"] = SCHEMA
    collected: Collected
    job: Job
    node: Node

    @property
    def asset(self) -> str:
        """The node, by its name."""
        return f"node:{self.collected.hostname}"

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return canonical.encode(self)


EVIDENCE: Final = tuple(f"node.{field.name}" for field in msgspec.structs.fields(Node))
"""The names that a check may list under ``evidence``."""


def decode_facts(data: bytes, where: str) -> NodeFacts:
    """Parse a facts document.

    Raises:
        AuditError: ST-AUDT-002 when it is malformed, or a section's value contradicts its outcome.
    """
    try:
        facts = canonical.decode(data, NodeFacts, limit=FACTS_LIMIT, where=where)
    except UsageError as error:
        raise _malformed(error.what, where) from error
    for field in msgspec.structs.fields(Node):
        section: Section[object] = getattr(facts.node, field.name)
        if (section.outcome is Outcome.OK) != (section.value is not None):
            raise _malformed(
                f"outcome {section.outcome.value!r} does not fit its value",
                f"{where}: node.{field.name}",
            )
    if facts.collected.at.tzinfo is None:
        raise _malformed("a time without a zone", f"{where}: collected.at")
    return facts


def _malformed(what: str, where: str) -> AuditError:
    return AuditError("ST-AUDT-002", what, where)
