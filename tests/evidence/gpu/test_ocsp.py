# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""OCSP responses; `test_a_response` and `test_what_is_accepted` are the controls."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.ocsp import (
    CLOCK_SKEW,
    DEFAULT_LIFE,
    LIMIT,
    MAX_CERTIFICATES,
    build_request,
    verify_response,
)
from tests import vocabulary
from tests.evidence.gpu.authority import DAY, OCSP_SIGNING, YEAR, issue, make_authority, new_key
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

# The library that makes responses says that they were produced now, whatever now is.
NOW = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=30)
VALID: dict[str, Any] = {"not_before": NOW - YEAR, "not_after": NOW + YEAR}

AUTHORITY = make_authority()
SIGNER, ISSUER = AUTHORITY.signer, AUTHORITY.issuer
RESPONDER = issue("Responder", ISSUER, ca=False, extra=(OCSP_SIGNING,), **VALID)
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
NAME = ocsp.OCSPResponderEncoding.NAME
HASH = ocsp.OCSPResponderEncoding.HASH
REVOKED = ocsp.OCSPCertStatus.REVOKED


def respond(certificate=SIGNER, issuer=ISSUER, *, by=RESPONDER, **said):
    """A response, right in everything that is not said."""
    start, status = said.get("start", NOW - DAY / 2), said.get("status", ocsp.OCSPCertStatus.GOOD)
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            certificate.certificate,
            issuer.certificate,
            said.get("id_hash", hashes.SHA384()),
            status,
            start,
            said.get("end", NOW + DAY / 2),
            start if status is REVOKED else None,
            said.get("reason"),
        )
        .responder_id(said.get("named", NAME), by.certificate)
    )
    if included := said.get("certificates", [by]):
        builder = builder.certificates([one.certificate for one in included])
    if "nonce" in said:
        builder = builder.add_extension(x509.OCSPNonce(said["nonce"]), critical=False)
    for extension, critical in said.get("extensions", ()):
        builder = builder.add_extension(extension, critical=critical)
    signed = builder.sign(by.key, said.get("algorithm", hashes.SHA384()))
    return signed.public_bytes(Encoding.DER)


def verify(data, certificate=SIGNER, issuer=ISSUER, **changes):
    return verify_response(
        data,
        certificate.certificate,
        issuer.certificate,
        **{"now": NOW, "where": "OCSP x", **changes},
    )


def refused(code, data, **changes):
    error = vocabulary.refused(AttestationError, code, verify, data, **changes, names="OCSP x")
    return error.what


def test_a_response():
    answer = verify(respond())
    assert answer.status is CertificateStatus.GOOD
    assert (answer.reason, answer.from_, answer.until) == ("", NOW - DAY / 2, NOW + DAY / 2)


P256 = issue(
    "Responder", ISSUER, ca=False, key=new_key(ec.SECP256R1()), extra=(OCSP_SIGNING,), **VALID
)


@each(
    "id, changes",
    ("by-the-issuer", {"by": ISSUER}),
    ("by-the-issuer-without-certificates", {"by": ISSUER, "certificates": []}),
    ("named-by-key", {"named": HASH}),
    ("issuer-named-by-key", {"by": ISSUER, "named": HASH}),
    ("sha256-id", {"id_hash": hashes.SHA256()}),
    ("sha1-id", {"id_hash": hashes.SHA1()}),
    ("with-more-certificates", {"certificates": [RESPONDER, ISSUER]}),
    ("with-more-before", {"certificates": [ISSUER, RESPONDER]}),
    ("p256-responder", {"by": P256}),
    ("with-a-nonce-that-nobody-asked-for", {"nonce": b"n" * 32}),
    ("with-an-extension", {"extensions": ((UNKNOWN, False),)}),
    ("critical-nonce", {"extensions": ((x509.OCSPNonce(b"n" * 32), True),)}),
    ("a-fast-clock", {"start": NOW + CLOCK_SKEW}),
    ("the-last-moment", {"end": NOW}),
    ("without-an-end", {"end": None}),
)
def test_what_is_accepted(changes):
    assert verify(respond(**changes)).status is CertificateStatus.GOOD


@each(
    "status, reason, found",
    (REVOKED, None, CertificateStatus.REVOKED),
    (REVOKED, x509.ReasonFlags.key_compromise, CertificateStatus.REVOKED),
    (REVOKED, x509.ReasonFlags.superseded, CertificateStatus.REVOKED),
    (REVOKED, x509.ReasonFlags.certificate_hold, CertificateStatus.HOLD),
    (ocsp.OCSPCertStatus.UNKNOWN, None, CertificateStatus.UNKNOWN),
)
def test_what_is_not_good(status, reason, found):
    answer = verify(respond(status=status, reason=reason))
    assert answer.status is found
    assert answer.reason == (reason.value if reason else "")


def flipped(data, needle):
    """`data` with one bit changed behind `needle`."""
    at = data.index(needle) + len(needle) + 20
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def responder(issuer=ISSUER, **changes):
    return issue("Responder", issuer, **{"ca": False, "extra": (OCSP_SIGNING,), **VALID, **changes})


def impostor(name="Responder", **changes):
    return {"by": issue(name, **changes), "certificates": [RESPONDER]}


OTHER = make_authority("Other")
TLS_ONLY = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
ANY_USE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
RSA_KEY = rsa_key(2048)
SIBLING = issue("Sibling", ISSUER, ca=False)


SECOND = timedelta(seconds=1)
WORTHLESS: dict[int, dict[str, dict[str, Any]]] = {
    # Who answered.
    713: {
        "another-cas-responder": {"by": responder(AUTHORITY.root)},
        "the-cas-above": {"by": responder(AUTHORITY.product)},
        "a-strangers-responder": {"by": responder(OTHER.issuer)},
        "self-signed-responder": {"by": responder(None)},
        "forged-responder": {"by": responder(sign_with=new_key())},
        "responder-without-usage": {"by": responder(extra=())},
        "tls-certificate": {"by": responder(extra=((TLS_ONLY, False),))},
        "any-usage": {"by": responder(extra=((ANY_USE, False),))},
        "the-certificate-itself": {"by": SIGNER},
        "the-root": {"by": AUTHORITY.root},
        "responder-not-in-it": {"certificates": []},
        "another-in-it": {"certificates": [ISSUER]},
    },
    # The signature.
    714: {
        "another-key": impostor(),
        "issuers-key-under-the-responders-name": impostor(key=ISSUER.key),
        "responders-key-under-the-issuers-name": impostor("Test L3 GH100", key=RESPONDER.key),
        "rsa": {"by": responder(key=RSA_KEY)},
        "p521": {"by": responder(key=new_key(ec.SECP521R1()))},
        "revoked-by-another-key": {"status": REVOKED, **impostor()},
    },
    # What it speaks of.
    715: {
        "another-certificate": {"certificate": SIBLING},
        "issuers-own": {"certificate": ISSUER, "issuer": AUTHORITY.product},
        "id-hash-that-is-not-accepted": {"id_hash": hashes.SHA512()},
    },
    # When.
    716: {
        "responder-expired": {"by": responder(not_after=NOW - DAY)},
        "expired": {"end": NOW - SECOND},
        "revoked-and-expired": {"status": REVOKED, "end": NOW - SECOND},
        "old": {"start": NOW - YEAR, "end": NOW - 300 * DAY},
        "without-an-end-and-old": {"start": NOW - DEFAULT_LIFE - SECOND, "end": None},
    },
    717: {
        "responder-too-new": {"by": responder(not_before=NOW + DAY, not_after=NOW + YEAR)},
        "from-the-future": {"start": NOW + CLOCK_SKEW + SECOND, "end": NOW + YEAR},
    },
    # Its form.
    711: {
        "critical-extension": {"extensions": ((UNKNOWN, True),)},
        "many-certificates": {"certificates": [RESPONDER] + [SIBLING] * MAX_CERTIFICATES},
    },
}


@forgeries(
    "id, code, changes",
    *((name, code, one) for code, table in WORTHLESS.items() for name, one in table.items()),
)
def test_responses_that_count_for_nothing(code, changes):
    refused(f"ST-ATTS-{code}", respond(**changes))


@pytest.mark.forgery
def test_another_signature_algorithm():
    assert "not ecdsa-with-SHA384" in refused("ST-ATTS-714", respond(algorithm=hashes.SHA256()))


@pytest.mark.forgery
def test_bytes_that_are_no_response():
    good = respond()
    refused("ST-ATTS-711", b"")
    refused("ST-ATTS-711", good[:-1])
    refused("ST-ATTS-711", good + b"\0")
    refused("ST-ATTS-711", bytes(LIMIT + 1))
    assert "the limit is" in refused("ST-ATTS-711", good + bytes(LIMIT))
    assert "the limit" not in refused("ST-ATTS-711", bytes(LIMIT))


@forgeries(
    "status", *[s for s in ocsp.OCSPResponseStatus if s is not ocsp.OCSPResponseStatus.SUCCESSFUL]
)
def test_a_responder_that_does_not_answer(status):
    data = ocsp.OCSPResponseBuilder.build_unsuccessful(status).public_bytes(Encoding.DER)
    assert refused("ST-ATTS-712", data) == status.name.lower()


@pytest.mark.forgery
def test_a_revoked_answer_turned_into_a_good_one():
    revoked = respond(status=REVOKED, named=HASH)
    # revokedInfo [1] with a time becomes the good status [0] of the same length.
    at = revoked.index(b"\xa1\x11\x18\x0f")
    refused("ST-ATTS-711", revoked[:at] + b"\xa0" + revoked[at + 1 :])
    serial = SIGNER.certificate.serial_number.to_bytes(20, "big").lstrip(b"\0")
    refused("ST-ATTS-714", flipped(revoked, serial[:8]))


@pytest.mark.forgery
def test_two_answers_in_one_response():
    """What the library that reads them cannot build: the response of another is put in."""
    good = ocsp.load_der_ocsp_response(respond())

    class Two:
        responses = (good, good)

    from securetrain.evidence.gpu.ocsp import _check_form

    with pytest.raises(AttestationError, match="2 answers, expected one"):
        _check_form(Two(), "x")  # type: ignore[arg-type]


# Nonces.

NONCE = b"\x01" * 32


def test_a_nonce_that_comes_back():
    assert verify(respond(nonce=NONCE), nonce=NONCE).status is CertificateStatus.GOOD


@pytest.mark.forgery
def test_a_nonce_that_does_not_come_back():
    assert "no nonce" in refused("ST-ATTS-718", respond(), nonce=NONCE)
    assert "another" in refused("ST-ATTS-718", respond(nonce=b"\x02" * 32), nonce=NONCE)


@forgeries("changed", "", "serial_number", "issuer_name_hash", "issuer_key_hash")
@each("algorithm", hashes.SHA1(), hashes.SHA256(), hashes.SHA384())
def test_every_part_of_the_id_counts(algorithm, changed):
    builder = ocsp.OCSPRequestBuilder()
    own = builder.add_certificate(SIGNER.certificate, ISSUER.certificate, algorithm).build()
    values: dict[str, Any] = {
        "serial_number": own.serial_number,
        "issuer_name_hash": own.issuer_name_hash,
        "issuer_key_hash": own.issuer_key_hash,
    }
    if changed == "serial_number":
        values[changed] = own.serial_number + 1
    elif changed:
        values[changed] = bytes(algorithm.digest_size)
    data = (
        ocsp.OCSPResponseBuilder()
        .add_response_by_hash(
            **values,
            algorithm=algorithm,
            cert_status=ocsp.OCSPCertStatus.GOOD,
            this_update=NOW,
            next_update=NOW + DAY,
            revocation_time=None,
            revocation_reason=None,
        )
        .responder_id(NAME, ISSUER.certificate)
        .sign(ISSUER.key, hashes.SHA384())
        .public_bytes(Encoding.DER)
    )
    if changed:
        refused("ST-ATTS-715", data)
    else:
        verify(data)


def test_requests():
    data = build_request(SIGNER.certificate, ISSUER.certificate, NONCE)
    request = ocsp.load_der_ocsp_request(data)
    assert request.serial_number == SIGNER.certificate.serial_number
    assert isinstance(request.hash_algorithm, hashes.SHA384)
    assert request.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce == NONCE
    plain = ocsp.load_der_ocsp_request(build_request(SIGNER.certificate, ISSUER.certificate))
    assert len(plain.extensions) == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_code(data):
    vocabulary.refused(AttestationError, "ST-ATTS-71", verify, data)
