# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Intel's documents, and documents that are not Intel's."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee import chain
from securetrain.evidence.tee import tdx_collateral as module
from securetrain.evidence.tee.tdx_collateral import TdxCollateral, open_collateral
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.tee import forge
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import DAY, NOW, flip, p256_key
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

OTHER = p256_key("x")
OUT_OF_DATE = [
    ("expired", {"start": NOW - 9 * DAY, "end": NOW - DAY}),
    ("not-yet", {"start": NOW + DAY, "end": NOW + 9 * DAY}),
]


def opened(now=NOW, root=None, **changes):
    return open_collateral(intel.collateral(**changes), now=now, root=root or intel.pin())


def refused(code, where, text="", **changes):
    error = vocabulary.refused(AttestationError, code, opened, **changes)
    assert where in error.where, error
    assert text in error.what, error


def test_good_collateral():
    good = opened()
    assert good.tcb_info.fmspc.lower() == intel.FMSPC
    assert good.tcb_info.tcb_evaluation_data_number == 18
    assert good.qe_identity.isvprodid == 2
    assert good.expires == NOW + DAY
    ends = datetime(2026, 6, 20, tzinfo=UTC)
    assert opened(root_crl=intel.root_crl(end=NOW + 90 * DAY)).expires == ends


def test_lists_in_pem():
    pem = x509.load_der_x509_crl(intel.root_crl()).public_bytes(Encoding.PEM)
    assert opened(root_crl=pem)


def test_fields_that_intel_adds_later():
    assert opened(tcb_info=intel.tcb_response(more={"a": [1]}))
    assert opened(qe_identity=intel.qe_response(more={"a": [1]}))


def test_spelling_of_the_answer():
    body = intel.tcb_response()
    assert opened(tcb_info=b" " + body.replace(b',"signature"', b' ,\n "signature"') + b"\n")


DOCUMENTS = [
    ("tcb-info", "tcb_info", "tcbInfo", intel.tcb_response),
    ("qe-identity", "qe_identity", "enclaveIdentity", intel.qe_response),
]


@forgeries("id, field, name, make", *DOCUMENTS)
def test_documents_without_the_certificate_that_signed_them(field, name, make):
    refused("ST-ATTS-509", name, "without the certificate", **{f"{field}_chain": b""})


@forgeries("id, field, name, make", *DOCUMENTS)
def test_documents_signed_by_somebody_else(field, name, make):
    refused("ST-ATTS-509", name, "is not signed by Intel", **{field: make(OTHER)})


@forgeries("id, field, name, make", *DOCUMENTS)
def test_documents_that_were_changed(field, name, make):
    body = make()
    for before, after in ((b'"UpToDate"', b'"Revoked" '), (b'"version"', b' "version"')):
        assert before in body
        refused("ST-ATTS-509", name, **{field: body.replace(before, after, 1)})
    offset = body.index(b'"signature":"') + 13
    digit = b"0" if body[offset : offset + 1] != b"0" else b"1"
    refused("ST-ATTS-509", name, **{field: body[:offset] + digit + body[offset + 1 :]})


@forgeries("id, field, name, make", *DOCUMENTS)
def test_a_second_object_beside_the_signed_one(field, name, make):
    """The last of two objects counts, and it is the one whose signature is checked."""
    key = name.encode()
    good, forged = make(), make(tcbEvaluationDataNumber=99)
    inner = forged[forged.index(b":") + 1 : forged.index(b',"signature"')]
    twice = b'{"%s":%s,' % (key, inner) + good[1:]
    assert opened(**{field: twice}).tcb_info.tcb_evaluation_data_number == 18
    refused("ST-ATTS-509", name, **{field: good[:-1] + b',"%s":%s}' % (key, inner)})
    refused("ST-ATTS-508", name, "fields", **{field: b'{"x":1,' + good[1:]})


@forgeries("id, field, name, make", *DOCUMENTS)
@each(
    "id, dates, good",
    ("expired", {"nextUpdate": "2026-05-31T00:00:00Z"}, False),
    ("not-yet", {"issueDate": "2026-06-02T00:00:00Z"}, False),
    ("first", {"issueDate": "2026-06-01T12:00:00Z"}, True),
    ("last", {"nextUpdate": "2026-06-01T12:00:00Z"}, True),
)
def test_documents_out_of_date(field, name, make, dates, good):
    if good:
        assert opened(**{field: make(**dates)})
    else:
        refused("ST-ATTS-510", name, "is good from", **{field: make(**dates)})


@pytest.mark.forgery
def test_forged_is_not_called_expired():
    body = intel.tcb_response(OTHER, nextUpdate="2026-05-31T00:00:00Z")
    refused("ST-ATTS-509", "tcbInfo", tcb_info=body)


@forgeries(
    "field, changes",
    ("tcb_info", {"id": "SGX"}),
    ("tcb_info", {"version": 2}),
    ("tcb_info", {"version": 4}),
    ("tcb_info", {"tcbType": 1}),
    ("tcb_info", {"fmspc": "50806f"}),
    ("tcb_info", {"pceId": None}),
    ("tcb_info", {"issueDate": "2026-05-25T00:00:00"}),
    ("tcb_info", {"nextUpdate": "soon"}),
    ("tcb_info", {"tdxModule": None}),
    ("tcb_info", {"tdxModuleIdentities": [intel.module(id="QE_01")]}),
    ("tcb_info", {"tcbLevels": [intel.level("Fine")]}),
    ("tcb_info", {"tcbLevels": [intel.level(svns=(1,) * 15)]}),
    ("tcb_info", {"tcbLevels": [intel.level(svns=(1,) * 17)]}),
    ("tcb_info", {"tcbLevels": [intel.level(td=(0,) * 17)]}),
    ("tcb_info", {"tcbLevels": [intel.level(td=(256,))]}),
    ("tcb_info", {"tcbLevels": [intel.level(pce=-1)]}),
    ("tcb_info", {"tcbLevels": [intel.level()] * 257}),
    ("qe_identity", {"id": "QE"}),
    ("qe_identity", {"version": 1}),
    ("qe_identity", {"mrsigner": "ab"}),
    ("qe_identity", {"attributesMask": "ff"}),
    ("qe_identity", {"tcbLevels": [intel.svn_level(1 << 16)]}),
)
def test_documents_of_another_form(field, changes):
    make = intel.tcb_response if field == "tcb_info" else intel.qe_response
    refused(
        "ST-ATTS-508", "tcbInfo" if field == "tcb_info" else "enclave", **{field: make(**changes)}
    )


@each(
    "body",
    b"",
    b"{}",
    b"[]",
    b"{",
    b'{"tcbInfo":{},"signature":"00"}',
    b'{"tcbInfo":{}}',
    b'{"signature":"%s"}' % (b"00" * 64),
    b'{"tcbInfo":%s,"signature":"%s"}' % (b"[" * 5000 + b"]" * 5000, b"00" * 64),
    bytes((1 << 20) + 1),
    intel.tcb_response() + b"x",
    intel.qe_response(),
    b'{"tcbInfo":{"id":"\xff"},"signature":"%s"}' % (b"00" * 64),
)
def test_bodies_that_are_no_document(body):
    refused("ST-ATTS-508", "tcbInfo", tcb_info=body)


# The chain of the signing certificate.


def refused_signer(code, where, text="", **certificates):
    made = {"signing": intel.tcb_signing(), "root": intel.root(), **certificates}
    pem = forge.pem(made["signing"], made["root"])
    refused(code, where, text, tcb_info_chain=pem)
    refused(code, where, text, qe_identity_chain=pem)


@forgeries(
    "options, text",
    ({"signer": OTHER}, "is not signed by the SGX Root CA"),
    ({"ca": True}, "is a CA"),
    ({"subject": "Intel SGX PCK Certificate"}, "is no 'Intel SGX TCB Signing'"),
    ({"extensions": [(forge.NO_USAGE, True)]}, "may not sign"),
)
def test_a_signer_that_is_none(options, text):
    refused_signer(
        "ST-ATTS-504", "TCB signing certificate", text, signing=intel.tcb_signing(**options)
    )


@pytest.mark.forgery
def test_a_root_that_is_not_pinned():
    root = intel.root(signer=OTHER, key=OTHER)
    signing = intel.tcb_signing(signer=OTHER)
    refused_signer("ST-ATTS-504", "SGX Root CA", "the pinned root", signing=signing, root=root)
    refused("ST-ATTS-504", "SGX Root CA", "the pinned root", root=module.ROOT)


@forgeries("id, dates", *OUT_OF_DATE)
def test_certificates_out_of_date(dates):
    refused_signer("ST-ATTS-505", "TCB signing", signing=intel.tcb_signing(**dates))
    refused_signer("ST-ATTS-505", "SGX Root CA", root=intel.root(**dates))


@each(
    "id, pem",
    ("one", forge.pem(intel.tcb_signing())),
    ("der", forge.der(intel.tcb_signing())),
    ("three", forge.pem(intel.tcb_signing(), intel.root(), intel.root())),
    ("garbage", b"x"),
)
def test_chains_of_another_length(pem):
    refused("ST-ATTS-502", "issuer chain of tcbInfo", tcb_info_chain=pem)


# Revocation.


@pytest.mark.forgery
def test_a_revoked_signing_certificate():
    assert opened(root_crl=intel.root_crl([1, 2]))
    refused("ST-ATTS-506", "TCB signing", "was revoked", root_crl=intel.root_crl([1, 22]))


@forgeries("id, dates", *OUT_OF_DATE)
def test_lists_out_of_date(dates):
    refused("ST-ATTS-505", "root CRL", root_crl=intel.root_crl(**dates))


@forgeries(
    "id, crl, text",
    ("empty", b"", "not a revocation list"),
    ("forged", intel.root_crl(signer=OTHER), "not signed by the CA"),
    ("pck", intel.pck_crl(), "of another CA"),
    ("delta", intel.root_crl(extensions=[(x509.DeltaCRLIndicator(1), True)]), "partial"),
)
def test_lists_that_are_not_the_roots(crl, text):
    refused("ST-ATTS-507", "root CRL", text, root_crl=crl)


def test_a_list_of_the_pck_that_is_none():
    refused("ST-ATTS-507", "PCK CRL", pck_crl=b"x")


# Real evidence: without Intel's signing certificate, which is not in the documents.

GO_TDX = "google__go-tdx-guest/"
REAL_NOW = datetime(2023, 6, 20, tzinfo=UTC)


def real(**changes) -> TdxCollateral:
    return intel.collateral(
        tcb_info=vector(GO_TDX + "testing/testdata/sample_tcbInfo_response"),
        qe_identity=vector(GO_TDX + "testing/testdata/sample_qeIdentity_response"),
        tcb_info_chain=b"",
        qe_identity_chain=b"",
        root_crl=vector(GO_TDX + "testing/testdata/rootcrl.der"),
        pck_crl=vector(GO_TDX + "testing/testdata/pckcrl"),
        **changes,
    )


@needs_vectors
@pytest.mark.forgery
def test_genuine_documents_without_the_certificate_that_signed_them():
    error = vocabulary.refused(
        AttestationError, "ST-ATTS-509", open_collateral, real(), now=REAL_NOW
    )
    assert "without the certificate" in error.what


@needs_vectors
@pytest.mark.forgery
def test_no_byte_of_a_genuine_list_can_change():
    root = x509.load_pem_x509_certificate(vector(GO_TDX + "verify/trusted_root.pem"))
    data = vector(GO_TDX + "testing/testdata/rootcrl.der")

    def check(data, now=REAL_NOW):
        crl = chain.load_crl(data, module.INTEL, "root CRL")
        chain.verify_crl(crl, root, now, module.INTEL, "root CRL")

    assert paths.spki_sha256(root) == module.ROOT
    check(data)
    vocabulary.refused(AttestationError, "ST-ATTS-505", check, data, REAL_NOW + timedelta(days=400))
    for offset in range(len(data)):
        vocabulary.refused(AttestationError, "ST-ATTS-507", check, flip(data, offset))
