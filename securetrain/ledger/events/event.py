# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The form of a typed ledger event, and its way to the line on disk and back.

Rules:

1. an event has a name, a decision, and the roles that may write it. Its boundary is fixed as
   well, except where the refusal code decides it (`PeerRefused`);
2. its fields are scalars, so that a line stays readable: they are the details of the line, and a
   field that is None is left out;
3. the labels that people see (UNATTESTED, TEST-ONLY, DEGRADED, UNWATCHED) are computed from fields
   with a closed set of values, never from a name, a path or a message;
4. a line is decoded strictly: an unknown name, another decision or boundary than the event has, an
   unknown, missing or mistyped detail make it no event at all.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypedDict, TypeVar

import msgspec

from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import Boundary, Decision, NetworkProfile, degraded_label
from securetrain.ledger.wire import Event

UNWATCHED: Final = "unwatched"
"""The verdict of a checkpoint whose gradients nobody judged."""
WHAT_LIMIT: Final = 500
"""Characters of a refusal's message; what an attacker sends is cut."""


class WriterRole(StrEnum):
    """The roles that write events. A key may hold several; the trust root says which."""

    COORDINATOR = "coordinator"
    """Admits nodes and forms epochs: a process of its own, or a part of a lone launcher."""
    LAUNCHER = "launcher"
    """A node's agent, which starts the workers and keeps the run directory."""
    RANK = "rank"
    """The built-in trainer in a worker."""
    WORKER = "worker"
    """The shim of a worker, under whichever training script."""


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decision at a boundary."""

    NAME: ClassVar[str]
    BOUNDARY: ClassVar[Boundary]
    DECISION: ClassVar[Decision]
    WRITERS: ClassVar[frozenset[WriterRole]]

    subject: str = ""
    """What the decision is about."""

    @property
    def boundary(self) -> Boundary:
        """The boundary at which it was taken."""
        return self.BOUNDARY

    @property
    def labels(self) -> tuple[str, ...]:
        """The honest labels that it carries."""
        return ()


class Allowed(LedgerEvent, frozen=True, kw_only=True):
    """Something was checked and let through."""

    DECISION: ClassVar[Decision] = Decision.ALLOW


class Observed(LedgerEvent, frozen=True, kw_only=True):
    """Something was noticed and not judged."""

    DECISION: ClassVar[Decision] = Decision.OBSERVE


class Refused(LedgerEvent, frozen=True, kw_only=True):
    """Something was refused, with a code."""

    DECISION: ClassVar[Decision] = Decision.REFUSE

    code: str
    what: str = ""
    """The refusal's message."""


class Reason(TypedDict):
    """The fields of an event that come from an error."""

    code: str
    what: str


def because(error: SecureTrainError) -> Reason:
    """Give the fields that every refusal takes from its error."""
    return Reason(code=error.code, what=error.what[:WHAT_LIMIT])


class PlainRefused(Refused, frozen=True, kw_only=True):
    """A refusal with no details but its message."""

    @classmethod
    def of(cls, error: SecureTrainError, subject: str = "") -> Self:
        """Make the event of an error."""
        return cls(subject=subject, **because(error))


class PeerRefused(PlainRefused, frozen=True, kw_only=True):
    """A refusal of a peer: at the boundary of the node when its evidence was not good enough."""

    where: str | None = None
    """The node, register, entry or field that it is about."""

    @classmethod
    def of(cls, error: SecureTrainError, subject: str = "") -> Self:
        """See base class."""
        return cls(subject=subject, where=error.where[:WHAT_LIMIT] or None, **because(error))

    @property
    def boundary(self) -> Boundary:
        """The boundary at which it was taken."""
        return Boundary.NODE if self.code.startswith("ST-ATTS-") else Boundary.RENDEZVOUS


KINDS: Final[dict[tuple[str, Decision], type[LedgerEvent]]] = {}
"""Every event by its name and decision, in the order of `events`."""

_E = TypeVar("_E", bound=LedgerEvent)


def event(name: str, boundary: Boundary, *writers: WriterRole) -> Callable[[type[_E]], type[_E]]:
    """Register an event under its name on disk.

    Args:
        name: A short verb phrase in kebab case. With another decision it is another event.
        boundary: Where the decision is taken.
        writers: The roles that may write it.
    """

    def register(kind: type[_E]) -> type[_E]:
        if (name, kind.DECISION) in KINDS or not writers:
            raise ValueError(f"{name}: taken already, or nobody may write it")
        kind.NAME, kind.BOUNDARY, kind.WRITERS = name, boundary, frozenset(writers)
        KINDS[name, kind.DECISION] = kind
        return kind

    return register


def encode_event(said: LedgerEvent) -> Event:
    """Give the form on disk."""
    details: dict[str, Any] = msgspec.to_builtins(said)
    subject = details.pop("subject")
    code = details.pop("code") if isinstance(said, Refused) else ""
    return Event(
        boundary=said.boundary,
        decision=said.DECISION,
        event=said.NAME,
        subject=subject,
        code=code,
        details={name: value for name, value in details.items() if value is not None},
    )


def decode_event(line: Event) -> LedgerEvent:
    """Read the form on disk.

    Raises:
        ValueError: It is not an event that is known here, exactly as it is defined.
    """
    kind = KINDS.get((line.event, line.decision))
    if kind is None:
        raise ValueError("no event has this name and decision")
    own = {"subject": line.subject}
    if issubclass(kind, Refused):
        own["code"] = line.code
    elif line.code:
        raise ValueError("it has no refusal code")
    if twice := own.keys() & line.details.keys():
        raise ValueError(f"{min(twice)} is no detail of it")
    said = msgspec.convert({**line.details, **own}, kind)
    if said.boundary is not line.boundary:
        raise ValueError(f"the boundary is {said.boundary}, not {line.boundary}")
    return said


def degraded(network: NetworkProfile | None, shown: str) -> tuple[str, ...]:
    """Give the label of a network profile.

    Args:
        network: The profile; None in lines that were written before it was a field.
        shown: What the launcher wrote for people, which begins with the profile then.
    """
    if network is None:
        words = shown.partition(" (")[0]
        known = (p for p in NetworkProfile if p.degraded and words == f"{p} DEGRADED")
        network = next(known, None)
    return (degraded_label(network),) if network is not None and network.degraded else ()
