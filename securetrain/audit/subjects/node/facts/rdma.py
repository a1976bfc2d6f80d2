# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Types of facts about RDMA: who may use the devices, and which networks they are part of."""

from typing import Annotated, Literal

from securetrain.audit.facts import MAY_BE_EMPTY, Fact, Mode, Reading


class VerbsDevice(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device file of RDMA."""

    path: str
    uid: int
    mode: Mode

    @property
    def label(self) -> str:
        """The file."""
        return self.path


class RdmaPort(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A port of an adapter that is up."""

    name: str
    """Adapter and number, as in ``mlx5_0/1``."""
    layer: Literal["InfiniBand", "Ethernet"]
    full_default: bool | None
    """Whether it is a full member of the partition that everybody is in; None when unread."""
    interfaces: Annotated[tuple[str, ...], MAY_BE_EMPTY] | None
    """The network devices beside it; None when they are not known."""

    @property
    def label(self) -> str:
        """Adapter and number."""
        return self.name


class Rdma(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything about RDMA."""

    devices: Reading[Annotated[tuple[VerbsDevice, ...], MAY_BE_EMPTY]]
    ports: Reading[Annotated[tuple[RdmaPort, ...], MAY_BE_EMPTY]]
    storage: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Addresses of file servers that are mounted."""
