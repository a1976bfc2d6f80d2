# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about one launch: the commands of a container, a batch script or a shell script.

Rules:

1. nothing was run: what may run counts, whether its branch is taken or not;
2. a value that a variable, an argument of the script, a substitution or a template decides is
   ``templated``, and the reason names it; a variable that the same file sets once is resolved;
3. no value of a secret and no whole command line is in here;
4. a text that was not read to its end makes every collection ``error``.
"""

from enum import StrEnum
from typing import Annotated

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    ONLY_FAULTS,
    Body,
    Place,
    Reading,
    SecretKind,
    Section,
)


class Part(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of what one command does."""

    program: str
    """The program's name without its folder; the variable's for what an assignment does."""

    @property
    def label(self) -> str:
        """The program."""
        return self.program


class Rendezvous(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A launcher, a process group that a command line asks for, or an etcd server."""

    backend: Reading[str]
    """``c10d``, ``etcd``, ``etcd-v2``, ``static`` (torchrun's default, on several nodes),
    ``tcp`` and ``env`` (init methods), ``local`` (one node); otherwise as written."""
    protocol: Reading[str]
    """Of etcd: ``https`` with a client certificate, else ``http``; ``absent`` for others."""


class Scope(StrEnum):
    """The reach of an address."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    PUBLIC = "public"
    ANY = "any"
    """Every address of the machine."""
    NAME = "name"
    """A host name, which says nothing."""


class Address(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The place where ranks meet: an option or a variable that says so."""

    name: str
    """The option or the variable."""
    scope: Reading[Scope]

    @property
    def label(self) -> str:
        """The option or variable."""
        return self.name


class Tool(StrEnum):
    """A service that a command starts."""

    TENSORBOARD = "tensorboard"
    JUPYTER = "jupyter"
    RAY = "ray"
    DEBUGGER = "debugger"
    SSHD = "sshd"


class Service(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A service that a command starts."""

    tool: Tool
    scope: Reading[Scope]
    """Where it listens; the tool's default where the command does not say."""
    secret: Reading[bool]
    """Of Jupyter: False when token and password are turned off; ``absent`` for the others."""
    config: Reading[str]
    """Of sshd: its configuration file; ``absent`` when it uses the system's, and for the others."""


class Kind(StrEnum):
    """The thing that is fetched."""

    PACKAGE = "package"
    """A package from an index or a URL (pip, conda, apt, npm)."""
    REPOSITORY = "repository"
    SCRIPT = "script"
    """What goes from the network to an interpreter."""
    DATA = "data"


class Fetch(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that a command takes from the network."""

    what: Kind
    pinned: Reading[bool]
    """Whether hashes say what it must be, or nothing leaves the machine (``--require-hashes``,
    ``--no-index``); ``absent`` for data, and where an image is built."""
    verified: Reading[bool]
    """Whether it comes by TLS whose certificates are checked, or from no URL at all."""


class Revision(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, dataset or code of a hub, by its revision."""

    name: str
    """The option that names it; ``download`` for a command without one."""
    commit: Reading[bool]
    """Whether that is a whole commit hash."""

    @property
    def label(self) -> str:
        """Program and option."""
        return f"{self.program} {self.name}"


class Switch(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option or variable that turns something on."""

    name: str
    enabled: Reading[bool]

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class HostKeys(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The word of a command, a variable or an ssh_config about the keys of hosts."""

    checked: Reading[bool]


class WrittenSecret(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A secret that stands in a command or an assignment. Never its value."""

    name: str
    """The variable or option; else the program."""
    kind: SecretKind
    length: int

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class Variable(Part, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable as one of the launch's processes will see it, at the place that decides it.

    What may set any variable (a file that is not there, ``--export=$X``) is one without a known
    name. What a login shell, an image elsewhere or a machine brings is none: it is judged there.
    """

    name: Reading[str]
    value: Reading[str]
    """``denied`` for a secret, which is not kept."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name.value or "any variable"


class Form(StrEnum):
    """The place that a launch is written in."""

    CONTAINER = "container"
    BATCH = "batch"
    """A script with a scheduler's directives."""
    SCRIPT = "script"
    BUILD = "build"
    """The commands that build an image."""


class Launch(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The commands of one container or script."""

    name: str
    form: Form
    rendezvous: Section[Annotated[tuple[Rendezvous, ...], MAY_BE_EMPTY]]
    addresses: Section[Annotated[tuple[Address, ...], MAY_BE_EMPTY]]
    services: Section[Annotated[tuple[Service, ...], MAY_BE_EMPTY]]
    fetches: Section[Annotated[tuple[Fetch, ...], MAY_BE_EMPTY]]
    revisions: Section[Annotated[tuple[Revision, ...], MAY_BE_EMPTY]]
    remote_code: Section[Annotated[tuple[Switch, ...], MAY_BE_EMPTY]]
    """``trust_remote_code`` in whatever spelling."""
    mpi_as_root: Section[Annotated[tuple[Switch, ...], MAY_BE_EMPTY]]
    """``--allow-run-as-root`` and OMPI_ALLOW_RUN_AS_ROOT."""
    host_keys: Section[Annotated[tuple[HostKeys, ...], MAY_BE_EMPTY]]
    secrets: Section[Annotated[tuple[WrittenSecret, ...], ONLY_FAULTS]]
    environment: Section[Annotated[tuple[Variable, ...], MAY_BE_EMPTY]]
    """Of variables that checks ask about."""

    @property
    def label(self) -> str:
        """The container or script."""
        return self.name


class LaunchFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="launch"):
    """A facts document about one launch."""

    file: str
    """The file and the part of it: ``run.sh``, ``jobs/a.yaml#2/Worker/trainer``,
    ``jobs/a.yaml#1/run.sh`` for a key of a ConfigMap, ``run.sh#job.sbatch`` for a here-document."""
    launch: Launch

    @property
    def asset(self) -> str:
        """The launch in its file."""
        return f"launch:{self.file}"

    @property
    def title(self) -> str:
        """The part of the file: ``Worker/trainer``, ``run.sh`` of a ConfigMap."""
        return self.file.partition("#")[2].partition("/")[2]
