# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The verifier: judge one node's evidence under one policy.

Rules, in order:

1. the nonce is one of ours, younger than 30 seconds and used once; it is spent by the attempt,
   whatever comes of it;
2. the media type is known;
3. the binding equals what the verifier computes from its own view of the connection, and the node's
   identity key signed it;
4. an appraiser for that media type reads the body; the tier follows from what verified, never from
   a field of the evidence;
5. the policy: tier, exception for unattested nodes with its number and its last day;
6. an unexpected error in any of these is a refusal.

The result is a document that the coordinator signs. Its shape follows EAR (draft-ietf-rats-ear): a
trust vector of AR4SI claims (draft-ietf-rats-ar4si), all 0 ("none") for software evidence.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from securetrain.attest.binding import NONCE_SIZE, Binding
from securetrain.attest.evidence import Evidence
from securetrain.attest.selfreport import SELF_ASSERTED_TYPE, parse_software
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.core.vocabulary import UNATTESTED, NodeTier
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.policy.schema import Policy

RESULT_TYPE: Final = "application/vnd.securetrain.attestation-result+json"
NONCE_LIFE: Final = 30.0
MAX_NONCES: Final = 4096

_TRUST_CLAIMS: Final = (
    "instance-identity",
    "configuration",
    "executables",
    "file-system",
    "hardware",
    "runtime-opaque",
    "storage-opaque",
    "sourced-data",
)


class Appraisal(msgspec.Struct, frozen=True, kw_only=True):
    """What an appraiser made of a body."""

    tier: NodeTier
    trust_vector: dict[str, int]


class Appraiser(Protocol):
    """Judges the body of one media type; the binding has been compared before."""

    def __call__(self, evidence: Evidence, binding: bytes) -> Appraisal:
        """The tier that the roots behind this evidence prove.

        Raises:
            AttestationError: ST-ATTS-001 or ST-ATTS-008.
        """


class AttestationResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the verifier says about a node; canonical JSON when signed."""

    job: str
    node: str
    key_id: str
    """SHA-256 (hex) of the node's identity key: who this result is about, whatever its name."""
    tier: NodeTier
    label: str
    """What people see: UNATTESTED (self-reported), or the tier."""
    media_type: str
    evidence: str
    """SHA-256 (hex) of the evidence's body."""
    policy: str
    """SHA-256 (hex) of the resolved policy."""
    issued: datetime
    expires: datetime
    trust_vector: dict[str, int]

    def document(self) -> bytes:
        """Canonical JSON."""
        return canonical.encode(self)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the document."""
        return hashlib.sha256(self.document()).hexdigest()

    def sign(self, key: PrivateKey) -> bytes:
        """A DSSE envelope around the document, signed by the coordinator."""
        return dsse.sign(self.document(), RESULT_TYPE, [key])


def verify_result(envelope: bytes, key: PublicKey) -> AttestationResult:
    """Read a result that the coordinator signed.

    Raises:
        IdentityError: as `dsse.verify`.
        UsageError: ST-USAG-008 when the payload is not a result.
    """
    payload = dsse.verify(envelope, RESULT_TYPE, {key.key_id: key}, where="attestation result")
    return canonical.decode(
        payload.data, AttestationResult, where="attestation result", canonical=True
    )


def appraise_software(evidence: Evidence, binding: bytes) -> Appraisal:  # noqa: ARG001 - an Appraiser
    """Software evidence proves nothing: the lowest tier of a real node, every claim 'none'."""
    parse_software(evidence.body)
    return Appraisal(tier=NodeTier.SELF_ASSERTED, trust_vector=dict.fromkeys(_TRUST_CLAIMS, 0))


APPRAISERS: Final[Mapping[str, Appraiser]] = {SELF_ASSERTED_TYPE: appraise_software}


@dataclass(slots=True, kw_only=True)
class Verifier:
    """Judges evidence for one job. Safe to use from several threads."""

    policy: Policy
    policy_digest: str
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[int], bytes] = secrets.token_bytes
    appraisers: Mapping[str, Appraiser] = field(default_factory=lambda: APPRAISERS)
    _nonces: OrderedDict[bytes, float] = field(default_factory=OrderedDict)
    _unattested: dict[str, datetime] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def challenge(self) -> bytes:
        """A fresh nonce of 32 bytes, good once within 30 seconds.

        Raises:
            AttestationError: ST-ATTS-002 when too many are outstanding.
        """
        now = self.monotonic()
        with self._lock:
            while self._nonces and next(iter(self._nonces.values())) <= now:
                self._nonces.popitem(last=False)
            if len(self._nonces) >= MAX_NONCES:
                raise AttestationError(
                    "ST-ATTS-002",
                    f"{MAX_NONCES} challenges are unanswered",
                    fix="wait half a minute and join again",
                )
            nonce = self.random(NONCE_SIZE)
            self._nonces[nonce] = now + NONCE_LIFE
        return nonce

    def appraise(
        self, evidence: Evidence, binding: Binding, *, node: str, key: PublicKey
    ) -> AttestationResult:
        """Judge evidence that arrived on the connection that `binding` describes.

        Args:
            evidence: what the node sent.
            binding: the verifier's own view of the connection.
            node: the node's name, from its certificate.
            key: the node's identity key, from its certificate.

        Raises:
            AttestationError: ST-ATTS-001 to 006 and 008.
        """
        try:
            return self._appraise(evidence, binding, node, key)
        except AttestationError:
            raise
        except Exception as error:
            raise AttestationError(
                "ST-ATTS-001",
                f"the evidence could not be appraised: {type(error).__name__}: {error}",
                f"node {node}",
                "install the same securetrain version on every node",
            ) from error

    def release(self, node: str) -> None:
        """Forget a node that left: an unattested one makes room for another."""
        with self._lock:
            self._unattested.pop(node, None)

    def _appraise(
        self, evidence: Evidence, binding: Binding, node: str, key: PublicKey
    ) -> AttestationResult:
        self._spend(binding.nonce, node)
        appraiser = self.appraisers.get(evidence.media_type)
        if appraiser is None:
            raise AttestationError(
                "ST-ATTS-006",
                f"evidence of type {evidence.media_type[:100]!r}",
                f"node {node}",
                f"send one of {', '.join(sorted(self.appraisers))}",
            )
        expected = binding.value(evidence.body)
        _check_binding(evidence, expected, node, key)
        appraisal = appraiser(evidence, expected)
        now = self.clock()
        expires = now + timedelta(minutes=self.policy.node.lease_minutes)
        self._apply_policy(appraisal.tier, node, now, expires)
        unattested = appraisal.tier <= NodeTier.SELF_ASSERTED
        return AttestationResult(
            job=binding.job,
            node=node,
            key_id=key.key_id,
            tier=appraisal.tier,
            label=UNATTESTED if unattested else appraisal.tier.value,
            media_type=evidence.media_type,
            evidence=hashlib.sha256(evidence.body).hexdigest(),
            policy=self.policy_digest,
            issued=now,
            expires=expires,
            trust_vector=appraisal.trust_vector,
        )

    def _spend(self, nonce: bytes, node: str) -> None:
        now = self.monotonic()
        with self._lock:
            deadline = self._nonces.pop(nonce, None)
        if deadline is None or now >= deadline:
            state = "unknown or already used" if deadline is None else "expired"
            raise AttestationError(
                "ST-ATTS-002", f"the nonce is {state}", f"node {node}", "join again"
            )

    def _apply_policy(self, tier: NodeTier, node: str, now: datetime, expires: datetime) -> None:
        policy = self.policy.node
        if tier < policy.min_tier and tier is not NodeTier.SELF_ASSERTED:
            raise AttestationError(
                "ST-ATTS-004",
                f"the tier is {tier}, the policy asks for {policy.min_tier}",
                f"node {node}: node.min_tier",
                "use hardware that proves more, or lower node.min_tier",
            )
        if tier <= NodeTier.SELF_ASSERTED:
            self._apply_exception(node, now, expires)

    def _apply_exception(self, node: str, now: datetime, expires: datetime) -> None:
        """Unattested nodes come in only through the policy's exception, however low its tier."""
        exception = self.policy.node.allow_self_asserted
        if exception is None:
            raise AttestationError(
                "ST-ATTS-005",
                f"the node only reported about itself, the policy asks for"
                f" {self.policy.node.min_tier}",
                f"node {node}: node.allow_self_asserted",
                "attest the node with a TPM, or use a policy that lets unattested nodes in",
            )
        if exception.until is not None and now.date() > exception.until:
            raise AttestationError(
                "ST-ATTS-005",
                f"the exception for unattested nodes ended on {exception.until}",
                f"node {node}: node.allow_self_asserted.until",
                "attest the node, or renew the exception",
            )
        with self._lock:
            others = {n for n, end in self._unattested.items() if end > now and n != node}
            if len(others) >= exception.max_nodes:
                raise AttestationError(
                    "ST-ATTS-005",
                    f"{len(others)} unattested nodes are in, {exception.max_nodes} are allowed",
                    f"node {node}: node.allow_self_asserted.max_nodes",
                    "attest the node, or raise max_nodes",
                )
            self._unattested = {n: self._unattested[n] for n in others}
            self._unattested[node] = expires


def _check_binding(evidence: Evidence, expected: bytes, node: str, key: PublicKey) -> None:
    if not hmac.compare_digest(evidence.binding, expected):
        raise AttestationError(
            "ST-ATTS-003",
            "the evidence is bound to another connection, job, key or manifest",
            f"node {node}",
            "join again from the node itself; a relay in between also looks like this",
        )
    try:
        key.verify(evidence.signature, evidence.signed_message())
    except SecureTrainError as error:
        raise AttestationError(
            "ST-ATTS-003",
            "the binding is not signed by the node's identity key",
            f"node {node}",
            "join again from the node itself",
        ) from error
