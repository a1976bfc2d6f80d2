# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attestation results: what the verifier says about a node, for those who cannot ask it themselves.

Rules:

1. a result is an EAR (draft-ietf-rats-ear-04) in a JWT signed with ES256 by the coordinator's key:
   one submodule for each attesting environment, with its AR4SI trust vector
   (draft-ietf-rats-ar4si) and the claims that verified. What is about this job stands in one
   private claim;
2. values of a vector are 0 (nothing is claimed) or 2 (affirmed); what would be worse is a refusal;
3. beside it goes an X.509-SVID for the node's key that ends with the lease. A node that only spoke
   for itself gets one below ``/unattested/``, so that nobody can take it for an attested one;
4. a reader accepts one algorithm, one key and one spelling of the header.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import jwt
import msgspec
from cryptography import x509

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.ca import JobCA, certificate_pem, check_leaf, load_certificate
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.spiffe import Role

PROFILE: Final = "tag:ietf.org,2026:rats/ear#04"
TOKEN_LIMIT: Final = 64 << 10
AFFIRMING: Final = 2
_ALGORITHM: Final = "ES256"
_TYPE: Final = "ear+jwt"
_JOB_CLAIM: Final = "https://securetrain.dev/claims/node"
_CLAIMS: Final = (
    "instance-identity",
    "configuration",
    "executables",
    "file-system",
    "hardware",
    "runtime-opaque",
    "storage-opaque",
    "sourced-data",
)
_NOTHING: Final = dict.fromkeys(_CLAIMS, 0)


def trust_vector(*affirmed: str) -> dict[str, int]:
    """An AR4SI vector in which `affirmed` holds and nothing else is claimed.

    Raises:
        KeyError: for a claim that AR4SI does not know.
    """
    vector = _NOTHING.copy()
    for claim in affirmed:
        if claim not in vector:
            raise KeyError(claim)
        vector[claim] = AFFIRMING
    return vector


class Submodule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One attesting environment of the node: the TPM, the TEE, a GPU, or the self-report."""

    trust_vector: dict[str, int]
    claims: dict[str, str | int | bool] = {}
    """What verified, in the words of the environment's own specification."""

    @property
    def status(self) -> int:
        """The AR4SI tier: affirming when anything is affirmed, else none."""
        return max(self.trust_vector.values(), default=0)


class AttestationResult(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True
):
    """What the verifier says about a node."""

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
    reference_values: str = ""
    """SHA-256 (hex) of the signed reference values; empty when none were used."""
    issued: datetime
    expires: datetime
    submods: dict[str, Submodule]

    def document(self) -> bytes:
        """Canonical JSON."""
        return canonical.encode(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the document."""
        return hashlib.sha256(self.document()).hexdigest()

    def claims(self) -> dict[str, Any]:
        """The result as EAR claims."""
        about = msgspec.to_builtins(self)
        del about["submods"]
        policies = [f"urn:sha256:{self.policy}"]
        return {
            "eat_profile": PROFILE,
            "iat": int(self.issued.timestamp()),
            "exp": int(self.expires.timestamp()),
            "ear_verifier_id": {"developer": "https://securetrain.dev", "build": "securetrain/1"},
            "submods": {
                name: {
                    "eat_profile": PROFILE,
                    "ear_status": submodule.status,
                    "ear_trustworthiness_vector": dict(submodule.trust_vector),
                    "ear_appraisal_policy_ids": policies,
                    "ear_attester_claims": dict(submodule.claims),
                }
                for name, submodule in self.submods.items()
            },
            _JOB_CLAIM: about,
        }

    def sign(self, key: PrivateKey) -> str:
        """The EAR as a JWT, signed by the coordinator's P-256 key."""
        headers = {"typ": _TYPE, "kid": key.key_id}
        return jwt.encode(self.claims(), key.native, algorithm=_ALGORITHM, headers=headers)


@dataclass(frozen=True, slots=True)
class Passport:
    """What an admitted node can show to others until its lease ends."""

    result: AttestationResult
    ear: str
    """The signed result."""
    svid: x509.Certificate
    """The node's key under the job CA, for the time of the lease."""


def issue_passport(
    result: AttestationResult, *, key: PrivateKey, ca: JobCA, node_key: PublicKey
) -> Passport:
    """Sign a result and issue the SVID that goes with it.

    Args:
        result: of the verifier.
        key: the coordinator's key.
        ca: the job's CA.
        node_key: the node's identity key, the one that the result is about.
    """
    attested = result.tier > NodeTier.SELF_ASSERTED
    svid = ca.issue(
        Role.MEMBER if attested else Role.UNATTESTED,
        node_key,
        result.issued,
        node=result.node,
        lifetime=result.expires - result.issued,
    )
    return Passport(result, result.sign(key), svid)


def verify_result(token: str, key: PublicKey, now: datetime | None = None) -> AttestationResult:
    """Read a result that the coordinator signed.

    Args:
        token: the JWT.
        key: the coordinator's key.
        now: refuse a result that is over at this time; None to read one of the past.

    Raises:
        AttestationError: ST-ATTS-014.
    """
    if len(token) > TOKEN_LIMIT:
        raise _bad(f"{len(token)} characters, the limit is {TOKEN_LIMIT}")
    try:
        if jwt.get_unverified_header(token) != {
            "alg": _ALGORITHM,
            "kid": key.key_id,
            "typ": _TYPE,
        }:
            raise _bad("its header is not that of a result of this coordinator")
        claims = jwt.decode(
            token,
            key.native,
            algorithms=[_ALGORITHM],
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
        result = _from_claims(claims)
    except (jwt.PyJWTError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise _bad(f"{type(error).__name__}: {error}") from error
    if result.claims() != claims:
        raise _bad("its claims contradict each other")
    if now is not None and not result.issued <= now < result.expires:
        raise _bad(f"valid from {result.issued} to {result.expires}, and it is {now}")
    return result


def verify_passport(
    token: str, svid: bytes, *, key: PublicKey, ca: x509.Certificate, now: datetime
) -> Passport:
    """Read a passport: the result, and an SVID for the same node, key and time.

    Raises:
        AttestationError: ST-ATTS-014.
    """
    result = verify_result(token, key)
    attested = result.tier > NodeTier.SELF_ASSERTED
    try:
        certificate = load_certificate(svid, "SVID")
        role = Role.MEMBER if attested else Role.UNATTESTED
        spiffe = check_leaf(certificate, ca, role, now)
        holder = PublicKey.from_spki(_spki(certificate))
    except SecureTrainError as error:
        raise _bad(f"the SVID: {error.code}: {error.what}") from error
    said = (spiffe.job, spiffe.node, holder.key_id)
    if said != (result.job, result.node, result.key_id):
        raise _bad(f"the SVID is {spiffe}'s, the result is about {result.node}")
    if certificate.not_valid_after_utc > result.expires.astimezone(UTC):
        raise _bad("the SVID lives longer than the result")
    return Passport(result, token, certificate)


def svid_pem(passport: Passport) -> str:
    """The SVID as text."""
    return certificate_pem(passport.svid).decode()


def _from_claims(claims: dict[str, Any]) -> AttestationResult:
    about = dict(claims[_JOB_CLAIM])
    about["submods"] = {
        name: {
            "trust_vector": entry["ear_trustworthiness_vector"],
            "claims": entry["ear_attester_claims"],
        }
        for name, entry in claims["submods"].items()
    }
    return msgspec.convert(about, AttestationResult, strict=True)


def _spki(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - one use
        Encoding,
        PublicFormat,
    )

    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _bad(what: str) -> AttestationError:
    return AttestationError(
        "ST-ATTS-014",
        f"not an attestation result of this coordinator: {what}",
        "attestation result",
    )
