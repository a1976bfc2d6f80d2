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
5. secrets appear as names, owners and modes, never as values.
"""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AuditError, UsageError
from securetrain.core.files import read_file

SCHEMA: Final = "securetrain.facts/v1"
FACTS_LIMIT: Final = 4 << 20
"""The largest facts document that is read, in bytes; one node makes about 50 KB."""

T = TypeVar("T")

Mode: TypeAlias = Annotated[str, Meta(pattern=r"^[0-7]{4}\Z")]
"""Permission bits with set-id and sticky, four octal digits."""


class Outcome(StrEnum):
    """The outcome of reading something."""

    OK = "ok"
    DENIED = "denied"
    ABSENT = "absent"
    ERROR = "error"
    TIMEOUT = "timeout"


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of every record."""

    @property
    def label(self) -> str:
        """The name of this record in a finding's subject."""
        return ""


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
    "net.ipv6.conf.all.disable_ipv6",
]


class Interface(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One network interface and its own settings (None: could not be read)."""

    name: str
    up: bool | None
    loopback: bool | None
    rp_filter: int | None
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
    options: tuple[str, ...]

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
    """A listening TCP socket."""

    address: str
    port: int
    scope: Scope
    uid: int
    process: Process | None
    """None when the owner's descriptors cannot be read."""

    @property
    def label(self) -> str:
        """Address and port."""
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else (f"{self.address}:{self.port}")
        )


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


class ConfFile(Observed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A configuration file, reduced to the options that checks ask about."""

    path: str
    options: tuple[ConfVariable, ...] | None = None

    @property
    def label(self) -> str:
        """The file."""
        return self.path


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


class Link(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One component on the way to a path, in the order in which the kernel walks it."""

    path: str
    kind: Literal["directory", "file", "link", "other"]
    uid: int
    mode: Mode
    group_uids: tuple[int, ...] | None = ()
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


class Kernel(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The running kernel."""

    release: str
    cmdline: Reading[tuple[str, ...]]
    """Security-relevant words of the command line only."""
    lockdown: Reading[str]
    lsm: Reading[tuple[str, ...]]


class Clock(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The services that keep time."""

    source: Reading[str]


class StartupFile(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that every start of this Python executes or reads."""

    path: str
    claimed_by: str
    """The distribution whose RECORD lists it, ``system`` for the OS's package; empty: nobody."""

    @property
    def label(self) -> str:
        """The file."""
        return self.path


class Python(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The interpreter that the job would use."""

    version: str
    startup_files: tuple[StartupFile, ...]


class Hardware(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices that decide which checks apply."""

    nvidia_driver: Reading[str]
    infiniband: Reading[tuple[str, ...]]
    tpm: Reading[str]
    tee: Reading[str]
    """The guest device of a confidential machine (SEV-SNP, TDX)."""


class Node(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node: a section for each collector."""

    sysctls: Section[dict[SysctlName, Reading[int]]]
    interfaces: Section[tuple[Interface, ...]]
    mounts: Section[tuple[Mount, ...]]
    listeners: Section[tuple[Listener, ...]]
    env: Section[tuple[EnvVariable, ...]]
    nccl_conf: Section[tuple[ConfFile, ...]]
    paths: Section[tuple[PathFact, ...]]
    shm: Section[tuple[SharedSegment, ...]]
    packages: Section[dict[str, Package]]
    entry_points: Section[tuple[EntryPoint, ...]]
    secrets: Section[tuple[SecretFile, ...]]
    ssh: Section[tuple[ConfFile, ...]]
    sshd: Section[ConfFile]
    """Global options only, the first of each wins, as sshd itself reads them."""
    kernel: Section[Kernel]
    clock: Section[Clock]
    python: Section[Python]
    hardware: Section[Hardware]


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


class Facts(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A facts document about one node."""

    schema: Literal["securetrain.facts/v1"] = SCHEMA
    collected: Collected
    job: Job
    node: Node

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return canonical.encode(self)


EVIDENCE: Final = tuple(f"node.{field.name}" for field in msgspec.structs.fields(Node))
"""The names that a check may list under ``evidence``."""


def decode_facts(data: bytes, where: str) -> Facts:
    """Parse a facts document.

    Raises:
        AuditError: ST-AUDT-002 when it is malformed, or a section's value contradicts its outcome.
    """
    try:
        facts = canonical.decode(data, Facts, limit=FACTS_LIMIT, where=where)
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


def read_facts(path: Path) -> Facts:
    """Read a facts document from a file.

    Raises:
        AuditError: ST-AUDT-002 when it is malformed.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    return decode_facts(read_file(path, FACTS_LIMIT), str(path))


def _malformed(what: str, where: str) -> AuditError:
    return AuditError("ST-AUDT-002", what, where)
