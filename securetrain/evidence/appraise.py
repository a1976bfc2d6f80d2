# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judge the evidence of one node: one sequence for a join, a renewal and a bundle in a file.

Rules, in order:

1. the node's identity key signed body and binding: nothing is parsed before;
2. the binding equals what the verifier computes from its own view of the exchange;
3. the appraiser for the media type judges the body; the tier follows from what verified, never from
   a field of the evidence.

What only the caller knows (nonces, leases, revocations, the policy's tier rule) is the caller's.
"""

import hmac
from collections.abc import Callable
from datetime import datetime

import msgspec

from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.core.vocabulary import tier_label
from securetrain.evidence.appraiser import Appraisal, Appraiser
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask, Case, Fetch, Lease, Opening, Remembered
from securetrain.evidence.node_evidence import Evidence
from securetrain.evidence.result import AttestationResult
from securetrain.identity.keys import PublicKey


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier's own view of the exchange that evidence was made for."""

    node: str
    """The node's name, from its certificate or from the question."""
    key: PublicKey
    """The node's identity key."""
    binding: Binding
    """The verifier's own view."""
    now: datetime
    expires: datetime
    """When the lease that this appraisal begins would end."""
    ask: Ask
    secret: bytes = b""
    """What only the TPM that holds both keys can find in the challenge's credential."""
    lease: Lease | None = None
    """What a renewal goes on from."""
    past: tuple[Remembered, ...] = ()
    """See `Case`, as of the next two."""
    boot: str = ""
    uptime: int = 0
    fetch: Fetch | None = None
    """Asks the node for the parts of a long measurement list."""


def appraise_evidence(
    evidence: Evidence,
    appraiser: Appraiser,
    exchange: Exchange,
    *,
    opening: Callable[[], Opening | None],
    policy: str,
) -> tuple[AttestationResult, Appraisal]:
    """Judge evidence by the rules above.

    Args:
        evidence: as it arrived.
        appraiser: for its media type.
        exchange: what the verifier knows of it.
        opening: gives the TPM whose keys were announced, once signature and binding hold.
        policy: SHA-256 (hex) of the resolved policy, for the result.

    Returns:
        The result, and the appraisal that it was made from.

    Raises:
        AttestationError: ST-ATTS, saying which rule was broken and where.
    """
    check_signature(evidence, exchange.node, exchange.key)
    claims = appraiser.read(evidence.body)
    expected = exchange.binding.value(claims.manifest)
    check_binding(evidence, expected, exchange.node)
    case = Case(
        binding=expected,
        node=exchange.node,
        now=exchange.now,
        expires=exchange.expires,
        ask=exchange.ask,
        secret=exchange.secret,
        opening=opening(),
        lease=exchange.lease,
        past=exchange.past,
        boot=exchange.boot,
        uptime=exchange.uptime,
        fetch=exchange.fetch,
    )
    appraisal = appraiser.appraise(claims, case)
    result = AttestationResult(
        job=exchange.binding.job,
        node=exchange.node,
        key_id=exchange.key.key_id,
        tier=appraisal.tier,
        label=tier_label(appraisal.tier),
        media_type=evidence.media_type,
        evidence=evidence.digest.hex(),
        policy=policy,
        reference_values=appraiser.reference_values,
        issued=exchange.now,
        expires=exchange.expires,
        submods=appraisal.submods,
    )
    return result, appraisal


def check_binding(evidence: Evidence, expected: bytes, node: str) -> None:
    """Compare what the evidence was made for with what was asked.

    Raises:
        AttestationError: ST-ATTS-003.
    """
    if not hmac.compare_digest(evidence.binding, expected):
        raise AttestationError(
            "ST-ATTS-003",
            "the evidence is bound to another connection, job, key or manifest",
            f"node {node}",
        )


def check_signature(evidence: Evidence, node: str, key: PublicKey) -> None:
    """Check the node's own signature, before anything of a body is parsed.

    Raises:
        AttestationError: ST-ATTS-003.
    """
    try:
        key.verify(evidence.signature, evidence.signed_message())
    except SecureTrainError as error:
        raise AttestationError(
            "ST-ATTS-003",
            "the evidence is not signed by the node's identity key",
            f"node {node}",
        ) from error
