# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Record a node's admission, and how its connection ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import AttestationResult
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.coordinator.settings import Revoked
from securetrain.rendezvous.coordinator.vault import Asker
from securetrain.rendezvous.wire.membership import Member, Membership
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


def admitted_event(session: Session, result: AttestationResult) -> events.NodeAdmitted:
    """The ledger's record of an admission."""
    return events.NodeAdmitted(
        subject=session.subject,
        tier=result.tier,
        label=result.label,
        evidence=result.evidence,
        reference_values=result.reference_values,
        result=result.digest,
        address=session.remote,
        key_exchange=session.channel.key_exchange,
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


def asker_of(session: Session, membership: Membership | None, nonce: bytes) -> Asker:
    """The member that asks for secrets, as it is known here."""
    assert session.hello is not None, "it is admitted"
    assert session.result is not None, "it is admitted"
    is_member = membership is not None and membership.entry(session.node) is not None
    return Asker(
        job=session.terms.job,
        node=session.node,
        subject=session.subject,
        sealing=session.hello.sealing,
        result=session.result,
        epoch=membership.epoch if membership is not None and is_member else None,
        asked=session.asked,
        exporter=session.channel.exporter(nonce),
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


def refuse_revoked(revoked: Revoked | None, session: Session) -> None:
    """Refuse an authenticated peer that the cluster CA has revoked.

    Raises:
        AdmissionError: ST-ADMN-013, or ST-ADMN-012 when it cannot be known.
    """
    if revoked is None:
        return
    certificate = session.channel.check.certificate
    assert session.peer is not None, "it is authenticated"
    assert certificate is not None, "it is authenticated"
    revoked(session.peer, certificate)


def evict_revoked(revoked: Revoked | None, sessions: Iterable[Session]) -> None:
    """Evict every authenticated peer that has been revoked."""
    for session in sessions:
        try:
            refuse_revoked(revoked, session)
        except SecureTrainError as error:
            if error.code == "ST-ADMN-013":  # a list that cannot be read ends the next lease
                session.evict(error)


def refuse_twin(journal: Journal, session: Session, others: Iterable[Session]) -> None:
    """Refuse who claims what another node has, and note both.

    Raises:
        AdmissionError: ST-ADMN-011.
    """
    twin, shared = twin_of(session, others)
    if twin is None:
        return
    journal.write(
        events.NodeHasTwin(
            subject=twin.subject, first=twin.remote, second=session.remote, shared=shared
        )
    )
    raise AdmissionError(
        "ST-ADMN-011",
        f"{twin.node} is in already, from {twin.remote}, with the same {shared}",
        session.subject,
    )


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
