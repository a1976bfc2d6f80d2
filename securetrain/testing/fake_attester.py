# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence of any tier, for testing policies. Test only, and it cannot be anything else.

``FakeAttester`` claims a tier in evidence of a media type of its own. Only a verifier that was
built with ``FAKE_APPRAISERS`` believes it; nothing outside this module registers them, so every
real verifier refuses the evidence with ST-ATTS-006.

::

    clock = SettableClock()
    verifier = fake_verifier(load_policy("baseline"), clock)
    result = join(verifier, "node-1", NodeTier.TPM)   # raises AttestationError when refused
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

import msgspec

from securetrain.attest.node import sign_evidence
from securetrain.attest.session import Verifier
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import (
    EXPORTER_SIZE,
    SESSION_SIZE,
    Appraisal,
    Appraiser,
    Ask,
    AttestationKeys,
    AttestationResult,
    Binding,
    Case,
    Claims,
    Evidence,
    Opening,
)
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.ledger import Clock
from securetrain.policy import LoadedPolicy

FAKE_TYPE: Final = "application/vnd.securetrain.testing-only+json"
_LIMIT: Final = 1024


class _Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tier: NodeTier


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeAttester:
    """An `attest.node.attester.Attester` whose evidence says just a tier."""

    key: PrivateKey
    """The node's identity key."""
    tier: NodeTier

    def keys(self) -> None:
        """It has no TPM."""

    def collect(self, binding: Binding, ask: Ask) -> Evidence:  # noqa: ARG002 - an Attester
        """Evidence that is bound and signed as real evidence is, and claims `tier`."""
        body = canonical.encode(_Claim(self.tier))
        return sign_evidence(FAKE_TYPE, body, binding.value(body), self.key)


class FakeAppraiser:
    """Believes the claim."""

    reference_values = ""
    documents: tuple[bytes, ...] = ()

    def open(self, keys: AttestationKeys, node: str, now: datetime) -> Opening | None:
        """There is nothing to look at."""

    def credential(
        self, opening: Opening, secret: bytes, random: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        """Never asked for: nothing was opened."""
        raise NotImplementedError

    def read(self, body: bytes) -> Claims:
        """Parse a claim.

        Raises:
            AttestationError: ST-ATTS-001 when the body is not one.
        """
        _claim(body)
        return Claims(manifest=body)

    def appraise(self, claims: Claims, case: Case) -> Appraisal:  # noqa: ARG002 - an Appraiser
        """The tier that is claimed."""
        return Appraisal(tier=_claim(claims.manifest).tier, submods={})


def _claim(body: bytes) -> _Claim:
    try:
        return canonical.decode(body, _Claim, limit=_LIMIT, canonical=True)
    except UsageError as error:
        raise AttestationError("ST-ATTS-001", error.what, "fake evidence") from error


FAKE_APPRAISERS: Final[Mapping[str, Appraiser]] = MappingProxyType({FAKE_TYPE: FakeAppraiser()})
"""For `Verifier(appraisers=...)` in tests."""


def fake_verifier(policy: LoadedPolicy, clock: Clock) -> Verifier:
    """A verifier that judges fake evidence under a real policy."""
    return Verifier(
        policy=policy.policy,
        policy_digest=policy.digest,
        clock=clock,
        appraisers=FAKE_APPRAISERS,
    )


def join(
    verifier: Verifier, node: str, tier: NodeTier, *, job: str = "test-job"
) -> AttestationResult:
    """Challenge and appraise a node of a given tier, with no network between.

    Raises:
        AttestationError: When the verifier's policy does not let it in.
    """
    node_key, server_key = (PrivateKey.generate(KeyKind.P256) for _ in range(2))
    binding = Binding(
        nonce=verifier.challenge(node).nonce,
        session=bytes(SESSION_SIZE),
        job=job,
        client_spki=node_key.public.spki,
        server_spki=server_key.public.spki,
        exporter=bytes(EXPORTER_SIZE),
    )
    evidence = FakeAttester(key=node_key, tier=tier).collect(binding, Ask())
    return verifier.appraise(evidence, binding, node=node, key=node_key.public)
