# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Events of the coordinator: enrollment, admission, membership, revocation, fleets."""

from securetrain.core.vocabulary import Boundary, NodeTier, tier_label
from securetrain.ledger.events.event import (
    Allowed,
    Observed,
    PeerRefused,
    PlainRefused,
    Refused,
    WriterRole,
    event,
)

_COORDINATOR = WriterRole.COORDINATOR
_UNATTESTED = frozenset({NodeTier.SELF_ASSERTED, NodeTier.TEST_ONLY})


def _tier_labels(tier: NodeTier) -> tuple[str, ...]:
    return (tier_label(tier),) if tier in _UNATTESTED else ()


# The coordinator: enrollment, admission, membership, revocation.


@event("coordinator-started", Boundary.RENDEZVOUS, _COORDINATOR)
class CoordinatorStarted(Observed, frozen=True, kw_only=True):
    """The coordinator listens."""

    address: str
    policy: str
    """The policy's digest."""


@event("fleet-state-opened", Boundary.NODE, _COORDINATOR)
class FleetStateOpened(Observed, frozen=True, kw_only=True):
    """The memory of nodes that outlives jobs, in the folder of the subject, was opened.

    The version never goes back: a smaller one in a later run is a state that was put back.
    """

    version: int
    """Rises with every change; 0 when nothing was ever barred or accepted here."""
    barred: int
    """Nodes, TPMs and devices that are let in no more."""


@event("reference-values-ending", Boundary.NODE, _COORDINATOR)
class ReferenceValuesEnding(Observed, frozen=True, kw_only=True):
    """The reference values end soon, and then no node is let in and no lease renewed."""

    days: int
    """Within so many: 14, then 2."""


@event("collateral-ending", Boundary.NODE, _COORDINATOR)
class CollateralEnding(Observed, frozen=True, kw_only=True):
    """Collateral ends soon, or the cache of it; nodes that need it are refused then.

    The subject is the document, or the cache's folder.
    """

    kind: str
    """``cache`` or ``collateral``."""
    days: int
    """Within so many: 14, then 2."""


@event("reference-values-read", Boundary.NODE, _COORDINATOR)
class ReferenceValuesRead(Observed, frozen=True, kw_only=True):
    """The reference values were signed again, and nodes are judged by the new edition now."""


@event("reference-values-not-read", Boundary.NODE, _COORDINATOR)
class ReferenceValuesNotRead(PlainRefused, frozen=True, kw_only=True):
    """A new edition of the reference values is not good; the last one stands until it ends."""


@event("enrolment-opened", Boundary.IDENTITY, _COORDINATOR)
class EnrollmentOpened(Observed, frozen=True, kw_only=True):
    """Machines may enroll at an address."""

    address: str


@event("node-enrolled", Boundary.IDENTITY, _COORDINATOR)
class NodeEnrolled(Allowed, frozen=True, kw_only=True):
    """A machine with a one-time token has got a certificate."""

    serial: str
    key: str
    token: str
    address: str


@event("enrolment-refused", Boundary.RENDEZVOUS, _COORDINATOR)
class EnrollmentRefused(PeerRefused, frozen=True, kw_only=True):
    """A machine with a valid token was refused."""


@event("report-filed", Boundary.NODE, _COORDINATOR)
class ReportFiled(Observed, frozen=True, kw_only=True):
    """A machine's inventory report was stored."""

    digest: str


@event("certificate-renewed", Boundary.IDENTITY, _COORDINATOR)
class CertificateRenewed(Allowed, frozen=True, kw_only=True):
    """A node has got its next certificate."""

    serial: str
    ends: str


@event("revocations-read", Boundary.IDENTITY, _COORDINATOR)
class RevocationsRead(Observed, frozen=True, kw_only=True):
    """The cluster's revocation list has changed."""

    number: int


@event("revocations-refused", Boundary.IDENTITY, _COORDINATOR)
class RevocationsRefused(PlainRefused, frozen=True, kw_only=True):
    """The cluster's revocation list is not good."""


@event("node-admitted", Boundary.NODE, _COORDINATOR)
class NodeAdmitted(Allowed, frozen=True, kw_only=True):
    """A node has proven what the policy asks for."""

    tier: NodeTier = NodeTier.SELF_ASSERTED
    label: str = ""
    """The tier, as people see it."""
    evidence: str = ""
    reference_values: str = ""
    result: str = ""
    """The digest of the attestation result."""
    address: str = ""
    key_exchange: str = ""
    """The group in which the keys of its control connection were agreed on."""

    @property
    def labels(self) -> tuple[str, ...]:
        """UNATTESTED or TEST-ONLY."""
        return _tier_labels(self.tier)


@event("lease-renewed", Boundary.NODE, _COORDINATOR)
class LeaseRenewed(Allowed, frozen=True, kw_only=True):
    """A node has proven itself again."""

    tier: NodeTier = NodeTier.SELF_ASSERTED
    result: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """UNATTESTED or TEST-ONLY."""
        return _tier_labels(self.tier)


@event("secret-released", Boundary.NODE, _COORDINATOR)
class SecretReleased(Allowed, frozen=True, kw_only=True):
    """A node was given a secret, sealed to its connection. No event tells anything of its bytes."""

    secret: str
    """Its name."""
    edition: int
    """One more each time that the coordinator read other bytes."""
    epoch: int
    tier: NodeTier = NodeTier.SELF_ASSERTED
    """The node's, by its latest result."""
    group: str = ""
    """Its image group, where it was attested to have one."""

    @property
    def labels(self) -> tuple[str, ...]:
        """UNATTESTED or TEST-ONLY."""
        return _tier_labels(self.tier)


@event("secret-withheld", Boundary.NODE, _COORDINATOR)
class SecretWithheld(Refused, frozen=True, kw_only=True):
    """A node that is in the job was not given a secret."""

    secret: str
    epoch: int
    tier: NodeTier = NodeTier.SELF_ASSERTED


@event("node-refused", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeRefused(PeerRefused, frozen=True, kw_only=True):
    """A node with a certificate was not admitted."""


@event("node-evicted", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeEvicted(PeerRefused, frozen=True, kw_only=True):
    """A node that was in was put out."""


@event("connection-refused", Boundary.RENDEZVOUS, _COORDINATOR)
class ConnectionRefused(PeerRefused, frozen=True, kw_only=True):
    """A peer that never authenticated was refused."""


@event("refusals-not-listed", Boundary.RENDEZVOUS, _COORDINATOR)
class RefusalsNotListed(Observed, frozen=True, kw_only=True):
    """So many refusals of one code, its subject, were counted and not written one by one."""

    count: int


@event("node-has-twin", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeHasTwin(Observed, frozen=True, kw_only=True):
    """Two peers claim one name or one key."""

    first: str
    second: str
    shared: str


@event("node-left", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeLeft(Observed, frozen=True, kw_only=True):
    """A node said goodbye."""


@event("node-going", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeGoing(Observed, frozen=True, kw_only=True):
    """A member will leave when its workers have ended: it was told to."""


@event("group-failed", Boundary.RENDEZVOUS, _COORDINATOR)
class GroupFailed(Observed, frozen=True, kw_only=True):
    """The workers' group lacks a member: the others meet again, or the job cannot go on."""

    said: str


@event("node-lost", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeLost(Observed, frozen=True, kw_only=True):
    """A node's connection ended without a goodbye."""


@event("trust-ended", Boundary.NODE, _COORDINATOR)
class TrustEnded(Observed, frozen=True, kw_only=True):
    """A node that is gone is not believed any more, and since when."""

    cause: str
    last_good: str
    epoch: int


@event("round-formed", Boundary.RENDEZVOUS, _COORDINATOR)
class RoundFormed(Allowed, frozen=True, kw_only=True):
    """An epoch has its members."""

    round: int
    nodes: int
    evicted: str = ""
    floors: int = 0

    @property
    def epoch(self) -> int:
        """The epoch in the subject (``epoch 7``).

        Raises:
            ValueError: The subject names none.
        """
        return int(self.subject.removeprefix("epoch "))


@event("store-announced", Boundary.RENDEZVOUS, _COORDINATOR)
class StoreAnnounced(Observed, frozen=True, kw_only=True):
    """Rank 0 has said where the workers' store is."""

    epoch: int
    address: str


@event("job-closed", Boundary.RENDEZVOUS, _COORDINATOR)
class JobClosed(Observed, frozen=True, kw_only=True):
    """A quorum has ended the job: there are no more rounds."""


@event("coordinator-resumed", Boundary.RENDEZVOUS, _COORDINATOR)
class CoordinatorResumed(Observed, frozen=True, kw_only=True):
    """The coordinator goes on where another one was, and keeps the places of its members."""

    epoch: int
    nodes: str


@event("coordinator-superseded", Boundary.RENDEZVOUS, _COORDINATOR)
class CoordinatorSuperseded(PlainRefused, frozen=True, kw_only=True):
    """A node has seen a later coordinator of the job: this one stands down."""


@event("node-resumed", Boundary.RENDEZVOUS, _COORDINATOR)
class NodeResumed(Allowed, frozen=True, kw_only=True):
    """A member has proven itself anew and goes on in its place."""

    epoch: int


@event("close-counted", Boundary.RENDEZVOUS, _COORDINATOR)
class CloseCounted(Observed, frozen=True, kw_only=True):
    """A member of the current round is done with the job."""

    votes: int
    members: int


@event("close-ignored", Boundary.RENDEZVOUS, _COORDINATOR)
class CloseIgnored(PlainRefused, frozen=True, kw_only=True):
    """A node that is not in the current round wanted to end the job."""


@event("member-suspected", Boundary.RENDEZVOUS, _COORDINATOR)
class MemberSuspected(Observed, frozen=True, kw_only=True):
    """A member does not trust another one. Nobody is evicted for that alone."""

    suspect: str
    epoch: int
    cause: str
    said: str = ""
    voices: int


# The coordinator of a fleet: tokens, and what machines have proven.


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
