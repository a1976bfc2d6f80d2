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

import base64
import hashlib
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import PrivateKey, PublicKey

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
    """The verifier's statement about a node."""

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
        import jwt  # noqa: PLC0415 - it brings an HTTP client, and a verifier may have no result

        headers = {"typ": _TYPE, "kid": key.key_id}
        return jwt.encode(self.claims(), key.curve, algorithm=_ALGORITHM, headers=headers)


def verify_result(token: str, key: PublicKey, now: datetime | None = None) -> AttestationResult:
    """Read a result that the coordinator signed.

    Args:
        token: the JWT.
        key: the coordinator's key.
        now: refuse a result that is over at this time; None to read one of the past.

    Raises:
        AttestationError: ST-ATTS-014.
    """
    import jwt  # noqa: PLC0415 - see `sign`

    if len(token) > TOKEN_LIMIT:
        raise refused(f"{len(token)} characters, the limit is {TOKEN_LIMIT}")
    try:
        if jwt.get_unverified_header(token) != {
            "alg": _ALGORITHM,
            "kid": key.key_id,
            "typ": _TYPE,
        }:
            raise refused("its header is not that of a result of this coordinator")
        claims = jwt.decode(
            token,
            key.curve,
            algorithms=[_ALGORITHM],
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
        result = _from_claims(claims)
    except (jwt.PyJWTError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise refused(f"{type(error).__name__}: {error}") from error
    if result.claims() != claims:
        raise refused("its claims contradict each other")
    if now is not None and not result.issued <= now < result.expires:
        raise refused(f"valid from {result.issued} to {result.expires}, and it is {now}")
    return result


def read_named(token: str, digest: str) -> AttestationResult:
    """Read a result by its digest, which stands in something that the coordinator has signed: in a
    membership, above all. The signature of the token itself is not looked at.

    Args:
        token: The JWT.
        digest: SHA-256 (hex) of the result's document.

    Raises:
        AttestationError: ST-ATTS-014, it is another result, or none.
    """
    if len(token) > TOKEN_LIMIT:
        raise refused(f"{len(token)} characters, the limit is {TOKEN_LIMIT}")
    try:
        body = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        result = _from_claims(claims)
        found = result.digest
    except (
        msgspec.MsgspecError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as error:
        raise refused(f"{type(error).__name__}: {error}") from error
    if found != digest:
        raise refused(f"its digest is {found[:16]}, not {digest[:16]}")
    if result.claims() != claims:
        raise refused("its claims contradict each other")
    return result


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


def refused(what: str) -> AttestationError:
    """A result that is not one (ST-ATTS-014)."""
    return AttestationError(
        "ST-ATTS-014",
        f"not an attestation result of this coordinator: {what}",
        "attestation result",
    )
