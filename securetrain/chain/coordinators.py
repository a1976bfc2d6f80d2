# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Coordinators: who vouches for one, and from when to when its word counts.

Rules, in order:

1. a credential has two certificates: the coordinator's leaf, and the CA of its job;
2. an authority of the trust root for the role ``node`` whose parties include ``coordinator``
   vouches for them (`identity.svid`); or a key of the role ``node`` endorsed the job CA for this
   very job, and the leaf is one of that CA for a coordinator;
3. its word counts while the leaf, the job CA and the endorsement are all valid. A result or
   membership of another time is not accepted, whoever signed it;
4. it is apart from the machines that train only where the trust root says so of who vouches
   (`RoleKeys.apart`): a run's own keys lie on the machine that launched it, which any of them
   could take over.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.chain.documents import Credential, Endorsement
from securetrain.core import canonical
from securetrain.core.errors import IdentityError, SecureTrainError
from securetrain.identity import Chain, Role, SpiffeId, check_chain, check_leaf, dsse, public_key_of
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.trust import TrustRole, TrustRoot

ENDORSEMENT_TYPE: Final = "application/vnd.securetrain.chain.endorsement+json"
LONGEST: Final = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A coordinator whose word counts."""

    spiffe: SpiffeId
    key: PublicKey
    begins: datetime
    ends: datetime
    own: bool
    """Whether the run itself vouches: then its job is the run."""
    apart: bool
    """Rule 4."""

    def counts(self, at: datetime) -> bool:
        """Tell whether its word counts at a time."""
        return self.begins <= at <= self.ends


def endorse(
    ca: x509.Certificate, job: str, begins: datetime, ends: datetime, key: PrivateKey
) -> str:
    """Vouch for the CA of a job with a key of the role ``node``; a DSSE envelope."""
    said = Endorsement(job=job, ca=_digest(ca), begins=begins, ends=ends)
    return dsse.sign(canonical.encode(said), ENDORSEMENT_TYPE, [key]).decode()


def accept(credential: Credential, trust: TrustRoot) -> Accepted:
    """Check a credential; see the module.

    Raises:
        IdentityError: The refusal of whoever could have vouched.
    """
    leaf, ca = (Chain([text]).parse("coordinator")[0] for text in credential.certificates)
    begins = max(leaf.not_valid_before_utc, ca.not_valid_before_utc)
    ends = min(leaf.not_valid_after_utc, ca.not_valid_after_utc)
    own = bool(credential.endorsement)
    if own:
        spiffe, said = _endorsed(credential, leaf, ca, trust, begins)
        begins, ends = max(begins, said.begins), min(ends, said.ends)
        apart = trust.document.roles[TrustRole.NODE].apart is True
    else:
        chain = Chain.of([leaf, ca])
        _, spiffe = check_chain(chain, trust, TrustRole.NODE, begins, "coordinator")
        apart = _is_apart(chain, trust, begins)
    if spiffe.role is not Role.COORDINATOR or spiffe.job != credential.job:
        raise IdentityError(
            "ST-IDEN-006", f"{spiffe} is not the coordinator of job {credential.job}"
        )
    key = public_key_of(leaf)
    return Accepted(spiffe=spiffe, key=key, begins=begins, ends=ends, own=own, apart=apart)


def _is_apart(chain: Chain, trust: TrustRoot, at: datetime) -> bool:
    """Rule 4, of an authority: one that is apart vouches, whoever else does."""
    placed = [one for one in trust.document.authorities if one.apart is True]
    document = msgspec.structs.replace(trust.document, authorities=placed)
    try:
        check_chain(chain, replace(trust, document=document), TrustRole.NODE, at)
    except IdentityError:
        return False
    return True


def _endorsed(
    credential: Credential,
    leaf: x509.Certificate,
    ca: x509.Certificate,
    trust: TrustRoot,
    at: datetime,
) -> tuple[SpiffeId, Endorsement]:
    data = credential.endorsement.encode()
    payload = trust.verify(data, ENDORSEMENT_TYPE, TrustRole.NODE, "endorsement")
    said = canonical.decode(payload.data, Endorsement, limit=1 << 14, canonical=True)
    if said.job != credential.job or said.ca != _digest(ca):
        raise IdentityError("ST-IDEN-006", f"the endorsement is of job {said.job}, or another CA")
    if not said.begins < said.ends <= said.begins + LONGEST:
        raise IdentityError("ST-IDEN-005", "the endorsement has no sound time")
    return check_leaf(leaf, ca, Role.COORDINATOR, at), said


def accept_any(
    credentials: Sequence[Credential], trust: TrustRoot
) -> tuple[list[Accepted], list[str]]:
    """The credentials that count, and why the others do not."""
    accepted, refused = [], []
    for credential in credentials:
        try:
            accepted.append(accept(credential, trust))
        except SecureTrainError as error:
            refused.append(f"{error.code}: {error.what}")
    return accepted, refused


def _digest(certificate: x509.Certificate) -> str:
    """SHA-256 (hex) of its DER."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
