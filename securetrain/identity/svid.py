# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signing with an attested node's own key, and judging that by its certificates.

An admitted node has a key of its own and a certificate of minutes or hours (`identity.job_ca`).
A statement that it signs carries the chain beside the signature: the leaf, and the job's CA when
the authority is a cluster CA. A reader needs no list of nodes: the trust root names the authority
(`trust.Authority`) and which parties of which job may sign for a role. Rules, in order:

1. one or two certificates of at most 8 KiB each, the leaf first;
2. an authority of the trust root for this role issued the chain: a cluster CA certified the job CA
   with its limits, or the authority is the job CA itself;
3. the leaf is a leaf of that job CA with the right uses and exactly one SPIFFE id, whose trust
   domain, job and role are what the authority's entry says, compared whole: no prefixes, no
   wildcards;
4. all of it is valid at the time of signing, which a certificate of ten minutes cannot prove by
   itself: the time is the caller's to know, and the witnesses' when the thing was logged
   (`log.proof.Logged.seen`);
5. the envelope is signed by the leaf's key.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from msgspec import Meta

from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.cluster_ca import check_job_ca
from securetrain.identity.job_ca import check_leaf, public_key_of
from securetrain.identity.keys import PublicKey
from securetrain.identity.spiffe import SpiffeId
from securetrain.identity.trust import Authority, TrustRole, TrustRoot

CERTIFICATE_LIMIT: Final = 8 << 10


class Chain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The certificates that go with a signature: DER in base64, the leaf first."""

    certificates: Annotated[
        list[Annotated[str, Meta(max_length=CERTIFICATE_LIMIT * 4 // 3 + 4)]],
        Meta(min_length=1, max_length=2),
    ]

    @classmethod
    def of(cls, certificates: Sequence[x509.Certificate]) -> "Chain":
        """The chain of some certificates."""
        return cls([base64.b64encode(_der(certificate)).decode() for certificate in certificates])

    def parse(self, where: str = "") -> list[x509.Certificate]:
        """The certificates, of which nothing is checked yet.

        Raises:
            IdentityError: ST-IDEN-005.
        """
        return [parse_certificate(text, where) for text in self.certificates]


@dataclass(frozen=True, slots=True)
class Attested:
    """A payload signed by a certificate holder whom an authority of the trust root vouches for."""

    payload: dsse.VerifiedPayload
    spiffe: SpiffeId


def verify_attested(  # noqa: PLR0917 - what is judged, by whom, and when
    envelope: bytes,
    payload_type: str,
    chain: Chain,
    trust: TrustRoot,
    role: TrustRole,
    at: datetime,
    where: str = "",
) -> Attested:
    """Verify an envelope that an attested party signed; see the module.

    Args:
        envelope: the envelope's bytes.
        payload_type: the only one that is accepted.
        chain: the certificates that go with it.
        trust: whose authorities count.
        role: what for.
        at: when it was signed, by somebody else's word than the signer's.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-005, ST-IDEN-006, ST-IDEN-003 when no authority is named for the
            role, and those of `dsse.verify`.
    """
    key, spiffe = check_chain(chain, trust, role, at, where)
    payload = dsse.verify(envelope, payload_type, {key.key_id: key}, where=where)
    return Attested(payload, spiffe)


def check_chain(
    chain: Chain, trust: TrustRoot, role: TrustRole, at: datetime, where: str = ""
) -> tuple[PublicKey, SpiffeId]:
    """The key and the identity that an authority of the role vouches for at a time.

    Raises:
        IdentityError: ST-IDEN-003, ST-IDEN-005, ST-IDEN-006: that of the last authority.
    """
    certificates = chain.parse(where)
    authorities = [entry for entry in trust.document.authorities if entry.role is role]
    refusal = IdentityError(
        "ST-IDEN-003",
        f"the trust root names no authority for the role {role}",
        where,
        "have the cluster's CA added: securetrain trust rotate --authority",
    )
    for authority in authorities:
        try:
            spiffe = _check(certificates, authority, at)
        except IdentityError as error:
            refusal = IdentityError(error.code, error.what, where, error.fix)
        else:
            return public_key_of(certificates[0]), spiffe
    raise refusal


def _check(
    certificates: Sequence[x509.Certificate], authority: Authority, at: datetime
) -> SpiffeId:
    anchor = parse_certificate(authority.certificate)
    issuer = anchor
    if len(certificates) == 2:
        issuer = certificates[1]
        check_job_ca(issuer, anchor, at)
    _check_dates(anchor, at)
    spiffe = _check_leaf(certificates[0], issuer, authority, at)
    wrong = spiffe.trust_domain != authority.trust_domain
    if wrong or authority.job not in {"", spiffe.job}:
        job = f"job {authority.job}" if authority.job else "any job"
        raise IdentityError(
            "ST-IDEN-006",
            f"{spiffe} is not of {authority.trust_domain}, {job}",
            fix="sign with a node that the trust root's authority names",
        )
    return spiffe


def _check_leaf(
    leaf: x509.Certificate, issuer: x509.Certificate, authority: Authority, at: datetime
) -> SpiffeId:
    """The identity of a leaf that is good for one of the authority's parties."""
    refusals = []
    for party in authority.parties:
        try:
            return check_leaf(leaf, issuer, party, at)
        except IdentityError as error:
            refusals.append(error)
    raise refusals[-1]


def _check_dates(anchor: x509.Certificate, at: datetime) -> None:
    if not anchor.not_valid_before_utc <= at <= anchor.not_valid_after_utc:
        raise IdentityError(
            "ST-IDEN-005",
            f"the authority is valid from {anchor.not_valid_before_utc} to"
            f" {anchor.not_valid_after_utc}, and it is {at}",
            fix="have the authority's new certificate put into the trust root",
        )


def parse_certificate(text: str, where: str = "") -> x509.Certificate:
    """One certificate from DER in strict base64.

    Raises:
        IdentityError: ST-IDEN-005.
    """
    try:
        der = base64.b64decode(text, validate=True)
        if len(der) > CERTIFICATE_LIMIT or base64.b64encode(der).decode() != text:
            raise ValueError("too long, or not canonical base64")
        return x509.load_der_x509_certificate(der)
    except (ValueError, binascii.Error, x509.InvalidVersion) as error:
        raise IdentityError("ST-IDEN-005", f"not a certificate: {error}", where) from error


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)
