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


def respond(
    certificate=SIGNER,
    issuer=ISSUER,
    *,
    by=RESPONDER,
    status=ocsp.OCSPCertStatus.GOOD,
    reason=None,
    start=NOW - DAY / 2,
    end=NOW + DAY / 2,
    id_hash=None,
    named=NAME,
    certificates=None,
    algorithm=None,
    nonce=None,
    extensions=(),
):
    """A response, right in everything that is not said."""
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            certificate.certificate,
            issuer.certificate,
            id_hash or hashes.SHA384(),
            status,
            start,
            end,
            start if status is REVOKED else None,
            reason,
        )
        .responder_id(named, by.certificate)
    )
    included = [by] if certificates is None else certificates
    if included:
        builder = builder.certificates([one.certificate for one in included])
    if nonce is not None:
        builder = builder.add_extension(x509.OCSPNonce(nonce), critical=False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(by.key, algorithm or hashes.SHA384()).public_bytes(Encoding.DER)


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


OTHER = make_authority("Other")
TLS_ONLY = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
ANY_USE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
RSA_KEY = rsa_key(2048)
SIBLING = issue("Sibling", ISSUER, ca=False)


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("code", "changes"),
    [
        # Who answered.
        pytest.param("713", {"by": responder(AUTHORITY.root)}, id="another-cas-responder"),
        pytest.param("713", {"by": responder(AUTHORITY.product)}, id="the-cas-above"),
        pytest.param("713", {"by": responder(OTHER.issuer)}, id="a-strangers-responder"),
        pytest.param("713", {"by": responder(None)}, id="self-signed-responder"),
        pytest.param("713", {"by": responder(sign_with=new_key())}, id="forged-responder"),
        pytest.param("713", {"by": responder(extra=())}, id="responder-without-usage"),
        pytest.param("713", {"by": responder(extra=((TLS_ONLY, False),))}, id="tls-certificate"),
        pytest.param("713", {"by": responder(extra=((ANY_USE, False),))}, id="any-usage"),
        pytest.param("713", {"by": SIGNER}, id="the-certificate-itself"),
        pytest.param("713", {"by": AUTHORITY.root}, id="the-root"),
        pytest.param("713", {"certificates": []}, id="responder-not-in-it"),
        pytest.param("713", {"certificates": [ISSUER]}, id="another-in-it"),
        pytest.param("716", {"by": responder(not_after=NOW - DAY)}, id="responder-expired"),
        pytest.param(
            "717",
            {"by": responder(not_before=NOW + DAY, not_after=NOW + YEAR)},
            id="responder-not-valid-yet",
        ),
        # The signature.
        pytest.param(
            "714", {"by": issue("Responder"), "certificates": [RESPONDER]}, id="another-key"
        ),
        pytest.param(
            "714",
            {"by": issue("Responder", key=ISSUER.key), "certificates": [RESPONDER]},
            id="issuers-key-under-the-responders-name",
        ),
        pytest.param(
            "714",
            {"by": issue("Test L3 GH100", key=RESPONDER.key), "certificates": [RESPONDER]},
            id="responders-key-under-the-issuers-name",
        ),
        pytest.param("714", {"by": responder(key=RSA_KEY)}, id="rsa"),
        pytest.param("714", {"by": responder(key=new_key(ec.SECP521R1()))}, id="p521"),
        # What it speaks of.
        pytest.param("715", {"certificate": SIBLING}, id="another-certificate"),
        pytest.param("715", {"certificate": ISSUER, "issuer": AUTHORITY.product}, id="issuers-own"),
        pytest.param("715", {"id_hash": hashes.SHA512()}, id="id-hash-that-is-not-accepted"),
        # When.
        pytest.param("716", {"end": NOW - timedelta(seconds=1)}, id="expired"),
        pytest.param("716", {"start": NOW - YEAR, "end": NOW - 300 * DAY}, id="old"),
        pytest.param(
            "716",
            {"start": NOW - DEFAULT_LIFE - timedelta(seconds=1), "end": None},
            id="without-an-end-and-old",
        ),
        pytest.param(
            "717",
            {"start": NOW + CLOCK_SKEW + timedelta(seconds=1), "end": NOW + YEAR},
            id="from-the-future",
        ),
        # Its form.
        pytest.param("711", {"extensions": ((UNKNOWN, True),)}, id="critical-extension"),
        pytest.param(
            "711",
            {"certificates": [RESPONDER] + [SIBLING] * MAX_CERTIFICATES},
            id="many-certificates",
        ),
    ],
)
def test_responses_that_count_for_nothing(code, changes):
    refused(f"ST-ATTS-{code}", respond(**changes))


@pytest.mark.forgery
def test_another_signature_algorithm():
    what = refused("ST-ATTS-714", respond(algorithm=hashes.SHA256()))
    assert "not ecdsa-with-SHA384" in what


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


@pytest.mark.forgery
def test_revoked_counts_only_when_it_verifies():
    by = issue("Responder")
    refused("ST-ATTS-714", respond(status=REVOKED, by=by, certificates=[RESPONDER]))
    refused("ST-ATTS-716", respond(status=REVOKED, end=NOW - timedelta(seconds=1)))


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
