# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Genuine reports of Hopper and Blackwell GPUs and LS10 switches, as NVIDIA publishes them."""

import base64
import collections
import functools
import json
from datetime import UTC, datetime

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.report import Architecture, verify_device
from securetrain.evidence.gpu.topology import check_fabric
from securetrain.evidence.node_evidence import DeviceEvidence, DeviceKind
from securetrain.identity import paths
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.tables import forgeries
from tests.vocabulary import refused

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SDK = "NVIDIA__attestation-sdk/"
SAMPLES = SDK + "nv-attestation-sdk-cpp/unit-tests/testdata/sample_attestation_data/"
HGX = "NVIDIA__nvtrust/guest_tools/ppcie-verifier-sdk-cpp/tests/data/"
BAD = "InvalidSignature"


def text_files():
    return vectors("NVIDIA__*/**/*AttestationReport*.txt")


def json_files():
    return [
        name
        for name in vectors("NVIDIA__*/**/*evidence*/*.json") + vectors("NVIDIA__*/**/*evid*.json")
        if "claims" not in name
    ]


@functools.cache
def genuine():
    """Every genuine (name, evidence, nonce)."""
    found = []
    for name in sorted(set(json_files())):
        loaded = json.loads(vector(name))
        for number, item in enumerate(loaded if isinstance(loaded, list) else [loaded]):
            found.append((f"{name}[{number}]", *from_json(item)))
    found += [(name, *from_text(name, chain_of(name))) for name in text_files() if BAD not in name]
    return found


def from_json(item):
    kind = DeviceKind.SWITCH if item["arch"] == "LS10" else DeviceKind.GPU
    evidence = DeviceEvidence(
        kind=kind,
        report=base64.b64decode(item["evidence"]),
        certificates=to_der(base64.b64decode(item["certificate"])),
    )
    return evidence, bytes.fromhex(item["nonce"])


def from_text(name, chain):
    raw = bytes.fromhex(vector(name).decode().strip())
    kind = DeviceKind.SWITCH if "switch" in name.rpartition("/")[2] else DeviceKind.GPU
    evidence = DeviceEvidence(kind=kind, report=raw, certificates=to_der(vector(chain)))
    return evidence, raw[4:36]


def chain_of(name):
    return name.replace("AttestationReport", "CertChain").replace(BAD, "")


def to_der(pem):
    return tuple(
        certificate.public_bytes(Encoding.DER)
        for certificate in x509.load_pem_x509_certificates(pem)
    )


def verify(evidence, nonce, **changes):
    return verify_device(evidence, nonce=nonce, **{"now": NOW, **changes})


@needs_vectors
def test_all_genuine_reports_verify():
    families = collections.defaultdict(set)
    for name, evidence, nonce in genuine():
        state = verify(evidence, nonce, where=name)
        assert state.nonce == nonce
        assert state.kind is evidence.kind
        assert len(state.pdi) == 16
        families[state.architecture].add(state.pdi)
    assert len(genuine()) == 31
    assert {family: len(devices) for family, devices in families.items()} == {
        Architecture.HOPPER: 12,
        Architecture.BLACKWELL: 1,
        Architecture.LS10: 5,
    }


@needs_vectors
@pytest.mark.forgery
def test_reports_with_an_invalid_signature_are_refused():
    names = [name for name in text_files() if BAD in name]
    assert len(names) == 2
    for name in names:
        evidence, nonce = from_text(name, chain_of(name))
        refused(AttestationError, "ST-ATTS-603", verify, evidence, nonce)


@needs_vectors
def test_what_devices_say_is_read():
    states = {
        name.rpartition("/")[2]: verify(evidence, nonce) for name, evidence, nonce in genuine()
    }
    blackwell = states["blackwellAttestationReport.txt"]
    assert (blackwell.driver, blackwell.vbios) == ("575.32", "97.00.88.00.0F")
    assert blackwell.mode is Mode.UNSTATED
    gpu = states["gpu_evidence.json[0]"]
    assert (gpu.driver, gpu.vbios, gpu.mode) == ("590.12", "96.00.A5.00.01", Mode.PPCIE)
    assert gpu.claims.project == "G520"
    assert states["evidence_hopper_590_12.json[0]"].mode is Mode.PPCIE
    assert states["switch_evidence.json[0]"].claims.locked


@needs_vectors
def test_a_ueid_is_the_one_that_tokens_carry():
    """hopperClaimsv3: the token that NVIDIA's service made of this device's report."""
    claims = json.loads(vector(SAMPLES + "hopperClaimsv3_decoded.json"))["GPU-0"]
    ueids = {verify(evidence, nonce).ueid for _, evidence, nonce in genuine()}
    assert claims["ueid"] in ueids


def board():
    for name in ("gpu_evidence.json", "switch_evidence.json"):
        for item in json.loads(vector(HGX + name)):
            yield from_json(item)


@needs_vectors
def test_the_board_of_eight_gpus_and_four_switches_closes():
    cache = paths.Links()
    states = [verify(evidence, nonce, cache=cache) for evidence, nonce in board()]
    fabric = check_fabric(states, gpus=8, switches=4)
    assert fabric.closed
    assert fabric.mode is Mode.PPCIE
    assert len(set(fabric.gpus + fabric.switches)) == 12
    assert len(cache) == 12 * 2 + 2 + 1 + 1, "FMC and BROM each, two ICAs, one family, one root"


@needs_vectors
@forgeries("missing", *range(12))
def test_the_board_less_a_device_is_refused(missing):
    states = [verify(evidence, nonce) for evidence, nonce in board()]
    del states[missing]
    gpus, switches = (7, 4) if missing < 8 else (8, 3)
    with pytest.raises(AttestationError) as caught:
        check_fabric(states, gpus=gpus, switches=switches)
    assert caught.value.code == ("ST-ATTS-634" if missing < 8 else "ST-ATTS-633")


@needs_vectors
@pytest.mark.forgery
def test_the_board_with_a_gpu_of_another_node_is_refused():
    states = [verify(evidence, nonce) for evidence, nonce in board()]
    stranger = next(
        state
        for state in (verify(evidence, nonce) for _, evidence, nonce in genuine())
        if state.kind is DeviceKind.GPU and state.pdi not in {known.pdi for known in states}
    )
    with pytest.raises(AttestationError) as caught:
        check_fabric([stranger, *states[1:]], gpus=8, switches=4)
    assert caught.value.code == "ST-ATTS-635"


@needs_vectors
@pytest.mark.forgery
def test_genuine_devices_dressed_as_another_kind_are_refused():
    for _, evidence, nonce in genuine():
        other = DeviceKind.GPU if evidence.kind is DeviceKind.SWITCH else DeviceKind.SWITCH
        with pytest.raises(AttestationError) as caught:
            verify(msgspec.structs.replace(evidence, kind=other), nonce)
        assert caught.value.code == "ST-ATTS-615"


@needs_vectors
@pytest.mark.forgery
def test_another_nonce_is_refused():
    for _, evidence, _ in genuine():
        refused(AttestationError, "ST-ATTS-604", verify, evidence, bytes(32))


@needs_vectors
@forgeries(
    "id, status, code",
    ("hold", CertificateStatus.HOLD, 611),
    ("revoked", CertificateStatus.REVOKED, 610),
)
def test_a_certificate_on_hold_is_told_from_a_revoked_one(status, code):
    """The hold itself is known to NVIDIA's OCSP responder alone; what it says is respected."""
    name = SDK + "common-test-data/serialized_test_evidence/hopper_evidence_cert_hold.json"
    evidence, nonce = from_json(json.loads(vector(name))[0])
    held = x509.load_der_x509_certificate(evidence.certificates[1])

    def lookup(certificate, issuer):
        return status if certificate == held else CertificateStatus.GOOD

    verify(evidence, nonce, status=lambda *_: CertificateStatus.GOOD)
    error = refused(AttestationError, f"ST-ATTS-{code}", verify, evidence, nonce, status=lookup)
    assert "BROM" in error.where


@needs_vectors
@forgeries(
    "year, code, role", (2020, 608, "FMC"), (2021, 608, "ICA"), (2022, None, ""), (9999, None, "")
)
def test_certificates_have_their_time(year, code, role):
    """From the year that the youngest of the four shared and own certificates was made in."""
    evidence, nonce = next(iter(board()))
    now = datetime(year, 6, 1, tzinfo=UTC)
    if code is None:
        assert verify(evidence, nonce, now=now)
        return
    error = refused(AttestationError, f"ST-ATTS-{code}", verify, evidence, nonce, now=now)
    assert role in error.where


def distinct():
    """One genuine piece of evidence for each device."""
    return {evidence.certificates[0]: (evidence, nonce) for _, evidence, nonce in genuine()}


@needs_vectors
@pytest.mark.forgery
def test_altered_copies_of_every_report_are_refused():
    cache = paths.Links()
    for evidence, nonce in distinct().values():
        verify(evidence, nonce, cache=cache)
        size = len(evidence.report)
        for offset in [*range(0, 46, 3), *range(46, size - 1, size // 50), size - 1]:
            altered = flipped(evidence.report, offset)
            with pytest.raises(AttestationError) as caught:
                verify(msgspec.structs.replace(evidence, report=altered), nonce, cache=cache)
            assert caught.value.code in {"ST-ATTS-601", "ST-ATTS-603", "ST-ATTS-604"}


@needs_vectors
@pytest.mark.forgery
def test_altered_copies_of_every_certificate_are_refused():
    cache = paths.Links()
    for evidence, nonce in distinct().values():
        verify(evidence, nonce, cache=cache)
        for number, der in enumerate(evidence.certificates):
            for offset in range(number, len(der), len(der) // 20):
                chain = list(evidence.certificates)
                chain[number] = flipped(der, offset)
                altered = msgspec.structs.replace(evidence, certificates=tuple(chain))
                with pytest.raises(AttestationError) as caught:
                    verify(altered, nonce, cache=cache)
                assert caught.value.code in {"ST-ATTS-605", "ST-ATTS-606", "ST-ATTS-609"}


def flipped(data, offset):
    altered = bytearray(data)
    altered[offset] ^= 1 << offset % 8
    return bytes(altered)
