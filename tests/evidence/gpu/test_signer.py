# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Chains to a pinned root; `test_a_chain` is the control of everything that is refused."""

import dataclasses
from datetime import timedelta
from itertools import pairwise

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.signer import check_revocation, verify_chain
from tests import vocabulary
from tests.evidence.gpu.authority import NOW, YEAR, Holder, issue, make_authority, new_key
from tests.identity.worlds import certificate, limits
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

AUTHORITY = make_authority()
ISSUER, PRODUCT, ROOT = AUTHORITY.issuer, AUTHORITY.product, AUTHORITY.root
SIGNER = AUTHORITY.signer
RSA_KEY = rsa_key(2048)


def verify(*holders, roots=None):
    chain = [holder.der if isinstance(holder, Holder) else holder for holder in holders]
    return verify_chain(chain, AUTHORITY.roots if roots is None else roots, "RIM x")


def refused(*holders, roots=None):
    error = vocabulary.refused(AttestationError, "ST-ATTS-705", verify, *holders, roots=roots)
    assert error.where == "RIM x"
    return error.what


def test_a_chain():
    chain = verify(*AUTHORITY.chain)
    assert chain.certificates == tuple(holder.certificate for holder in AUTHORITY.chain)
    assert chain.key == SIGNER.key.public_key()
    assert chain.valid_from == SIGNER.certificate.not_valid_before_utc
    assert chain.valid_until == SIGNER.certificate.not_valid_after_utc


def test_shorter_and_longer_chains():
    verify(issue("leaf", ROOT, ca=False), ROOT)
    extra = issue("extra", PRODUCT)
    issuer = issue("issuer", extra)
    verify(issue("leaf", issuer, ca=False), issuer, extra, PRODUCT, ROOT)


def test_time_is_left_to_the_caller():
    old = make_authority(not_before=NOW - 9 * YEAR, not_after=NOW - 8 * YEAR)
    chain = verify(*old.chain, roots=old.roots)
    assert chain.valid_until == NOW - 8 * YEAR
    assert chain.valid_from == ISSUER.certificate.not_valid_before_utc, "the issuer came later"


ANOTHER = make_authority()
IMPOSTOR = issue("Test RIM Root CA", not_after=NOW + YEAR)


def below(issuer: Holder, **changes):
    """A signer below `issuer`."""
    return issue("Signer", issuer, **{"ca": False, **changes})


def intermediate(**changes):
    """A chain whose issuing CA is wrong in one way."""
    issuer = issue("Issuer", PRODUCT, **changes)
    return [below(issuer), issuer, PRODUCT, ROOT]


def signer(**changes):
    """A chain whose leaf is wrong in one way."""
    return [below(ISSUER, **changes), ISSUER, PRODUCT, ROOT]


UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
NAMES = x509.NameConstraints([x509.DNSName("example.org")], None)

# A root whose key is the pinned one, as anybody can see it, under an attacker's signature.
OWN = ROOT.key.public_key()
FAKE_ROOT = Holder(
    certificate(
        ROOT.certificate.subject,
        ROOT.certificate.subject,
        OWN,
        new_key(),
        (NOW - YEAR, NOW + 500 * YEAR),
        (x509.SubjectKeyIdentifier.from_public_key(OWN), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(OWN), False),
        limits(ca=True),
        (ROOT.certificate.extensions.get_extension_for_class(x509.KeyUsage).value, True),
        digest=hashes.SHA384(),
    ),
    ROOT.key,
)
LONG = [issue(f"ca-{number}", ROOT) for number in range(7)]


@forgeries(
    "id, chain, what",
    ("another-root-of-the-same-name", ANOTHER.chain, "not pinned"),
    ("root-swapped", [*AUTHORITY.chain[:-1], ANOTHER.root], "not pinned"),
    ("no-root", AUTHORITY.chain[:-1], "not pinned"),
    ("nothing", [], "0 certificates"),
    ("the-root-alone", [ROOT], "1 certificates"),
    ("too-many", [SIGNER, *LONG], "8 certificates"),
    ("an-issuer-missing", [SIGNER, PRODUCT, ROOT], "no path"),
    ("order", [SIGNER, PRODUCT, ISSUER, ROOT], "in its order"),
    ("one-more", [SIGNER, ISSUER, PRODUCT, LONG[0], ROOT], "in its order"),
    ("another-signer", [ANOTHER.signer, *AUTHORITY.chain[1:]], "no path"),
    ("an-impostors-signer", [below(IMPOSTOR), ROOT], "no path"),
    (
        "not-signed-by-its-issuer",
        [issue("Signer", ISSUER, ca=False, sign_with=new_key()), *AUTHORITY.chain[1:]],
        "no path",
    ),
    ("self-signed", [issue("self", ca=False), ROOT], "no path"),
    ("fake-copy-of-the-root", [*AUTHORITY.chain[:-1], FAKE_ROOT], "no path"),
    ("issuer-is-no-ca", intermediate(ca=False), "no path"),
    ("issuer-without-constraints", intermediate(constraints=False), "no path"),
    ("issuer-may-not-sign", intermediate(cert_sign=False), "no path"),
    ("issuer-critical", intermediate(extra=((UNKNOWN, True),)), "no path"),
    (
        "path-length",
        [below(longer := issue("longer", ISSUER)), longer, ISSUER, PRODUCT, ROOT],
        "no path",
    ),
    ("leaf-is-a-ca", signer(ca=True, digital_signature=True), "is a CA"),
    ("leaf-may-not-sign", signer(digital_signature=False), "may not make"),
    ("leaf-without-usage", signer(usage=False), "KeyUsage"),
    ("leaf-no-constraints", signer(constraints=False), "BasicConstraints"),
    ("leaf-critical", signer(extra=((UNKNOWN, True),)), "no path"),
    ("leaf-p256", signer(key=new_key(ec.SECP256R1())), "not on P-384"),
    ("leaf-rsa", signer(key=RSA_KEY), "not on P-384"),
    ("leaf-sha256", signer(algorithm=hashes.SHA256()), "SHA-384"),
    ("issuer-p521", intermediate(key=new_key(ec.SECP521R1())), "not on P-384"),
    ("issuer-sha512", intermediate(algorithm=hashes.SHA512()), "SHA-384"),
    ("empty", [b"", ROOT], "cannot be read"),
    ("truncated", [SIGNER.der[:-1], *AUTHORITY.chain[1:]], "cannot be read"),
    ("trailing", [SIGNER.der + b"\0", *AUTHORITY.chain[1:]], "cannot be read"),
)
def test_chains_that_do_not_lead_to_the_root(chain, what):
    assert what in refused(*chain)


@pytest.mark.forgery
def test_without_roots_nothing_is_accepted():
    refused(*AUTHORITY.chain, roots=())
    refused(*AUTHORITY.chain, roots={AUTHORITY.product.pin})


# Revocation.


def test_every_certificate_but_the_root_is_asked_about():
    asked = []

    def status(certificate, issuer):
        asked.append((certificate, issuer))
        return CertificateStatus.GOOD

    certificates = verify(*AUTHORITY.chain).certificates
    check_revocation(certificates, status, "x")
    assert asked == list(pairwise(certificates))


@forgeries("position", 0, 1, 2)
@each(
    "status, code",
    (CertificateStatus.REVOKED, "ST-ATTS-719"),
    (CertificateStatus.HOLD, "ST-ATTS-720"),
    (CertificateStatus.UNKNOWN, "ST-ATTS-721"),
)
def test_a_certificate_that_is_not_good(position, status, code):
    certificates = verify(*AUTHORITY.chain).certificates
    bad = certificates[position]

    def lookup(certificate, issuer):
        return status if certificate == bad else CertificateStatus.GOOD

    error = vocabulary.refused(
        AttestationError, code, check_revocation, certificates, lookup, "RIM x"
    )
    assert error.where == "RIM x"
    assert bad.subject.rfc4514_string() in error.what


def test_a_chain_says_when_all_of_it_is_valid():
    short = make_authority(not_before=NOW - timedelta(days=1), not_after=NOW + timedelta(days=1))
    chain = verify(*short.chain, roots=short.roots)
    assert (chain.valid_from, chain.valid_until) == (NOW - timedelta(1), NOW + timedelta(1))
    assert dataclasses.astuple(chain)[1] == chain.key
