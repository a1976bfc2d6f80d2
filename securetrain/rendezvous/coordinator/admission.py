# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Record a node's admission, and how its connection ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import AttestationResult
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.wire.membership import Member
from securetrain.rendezvous.wire.tls import spki_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A node that was let in, for run summaries and checkpoint statements."""

    node: str
    tier: NodeTier
    label: str
    evidence: str
    """SHA-256 (hex) of the evidence."""
    result: str
    """SHA-256 (hex) of the attestation result."""
    certificate: str
    """SHA-256 (hex) of the node's certificate."""
    admitted: datetime
    expires: datetime


def admission_of(session: Session, result: AttestationResult) -> Admission:
    """The record of an admission or a renewal."""
    return Admission(
        node=session.node,
        tier=result.tier,
        label=result.label,
        evidence=result.evidence,
        result=result.digest,
        certificate=session.certificate,
        admitted=result.issued,
        expires=result.expires,
    )


def member_of(rank: int, session: Session) -> Member:
    """The node's entry in a membership: what it said in Hello, and what was verified."""
    assert session.hello is not None
    assert session.result is not None
    return Member(
        rank=rank,
        node=session.node,
        certificate=session.certificate,
        tier=session.result.tier,
        result=session.result.digest,
        address=session.hello.address,
        local_world=session.hello.local_world,
        role=session.hello.role,
        wireguard=session.hello.wireguard,
        wireguard_port=session.hello.wireguard_port,
    )


def twin_of(session: Session, others: Iterable[Session]) -> tuple[Session | None, str]:
    """Another session that claims what only one node can have, and what that is."""
    for other in others:
        if other.node == session.node:
            return other, "name"
        if _key(other) == _key(session):
            return other, "key"
        if _wireguard(session) and _wireguard(other) == _wireguard(session):
            return other, "WireGuard key"
    return None, ""


def _key(session: Session) -> bytes:
    certificate = session.channel.check.certificate
    assert certificate is not None, "it is authenticated"
    return spki_of(certificate)


def _wireguard(session: Session) -> str:
    return session.hello.wireguard if session.hello is not None else ""


def record_end(journal: Journal, session: Session, error: SecureTrainError | None) -> None:
    """Write how a connection ended."""
    match error:
        case None if session.admitted:
            kind = events.NodeLeft if session.said_goodbye else events.NodeLost
            journal.write(kind(subject=session.subject))
        case None:
            return  # the coordinator stopped while the peer was still arriving
        case _ if session.admitted:
            journal.write(events.NodeEvicted.of(error, session.subject))
        case _ if session.peer is not None and session.hello is not None:
            journal.write(events.NodeRefused.of(error, session.subject))
        case _:
            journal.refuse_stranger(error, session.subject)
