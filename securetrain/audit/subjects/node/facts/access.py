# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Types of facts about who may become whom, and about keys of nodes and authorities."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    ONLY_FAULTS,
    Fact,
    FileFact,
    Location,
    Mode,
    Reading,
)


class Reach(StrEnum):
    """The reach of the commands of a rule of sudo."""

    ALL = "all"
    SHELL = "shell"
    """One of them starts any other, or writes any file."""
    NAMED = "named"


class SudoRule(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule of sudo that asks the job's user for no password."""

    who: str
    """As it is written: a user, a group, an alias."""
    applies: bool | None
    """Whether the job's user is one of them; None when that depends on a directory service."""
    reach: Reach
    path: str
    line: int

    @property
    def label(self) -> str:
        """Those whom it is about."""
        return self.who

    @property
    def location(self) -> Location:
        """The line."""
        return Location(path=self.path, line=self.line)


class Certificate(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A certificate, without its names."""

    begins: datetime
    ends: datetime
    key: str
    """Kind and size, as in ``rsa-2048``; ``ed25519``."""
    digest: str
    """The hash that its signature is over; empty when the algorithm has its own."""


class KeyFile(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file with a private key."""

    uid: int
    mode: Mode


class Identity(FileFact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A folder with a node's identity, or with an authority that makes such."""

    role: Literal["node", "authority"]
    key: Reading[KeyFile]
    certificate: Reading[Certificate]
    anchor: Reading[Certificate]
    """The authority's certificate that the node trusts; absent in an authority's own folder."""
    fits: bool | None
    """Whether the authority signed the certificate; None when one of them was not read."""


Sudo = Annotated[tuple[SudoRule, ...], ONLY_FAULTS]
Identities = Annotated[tuple[Identity, ...], MAY_BE_EMPTY]


class HostKey(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A public host key of SSH."""

    fingerprint: str


class HardwareAddress(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The address of a network card."""

    address: str


class Machine(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The marks that no other machine has."""

    machine_id: Reading[str]
    """A digest of it: machine-id(5) asks not to tell it."""
    host_keys: Reading[Annotated[tuple[HostKey, ...], MAY_BE_EMPTY]]
    addresses: Reading[Annotated[tuple[HardwareAddress, ...], MAY_BE_EMPTY]]
    boot_id: Reading[str]
    """Of the running kernel, which no other machine has at any time."""


class Rendezvous(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The place that ranks would look for."""

    master: Reading[str]
    addresses: Reading[str]
    """Those that the name has here without a name service; on loopback with this node's name."""
