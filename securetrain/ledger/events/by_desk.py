# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of a fleet's desk: tokens, what machines have proven, and who signed it."""

from securetrain.core.vocabulary import Boundary
from securetrain.ledger.events.base import Allowed, Observed, PeerRefused, WriterRole, event

_COORDINATOR = WriterRole.COORDINATOR


@event("fleet-token-made", Boundary.NODE, _COORDINATOR)
class FleetTokenMade(Observed, frozen=True, kw_only=True):
    """A machine may prove itself with a one-time token."""

    token: str
    """Id of its key."""
    group: str
    ends: str
    replaces: str
    """``yes`` when the node may have new hardware or another image group; else ``no``."""


@event("machine-proven", Boundary.NODE, _COORDINATOR)
class MachineProven(Allowed, frozen=True, kw_only=True):
    """A machine has proven itself and waits to be signed; its token is spent."""

    token: str
    group: str
    ek: str
    """Name of the endorsement key, hex."""
    evidence: str
    """SHA-256 of what it said."""
    address: str


@event("machine-refused", Boundary.NODE, _COORDINATOR)
class MachineRefused(PeerRefused, frozen=True, kw_only=True):
    """A machine with a token has proven nothing."""


@event("machine-enrolled", Boundary.NODE, _COORDINATOR)
class MachineEnrolled(Allowed, frozen=True, kw_only=True):
    """The proof of a machine was signed into the reference values."""

    token: str
    group: str
    ek: str
    version: int
    """Of the edition."""
    by: str
    """``person``, or the rule."""


@event("machine-rejected", Boundary.NODE, _COORDINATOR)
class MachineRejected(Observed, frozen=True, kw_only=True):
    """A person threw away a machine's tokens and what it had proven."""
