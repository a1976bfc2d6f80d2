# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Revocation lists; `test_a_list` is the control."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.crl import LIMIT, verify_crl
from securetrain.evidence.gpu.ocsp import CLOCK_SKEW
from tests import vocabulary
from tests.evidence.gpu.authority import DAY, NOW, YEAR, issue, make_authority, new_key
from tests.identity.worlds import revocation_list
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

AUTHORITY = make_authority()
SIGNER, ISSUER, PRODUCT = AUTHORITY.signer, AUTHORITY.issuer, AUTHORITY.product
OTHER = issue("another", ISSUER, ca=False)
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
PARTIAL = x509.IssuingDistributionPoint(
    full_name=None,
    relative_name=None,
    only_contains_user_certs=True,
    only_contains_ca_certs=False,
    only_some_reasons=None,
    indirect_crl=False,
    only_contains_attribute_certs=False,
)
INDIRECT = x509.CertificateIssuer([x509.DirectoryName(PRODUCT.certificate.subject)])


def revoke(holder=SIGNER, *extensions) -> x509.RevokedCertificate:
    builder = (
        x509.RevokedCertificateBuilder()
        .serial_number(holder.certificate.serial_number)
        .revocation_date(NOW - DAY)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.build()


def make(
    *entries,
    by=ISSUER,
    sign_with=None,
    start=NOW - DAY,
    end=NOW + DAY,
    algorithm=None,
    extensions=(),
) -> bytes:
    how = {"extensions": extensions, "digest": algorithm or hashes.SHA384()}
    key, name = sign_with or by.key, by.certificate.subject
    return revocation_list(name, key, (start, end), *entries, **how).public_bytes(Encoding.DER)


def verify(data, certificate=SIGNER, issuer=ISSUER, **changes):
    return verify_crl(
        data,
        certificate.certificate,
        issuer.certificate,
        **{"now": NOW, "where": "CRL x", **changes},
    )


def refused(code, data, **changes):
    error = vocabulary.refused(AttestationError, code, verify, data, **changes, names="CRL x")
    return error.what


def test_a_list():
    number = (x509.CRLNumber(7), False)
    for data in (make(), make(revoke(OTHER)), make(extensions=(number,))):
        answer = verify(data)
        assert answer.status is CertificateStatus.GOOD
        assert (answer.reason, answer.from_, answer.until) == ("", NOW - DAY, NOW + DAY)
    verify(make(start=NOW + CLOCK_SKEW, end=NOW + DAY))
    verify(make(end=NOW))


@each(
    "reason, found",
    (None, CertificateStatus.REVOKED),
    (x509.ReasonFlags.ca_compromise, CertificateStatus.REVOKED),
    (x509.ReasonFlags.remove_from_crl, CertificateStatus.REVOKED),
    (x509.ReasonFlags.certificate_hold, CertificateStatus.HOLD),
)
def test_certificates_in_it(reason, found):
    extensions = [(x509.CRLReason(reason), False)] if reason else []
    answer = verify(make(revoke(OTHER), revoke(SIGNER, *extensions)))
    assert answer.status is found
    assert answer.reason == (reason.value if reason else "")


STRANGER = make_authority("Other")
NO_LISTS = issue("Test L3 GH100", PRODUCT, ca=False, key=ISSUER.key)
NO_USAGE = issue("Test L3 GH100", PRODUCT, usage=False, key=ISSUER.key)
P256 = issue("P256", PRODUCT, key=new_key(ec.SECP256R1()))
P256_LEAF = issue("leaf", P256, ca=False)
RSA = issue("RSA", key=rsa_key(2048))
RSA_LEAF = issue("leaf", RSA, ca=False)


@forgeries(
    "id, code, data, changes",
    ("by-the-ca-above", "713", make(by=PRODUCT), {}),
    ("by-a-stranger", "713", make(by=STRANGER.issuer), {}),
    ("issuer-may-not-sign-lists", "713", make(), {"issuer": NO_LISTS}),
    ("issuer-without-key-usage", "713", make(), {"issuer": NO_USAGE}),
    ("another-key", "714", make(sign_with=new_key()), {}),
    ("sha256", "714", make(algorithm=hashes.SHA256()), {}),
    ("p256-issuer", "714", make(by=P256), {"issuer": P256, "certificate": P256_LEAF}),
    ("rsa-issuer", "714", make(by=RSA), {"issuer": RSA, "certificate": RSA_LEAF}),
    ("another-issuers-certificate", "715", make(), {"certificate": ISSUER}),
    ("expired", "716", make(end=NOW - timedelta(seconds=1)), {}),
    ("and-revoked", "716", make(revoke(), end=NOW - timedelta(seconds=1)), {}),
    (
        "from-the-future",
        "717",
        make(start=NOW + CLOCK_SKEW + timedelta(seconds=1), end=NOW + YEAR),
        {},
    ),
    ("critical-extension", "711", make(extensions=((UNKNOWN, True),)), {}),
    ("partial-list", "711", make(extensions=((PARTIAL, True),)), {}),
    ("delta-list", "711", make(extensions=((x509.DeltaCRLIndicator(3), True),)), {}),
    ("delta-list-not-critical", "711", make(extensions=((x509.DeltaCRLIndicator(3), False),)), {}),
    ("indirect-entry", "711", make(revoke(SIGNER, (INDIRECT, True))), {}),
    ("truncated", "711", make()[:-1], {}),
    ("trailing", "711", make() + b"\0", {}),
)
def test_lists_that_count_for_nothing(code, data, changes):
    refused(f"ST-ATTS-{code}", data, **changes)


@pytest.mark.forgery
def test_size():
    assert "the limit is" in refused("ST-ATTS-711", make() + bytes(LIMIT))
    assert "the limit is" not in refused("ST-ATTS-711", bytes(LIMIT))


@pytest.mark.forgery
def test_an_entry_taken_out():
    data = make(revoke())
    serial = SIGNER.certificate.serial_number.to_bytes(20, "big").lstrip(b"\0")
    assert serial in data
    changed = serial[:-1] + bytes([serial[-1] ^ 1])
    refused("ST-ATTS-714", data.replace(serial, changed))


def der(tag, body):
    length = [len(body)] if len(body) < 128 else [0x81, len(body)]
    return bytes([tag, *length]) + body


@pytest.mark.forgery
def test_a_list_without_an_end():
    """The library does not make one, so the end is cut out of the DER."""
    data = make()
    end = x509.load_der_x509_crl(data).next_update_utc
    assert end is not None
    field = b"\x17\x0d" + end.strftime("%y%m%d%H%M%SZ").encode()
    signed = x509.load_der_x509_crl(data).tbs_certlist_bytes
    assert field in signed
    tbs = der(0x30, signed[3 if signed[1] > 127 else 2 :].replace(field, b""))
    assert isinstance(ISSUER.key, ec.EllipticCurvePrivateKey)
    signature = ISSUER.key.sign(tbs, ec.ECDSA(hashes.SHA384()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040303")
    data = der(0x30, tbs + algorithm + der(0x03, b"\0" + signature))
    assert "when the next one comes" in refused("ST-ATTS-711", data)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_code(data):
    vocabulary.refused(AttestationError, "ST-ATTS-711", verify, data)
