# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""TDX quotes up to Intel's root; `test_honest_guests` is the control of all forgeries."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.tdx import TdxReference, authenticate, claimed_platform, verify_tdx
from securetrain.evidence.tee.tdx_collateral import TcbStatus
from securetrain.evidence.tee.tdx_quote import parse_quote
from tests import vocabulary
from tests.evidence.tee import forge
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import DAY, NOW, flip, p256_key, p384_key, tlv
from tests.evidence.tee.forge_intel import quote, refused, sgx_extension, verify
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

OTHER = p256_key("x")
PROCESSOR_CA = "Intel SGX PCK Processor CA"
OUT_OF_DATE = [
    ("expired", {"start": NOW - 9 * DAY, "end": NOW - DAY}),
    ("not-yet", {"start": NOW + DAY, "end": NOW + 9 * DAY}),
]


@each("version, body_type", (4, 3), (5, 2), (5, 3))
def test_honest_guests(version, body_type):
    state = verify(quote(version=version, body_type=body_type))
    assert state.version == version
    assert state.rtmrs == intel.RTMRS
    assert state.report.mr_td == intel.MR_TD
    assert state.fmspc == intel.FMSPC
    assert state.ppid == intel.PPID.hex()
    assert state.ca == "platform"
    assert state.tcb.status is TcbStatus.UP_TO_DATE
    assert state.evaluation == 18
    assert state.collateral_expires == NOW + DAY


def test_when_collateral_ends():
    long = NOW + 90 * DAY
    lists = {"root_crl": intel.root_crl(end=long), "pck_crl": intel.pck_crl(end=long)}
    assert verify(collateral=intel.collateral(**lists)).collateral_expires.day == 20
    lists["pck_crl"] = intel.pck_crl(end=NOW + 2 * DAY)
    assert verify(collateral=intel.collateral(**lists)).collateral_expires == NOW + 2 * DAY


def test_a_platform_certified_by_the_other_ca():
    pem = forge.pem(intel.pck(issuer=PROCESSOR_CA), intel.pck_ca(PROCESSOR_CA), intel.root())
    collateral = intel.collateral(pck_crl=intel.pck_crl(issuer=PROCESSOR_CA))
    assert verify(quote(chain=pem), collateral=collateral).ca == "processor"


def test_what_a_quote_claims():
    platform = claimed_platform(intel.good_quote())
    assert (platform.fmspc, platform.ca) == (intel.FMSPC, "platform")
    assert claimed_platform(quote(chain=forge.pem(intel.pck(issuer="x")))).ca == "?"
    vocabulary.refused(AttestationError, "ST-ATTS-502", claimed_platform, quote(chain=b""))


def test_a_platform_without_a_servers_fields():
    chain = pem_with(pck=intel.pck(sgx_extension(server=False)))
    assert verify(quote(chain=chain)).ppid == intel.PPID.hex()


# The three signatures.


def test_padding_changes_nothing():
    assert verify(intel.good_quote() + bytes(3000)) == verify()


@forgeries("offset", 28, 40, 48, 64, 112, 160, 168, 176, 184, 232, 376, 568, 631)
def test_a_changed_header_or_td_report(offset):
    refused("ST-ATTS-503", "TD report", data=flip(intel.good_quote(), offset))


@forgeries(
    "offset, where",
    (636, "TD report"),
    (636 + 63, "TD report"),
    (770, "QE report"),
    (770 + 48, "QE report"),
    (770 + 128, "QE report"),
    (770 + 320, "QE report"),
    (770 + 384, "QE report"),
    (770 + 384 + 63, "QE report"),
)
def test_a_changed_signature_or_report_of_the_enclave(offset, where):
    refused("ST-ATTS-503", where, "does not verify", data=flip(intel.good_quote(), offset))


GOOD = intel.good_quote()
VOUCHED = GOOD[:636] + quote(attestation_key=OTHER)[636 : 636 + 128] + GOOD[636 + 128 :]
LONGER = parse_quote(GOOD).qe_report.report_data[:32] + b"\x01" * 32
OTHER_POINT = {"attestation_key": OTHER, "point": intel.point(p256_key("attestation"))}


@forgeries(
    "id, data, where, text",
    ("vouched by zeros", quote(vouched=bytes(64)), "TDX quote", ""),
    ("vouched by ones", quote(vouched=b"\xff" * 64), "TDX quote", ""),
    ("another key's point", quote(**OTHER_POINT), "TDX quote", ""),
    ("another PCK", quote(pck_key=OTHER), "TDX quote", ""),
    ("a point of ones", quote(point=b"\x01" * 64), "TDX quote", ""),
    ("a point of zeros", quote(point=bytes(64)), "TDX quote", ""),
    ("a key that nobody vouches for", VOUCHED, "REPORTDATA", "another key"),
    ("more report data", quote(vouched=LONGER), "REPORTDATA", ""),
    ("other data", flip(GOOD, 770 + 384 + 64 + 2), "REPORTDATA", ""),
    ("off the curve", quote(point=b"\x07" * 64), "attestation key", "not a point"),
)
def test_signatures_that_do_not_hold_one_another(data, where, text):
    refused("ST-ATTS-503", where, text, data=data)


# The PCK's chain.


def pem_with(**certificates) -> bytes:
    made = {"pck": intel.pck(), "ca": intel.pck_ca(), "root": intel.root(), **certificates}
    return forge.pem(made["pck"], made["ca"], made["root"])


def refused_chain(code, where, text="", **certificates):
    refused(code, where, text, data=quote(chain=pem_with(**certificates)))


BY_PCK_CA, BY_ROOT = "is not signed by the PCK CA", "is not signed by the SGX Root CA"
NO_PCK = "is not the certificate of a platform's PCK"
# The same root certifies CAs for other purposes.
PURPOSE = "Intel SGX Other CA"


@forgeries(
    "where, text, certificates",
    ("PCK", BY_PCK_CA, {"pck": intel.pck(signer=OTHER)}),
    ("PCK", BY_PCK_CA, {"pck": intel.pck(signer=p256_key("intel-root"))}),
    ("PCK", BY_PCK_CA, {"pck": intel.pck(hash_algorithm=hashes.SHA384())}),
    ("PCK", "does not name the PCK CA", {"pck": intel.pck(issuer="x")}),
    ("PCK", "is a CA", {"pck": intel.pck(ca=True)}),
    ("PCK", NO_PCK, {"pck": intel.pck(subject="Intel SGX TCB Signing")}),
    ("PCK", NO_PCK[:35], {"pck": intel.pck(issuer=PURPOSE), "ca": intel.pck_ca(PURPOSE)}),
    ("PCK CA", BY_ROOT, {"ca": intel.pck_ca(signer=OTHER)}),
    ("PCK CA", "may not sign certificates", {"ca": intel.pck_ca(ca=False)}),
    ("PCK CA", "may not sign", {"ca": intel.pck_ca(may_sign_certificates=False)}),
)
def test_chains_that_intel_did_not_certify(where, text, certificates):
    refused_chain("ST-ATTS-504", where, text, **certificates)


@pytest.mark.forgery
def test_a_root_that_is_not_pinned():
    root = intel.root(signer=OTHER, key=OTHER)
    certificates = {"ca": intel.pck_ca(signer=OTHER), "root": root}
    refused_chain("ST-ATTS-504", "SGX Root CA", "the pinned root", **certificates)
    refused("ST-ATTS-504", "SGX Root CA", "the pinned root", root="00" * 32)


@forgeries("id, dates", *OUT_OF_DATE)
def test_certificates_out_of_date(dates):
    refused_chain("ST-ATTS-505", "PCK", pck=intel.pck(**dates))
    refused_chain("ST-ATTS-505", "PCK CA", ca=intel.pck_ca(**dates))
    refused_chain("ST-ATTS-505", "SGX Root CA", root=intel.root(**dates))


@forgeries("id, key", ("p384", p384_key("pck")), ("rsa", forge.rsa_key("x")))
def test_a_pck_of_another_kind(key):
    refused_chain("ST-ATTS-503", "QE report", pck=intel.pck(key=key))


@forgeries(
    "id, chain",
    ("none", b""),
    ("two", forge.pem(intel.pck(), intel.pck_ca())),
    ("four", forge.pem(intel.pck(), intel.pck_ca(), intel.root(), intel.root())),
    ("zeros", forge.pem(intel.pck(), intel.pck_ca(), intel.root()) + b"\0\0"),
    ("junk", b"x" + forge.pem(intel.pck(), intel.pck_ca(), intel.root())),
)
def test_chains_of_another_form(chain):
    refused("ST-ATTS-502", "PCK certificate chain", data=quote(chain=chain))


@forgeries(
    "extension",
    b"",
    b"\x30\x00",
    b"\x04\x00",
    sgx_extension() + b"\0",
    sgx_extension(ppid=bytes(15)),
    sgx_extension(pce_id=bytes(3)),
    sgx_extension(fmspc="50806f0000"),
    sgx_extension(ppid_oid="9"),
    sgx_extension(svns=intel.SVNS[:15]),
    sgx_extension(svns=(-1 + (1 << 20), *intel.SVNS[1:])),
    sgx_extension(pce_svn=1 << 16),
    sgx_extension(more_svns=intel.pair("2.1", forge.der_int(99))),
    sgx_extension(svns=(*intel.SVNS[:15], 0)).replace(tlv(0x0A, b"\x01"), b"\x0a\x02\x01"),
)
def test_extensions_that_describe_no_platform(extension):
    refused_chain("ST-ATTS-502", "PCK", pck=intel.pck(extension))


# Revocation, collateral, TCB.


def refused_collateral(code, where="", text="", **changes):
    return refused(code, where, text, collateral=intel.collateral(**changes))


def test_a_list_of_other_platforms():
    assert verify(collateral=intel.collateral(pck_crl=intel.pck_crl([20, 22])))


@forgeries(
    "id, code, where, text, changes",
    ("revoked", 506, "PCK", "was revoked", {"pck_crl": intel.pck_crl([1, 21])}),
    ("revoked CA", 506, "PCK CA", "was revoked", {"root_crl": intel.root_crl([20])}),
    ("forged", 507, "PCK CRL", "not signed by the CA", {"pck_crl": intel.pck_crl(signer=OTHER)}),
    ("processor", 507, "PCK CRL", "of another CA", {"pck_crl": intel.pck_crl(issuer=PROCESSOR_CA)}),
    ("root", 507, "PCK CRL", "of another CA", {"pck_crl": intel.root_crl()}),
    *(
        (name, 505, "PCK CRL", "", {"pck_crl": intel.pck_crl(**dates)})
        for name, dates in OUT_OF_DATE
    ),
    ("family", 511, "fmspc", "", {"tcb_info": intel.tcb_response(fmspc="90C06F000000")}),
    ("PCE", 511, "pceId", "", {"tcb_info": intel.tcb_response(pceId="0001")}),
)
def test_collateral_that_refuses_a_platform(code, where, text, changes):
    refused_collateral(f"ST-ATTS-{code}", where, text, **changes)


@forgeries(
    "field, make, where",
    ("tcb_info", intel.tcb_response, "tcbInfo"),
    ("qe_identity", intel.qe_response, "enclaveIdentity"),
)
def test_collateral_of_before_a_tcb_recovery(field, make, where):
    assert verify(rules={"min_evaluation": 18})
    collateral = intel.collateral(**{field: make(tcbEvaluationDataNumber=17)})
    assert verify(collateral=collateral)
    rules = {"min_evaluation": 18}
    refused("ST-ATTS-510", where, "17, the reference asks", collateral=collateral, rules=rules)


@forgeries("status", *[s.value for s in TcbStatus if s is not TcbStatus.REVOKED])
def test_statuses_are_the_callers_to_accept(status):
    if status.startswith("TDRelaunch"):
        levels = [intel.level("ConfigurationNeeded" if "Configuration" in status else "UpToDate")]
        names = [intel.module(1, [intel.svn_level(6), intel.svn_level(4, "OutOfDate")])]
        info = intel.tcb_response(tcbLevels=levels, tdxModuleIdentities=names)
        data = quote(version=5, td={"svns2": bytes([6, 1, 7, *bytes(13)])})
    else:
        info, data = intel.tcb_response(tcbLevels=[intel.level(status)]), intel.good_quote()
    collateral = intel.collateral(tcb_info=info)
    others = {s.value for s in TcbStatus} - {status}
    assert verify(data, collateral=collateral, accepted_statuses=(status,)).tcb.status == status
    refused("ST-ATTS-514", "TCB", status, data, collateral=collateral, accepted_statuses=others)
    refused("ST-ATTS-514", text="none", data=data, collateral=collateral, accepted_statuses=())


@pytest.mark.forgery
def test_a_revoked_platform_is_never_accepted():
    collateral = intel.collateral(tcb_info=intel.tcb_response(tcbLevels=[intel.level("Revoked")]))
    every = tuple(TcbStatus)
    refused("ST-ATTS-514", text="Revoked", collateral=collateral, accepted_statuses=every)


@pytest.mark.forgery
def test_a_refusal_names_status_and_advisories():
    chain = pem_with(pck=intel.pck(sgx_extension(svns=(5, 5, *intel.SVNS[2:]))))
    error = refused("ST-ATTS-514", data=quote(chain=chain, enclave={"svn": 5}))
    for text in ("OutOfDate", "INTEL-SA-00001, INTEL-SA-00002", "quoting enclave OutOfDate"):
        assert text in error.what


@pytest.mark.forgery
def test_parts_that_are_not_intels():
    refused("ST-ATTS-512", "MRSIGNER", data=quote(enclave={"signer": "ab" * 32}))
    refused("ST-ATTS-513", "MRSIGNERSEAM", data=quote(td={"seam_signer": b"\x01" * 48}))
    refused("ST-ATTS-515", "PCK", data=quote(td={"svns": b"\x05\x01\x06" + bytes(13)}))


# Real evidence.

GO_TDX = "google__go-tdx-guest/testing/testdata/"
QUOTES = ["tdx_prod_quote_SPR_E4.dat", "quote_v5_sample.dat", "ccel/cos-113-tdx-quote.dat"]
REAL_NOW = datetime(2026, 6, 1, tzinfo=UTC)


@needs_vectors
@each("name", *QUOTES)
def test_genuine_quotes(name):
    data = vector(GO_TDX + name)
    genuine = authenticate(data, now=REAL_NOW)
    assert genuine.platform.ca == "platform"
    assert len(genuine.platform.svns.components) == 16
    late: dict[str, Any] = {"now": datetime(2034, 1, 1, tzinfo=UTC)}
    vocabulary.refused(AttestationError, "ST-ATTS-505", authenticate, data, **late)
    ours: dict[str, Any] = {"now": REAL_NOW, "root": intel.pin()}
    vocabulary.refused(AttestationError, "ST-ATTS-504", authenticate, data, **ours)


@needs_vectors
@forgeries("name", *QUOTES)
def test_no_byte_of_a_genuine_quote_can_change(name):
    data = vector(GO_TDX + name)
    quote_ = parse_quote(data)
    signed, chain = len(quote_.signed), data.index(quote_.pck_chain)
    # The header's four reserved bytes are signed like the rest.
    for offset in [*range(48), *range(48, signed + 4, 7), *range(signed + 4, chain, 3)]:
        with pytest.raises(AttestationError) as caught:
            authenticate(flip(data, offset), now=REAL_NOW)
        assert caught.value.code in {"ST-ATTS-501", "ST-ATTS-503", "ST-ATTS-512"}, offset


@needs_vectors
@pytest.mark.forgery
def test_no_letter_of_a_genuine_chain_can_change():
    data = vector(GO_TDX + QUOTES[0])
    chain = parse_quote(data).pck_chain
    start = data.index(chain)
    letters = [match.start() for match in re.finditer(rb"[A-Za-z0-9+/]", chain)]
    for offset in letters[::9]:
        with pytest.raises(AttestationError) as caught:
            authenticate(flip(data, start + offset), now=REAL_NOW)
        assert caught.value.code in {"ST-ATTS-502", "ST-ATTS-503", "ST-ATTS-504"}, offset


@needs_vectors
@pytest.mark.forgery
def test_a_genuine_quote_with_genuine_collateral_that_nobody_signed():
    data = vector(GO_TDX + QUOTES[0])
    collateral = intel.collateral(
        tcb_info=vector(GO_TDX + "sample_tcbInfo_response"),
        qe_identity=vector(GO_TDX + "sample_qeIdentity_response"),
        tcb_info_chain=b"",
        root_crl=vector(GO_TDX + "rootcrl.der"),
        pck_crl=vector(GO_TDX + "pckcrl"),
    )
    how: dict[str, Any] = {
        "reference": TdxReference(any_platform=True),
        "collateral": collateral,
        "accepted_statuses": ("UpToDate",),
        "report_data": parse_quote(data).report.report_data,
        "now": datetime(2023, 6, 20, tzinfo=UTC),
    }
    vocabulary.refused(AttestationError, "ST-ATTS-509", verify_tdx, data, **how)
