# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about shared storage: what one file says that servers hand out, to whom and how.

A document is about one file: an exports file, the saved answer of ``showmount -e``,
``exportfs -v``, ``lctl get_param`` or ``mmauth show``, or a file of Ansible variables.
"""

from enum import StrEnum
from typing import Annotated

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    Body,
    Fact,
    Location,
    Reading,
    Section,
)


class Filesystem(StrEnum):
    """The product that hands it out."""

    NFS = "nfs"
    LUSTRE = "lustre"
    GPFS = "gpfs"


class Export(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One directory or filesystem, for one client or group of clients.

    Where security flavors or several blocks differ, each reading is that of the weakest.
    """

    filesystem: Filesystem
    path: str
    client: str
    """As it is written: a host, network, netgroup or pattern; ``*`` is everybody."""
    root_squash: Reading[bool]
    """Whether root of the client is somebody without rights on the server."""
    encrypted: Reading[bool]
    """Whether what is read and written is never in clear between them."""
    options: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """As they are written."""
    place: Location

    @property
    def label(self) -> str:
        """Path and client."""
        return f"{self.path} for {self.client}"

    @property
    def location(self) -> Location:
        """The line that grants it."""
        return self.place


class Storage(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that the file grants."""

    exports: Section[Annotated[tuple[Export, ...], MAY_BE_EMPTY]]


class StorageFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="storage"):
    """A facts document about one file of shared storage."""

    path: str
    """The file, as it was given; with the host's name before it when that host was looked at."""
    nfs: Storage

    @property
    def asset(self) -> str:
        """The file."""
        return f"storage:{self.path}"
