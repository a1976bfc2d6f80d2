# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about one Slurm cluster, from its configuration files.

Rules:

1. a setting is what Slurm would use: the last one of its name, includes read where they stand, and
   Slurm's own default where nothing sets it. A default has the place of the file that lacks it;
2. what stands before a file that could not be read may be changed by it, and is not known;
3. owners and modes count on the machine itself. Those of a copied directory say nothing, and are
   an error that says so;
4. keys and passwords appear as owners, modes, sizes and classes.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    Body,
    Fact,
    Location,
    Mode,
    Place,
    Reading,
    Section,
    SeenFile,
)
from securetrain.audit.subjects.node.facts.node import Link

Words: TypeAlias = Annotated[tuple[str, ...], MAY_BE_EMPTY]
"""The words of a setting that is a list, in lower case."""


class SlurmFile(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that the configuration consists of."""

    at: Location | None = None
    """Where another file names it; None for one that Slurm looks for by itself."""

    @property
    def location(self) -> Location:
        """The place where it is named, and else the file."""
        return self.at or Location(path=self.path)


class PasswordClass(StrEnum):
    """The strength of a password, as far as it can be told without saying the password."""

    NONE = "none"
    """There is none."""
    DEFAULT = "default"
    """It stands in documentation, or is the account's name."""
    SHORT = "short"
    SCRIPT = "script"
    """A script says it."""
    OTHER = "other"


class SlurmPathRole(StrEnum):
    """The reason why a path was looked at."""

    CONFIGURATION = "configuration"
    """Whoever writes it decides what Slurm's daemons do as root."""
    ROOT_PROGRAM = "root-program"
    """Started by slurmd, as root."""
    CONTROLLER_PROGRAM = "controller-program"
    """Started by slurmctld, as SlurmUser."""
    JOB_PROGRAM = "job-program"
    """Started as the job's user, whoever that is."""
    STATE = "state"
    """slurmctld's own records."""
    SPOOL = "spool"
    """slurmd's own records and the jobs' scripts."""
    DATABASE_CONFIGURATION = "database-configuration"
    """It holds the password of the database."""


class SlurmPath(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A path that Slurm's daemons read, write or execute, and everything on the way to it."""

    role: SlurmPathRole
    origin: str
    """The setting or the file that names it."""
    at: Location | None = None
    chain: tuple[Link, ...] = ()

    @property
    def location(self) -> Location:
        """The place where it is named, and else the path."""
        return self.at or Location(path=self.path)


class KeyRole(StrEnum):
    """The use of a key of the whole cluster."""

    MUNGE = "munge"
    SLURM = "slurm"
    TOKENS = "tokens"
    """Signs the tokens of auth/jwt."""


class SlurmKey(SeenFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key that every daemon of the cluster shares: never its bytes."""

    role: KeyRole
    owner: Reading[str]
    """The user's name, or the number of one without a name."""
    mode: Reading[Mode]
    size: Reading[int]
    """Bytes."""
    varied: Reading[bool]
    """Whether its bytes differ from each other."""
    mark: Reading[str]
    """HMAC of its bytes under a number that the collection forgets: equal for equal keys of one
    collection, and good for nothing else; ``absent`` for a key that the cluster does not use."""


class SpankPlugin(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A plug-in of plugstack.conf."""

    name: str
    """Its file without folder and ending."""
    path: str
    arguments: Annotated[tuple[str, ...], MAY_BE_EMPTY]

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class ContainerMount(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something of the host that every container of a job gets."""

    source: str
    target: str

    @property
    def label(self) -> str:
        """The path on the host."""
        return self.source


class Partition(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A partition, with the settings of ``PartitionName=DEFAULT`` that it takes over."""

    name: str
    whole_nodes: Reading[bool]
    """Whether jobs of two users never share a node."""
    root_jobs_refused: Reading[bool]

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class PrivateDirs(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The directories that the plug-in makes private, for some nodes or for all."""

    nodes: str
    """The nodes' names as they are written; empty for all."""
    enabled: Reading[bool]
    dirs: Reading[Words]

    @property
    def label(self) -> str:
        """The nodes."""
        return self.nodes or "all nodes"


class GpuDevices(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line of gres.conf about GPUs."""

    nodes: str
    named: Reading[bool]
    """Whether it says which device files they are, itself or by AutoDetect."""

    @property
    def label(self) -> str:
        """The nodes."""
        return self.nodes or "all nodes"


class PamRule(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One account rule of sshd, its includes opened."""

    control: str
    module: str

    @property
    def label(self) -> str:
        """The module."""
        return self.module


class RestDaemon(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One unit of slurmrestd."""

    user: Reading[str]
    """``root`` when nothing says otherwise."""
    network: Reading[bool]
    """Whether it listens on TCP beyond loopback."""

    @property
    def label(self) -> str:
        """The unit's file."""
        return self.at.path.rpartition("/")[2]


class Builder(StrEnum):
    """The maker of a build."""

    SLURM = "slurm"
    """Slurm's own release: its number says which faults are mended."""
    DISTRIBUTION = "distribution"
    """Faults may be mended without another number."""
    UNKNOWN = "unknown"


class SlurmVersion(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The release that runs."""

    number: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]
    builder: Builder


class Slurm(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One cluster's configuration; names are Slurm's own, in another spelling."""

    files: Section[tuple[SlurmFile, ...]]
    version: Reading[SlurmVersion]
    # slurm.conf
    auth_type: Reading[str]
    auth_alt_types: Reading[Words]
    cred_type: Reading[str]
    tls_type: Reading[str]
    slurm_user: Reading[str]
    disable_root_jobs: Reading[bool]
    private_data: Reading[Words]
    proctrack_type: Reading[str]
    task_plugin: Reading[Words]
    namespace_type: Reading[str]
    """Or ``spank/NAME``, a plug-in that may do the same; empty for neither."""
    prolog_flags: Reading[Words]
    gres_types: Reading[Words]
    accounting_storage_type: Reading[str]
    accounting_storage_enforce: Reading[Words]
    propagate_resource_limits: Reading[Words]
    propagate_resource_limits_except: Reading[Words]
    metrics_type: Reading[str]
    metrics_auth_users: Reading[Words]
    metrics_parameters: Reading[Words]
    partitions: Section[tuple[Partition, ...]]
    # cgroup.conf
    constrain_cores: Reading[bool]
    constrain_devices: Reading[bool]
    constrain_ram_space: Reading[bool]
    # slurmdbd.conf
    dbd_private_data: Reading[Words]
    storage_pass: Reading[PasswordClass]
    # other files
    gpu_devices: Section[Annotated[tuple[GpuDevices, ...], MAY_BE_EMPTY]]
    private_dirs: Section[Annotated[tuple[PrivateDirs, ...], MAY_BE_EMPTY]]
    spank: Section[Annotated[tuple[SpankPlugin, ...], MAY_BE_EMPTY]]
    container_mounts: Section[Annotated[tuple[ContainerMount, ...], MAY_BE_EMPTY]]
    login_rules: Section[Annotated[tuple[PamRule, ...], MAY_BE_EMPTY]]
    rest: Section[Annotated[tuple[RestDaemon, ...], MAY_BE_EMPTY]]
    keys: Section[tuple[SlurmKey, ...]]
    paths: Section[tuple[SlurmPath, ...]]
    slurm_uid: Reading[int]


class SlurmFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="slurm"):
    """A facts document about one Slurm cluster."""

    name: str
    """ClusterName, or the directory where that is not known."""
    directory: str
    slurm: Slurm

    @property
    def asset(self) -> str:
        """The cluster."""
        return f"slurm:{self.name}"
