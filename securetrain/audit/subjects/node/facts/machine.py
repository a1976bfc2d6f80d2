# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Types of facts that are compared between nodes: marks of a machine, and whom it looks for."""

from typing import Annotated

from securetrain.audit.facts import MAY_BE_EMPTY, Fact, Reading


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
