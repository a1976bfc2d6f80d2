# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Documents from files; what goes in comes out for the verifier, and nothing under a wrong name."""

import hashlib
import json
from datetime import timedelta
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.cache_files import NAMES, add_items, list_cache, read_item
from securetrain.attest.session.cache import CollateralCache, build_cache
from securetrain.attest.session.state import MemoryState
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.collateral import LIMITS, CollateralKind
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.testing.machine import runtime_policy
from tests import vocabulary
from tests.evidence.gpu.authority import make_authority
from tests.evidence.gpu.rimforge import manifest, sign
from tests.evidence.gpu.test_ocsp import respond
from tests.evidence.tee import forge_intel
from tests.evidence.tee.forge import NOW, pem
from tests.evidence.tee.forge_amd import AmdWorld
from tests.tables import items

AMD = AmdWorld()
AUTHORITY = make_authority()
VBIOS = "NV_GPU_VBIOS_1010_0200_882_96005E0001"
RIM = sign(manifest(), AUTHORITY)
KEY = PrivateKey.generate()
SIGNED_BY = [key_text(KEY.public)]
DAY = timedelta(days=1)
POLICY = json.dumps(runtime_policy({"/bin/true": b"true"})).encode()
K = CollateralKind


def tcb_info():
    return forge_intel.good_collateral().tcb_info


FMSPC = forge_intel.tcb_info()["fmspc"].lower()
GOOD = {
    "rim": (K.RIM, VBIOS, RIM),
    "ocsp": (K.OCSP, "ab" * 32, respond()),
    "nvidia-crl": (K.CRL, "ab" * 32, AMD.crl()),
    "amd-crl": (K.CRL, "amd-Milan-VCEK", AMD.crl()),
    "intel-root-crl": (K.CRL, "intel-root", forge_intel.root_crl()),
    "intel-pck-crl": (K.CRL, "intel-platform", forge_intel.pck_crl()),
    "tcb-info": (K.TCB_INFO, FMSPC, tcb_info()),
    "qe-identity": (K.QE_IDENTITY, "tdx", forge_intel.good_collateral().qe_identity),
    "issuer-chain": (K.ISSUER_CHAIN, "tcb-info", forge_intel.signing_chain()),
    "amd-chain": (K.AMD_CHAIN, "Milan-VCEK", pem(AMD.ask(), AMD.ark())),
    "amd-chain-vlek": (K.AMD_CHAIN, "Turin-VLEK", pem(AMD.ask(), AMD.ark())),
    "runtime-policy": (K.RUNTIME_POLICY, "", POLICY),
}
DATED = {"ocsp", "nvidia-crl", "amd-crl", "intel-root-crl", "intel-pck-crl", "tcb-info"} | {
    "qe-identity"
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "document"


def read(path, kind, name, data, now=NOW):
    path.write_bytes(data)
    return read_item(kind, name, path, now, AUTHORITY.roots)


def refused(code, path, document, now=NOW):
    kind, name, data = document
    with pytest.raises((AttestationError, UsageError)) as caught:
        read(path, kind, name, data, now)
    assert caught.value.code == code, caught.value
    return caught.value


@pytest.mark.parametrize("which", GOOD)
def test_a_good_document(path, which):
    kind, name, data = GOOD[which]
    item = read(path, kind, name, data)
    assert (item.kind, item.data, item.fetched) == (kind, data, NOW)
    assert item.id == (name or hashlib.sha256(data).hexdigest())
    assert (item.expires is not None) is (which in DATED)
    assert item.expires is None or item.expires > NOW


def test_every_kind_has_names():
    assert set(NAMES) == set(CollateralKind)
    assert {kind for kind, _, _ in GOOD.values()} == set(CollateralKind)


@pytest.mark.parametrize("which", sorted(DATED))
def test_a_document_that_has_ended(path, which):
    kind, name, data = GOOD[which]
    item = read(path, kind, name, data)
    read(path, kind, name, data, item.expires)
    error = refused("ST-ATTS-739", path, (kind, name, data), item.expires + timedelta(seconds=1))
    assert "good until" in error.what


def test_a_rim_whose_signer_has_ended(path):
    assert read(path, K.RIM, VBIOS, RIM, NOW + timedelta(days=9000)).expires is None


@items(
    "which, name",
    ("rim", ""),
    ("rim", "../NV_GPU_VBIOS"),
    ("rim", "NV_CPU_1"),
    ("rim", "NV_GPU_VBIOS_1010_0200_882_96005E0002"),
    ("rim", "NV_GPU_DRIVER_GH100_590.12"),
    ("ocsp", "ab" * 31),
    ("ocsp", "AB" * 32),
    ("amd-crl", "Milan-VCEK"),
    ("amd-crl", "amd-Milan"),
    ("amd-crl", "intel"),
    ("tcb-info", "tdx"),
    ("tcb-info", "00" * 6),
    ("tcb-info", FMSPC.upper() + "\n"),
    ("qe-identity", "sgx"),
    ("issuer-chain", "qe"),
    ("amd-chain", "Milan"),
    ("amd-chain", "milan-VCEK"),
)
def test_a_name_that_nobody_asks_for(path, which, name):
    kind, _, data = GOOD[which]
    assert refused("ST-ATTS-739", path, (kind, name, data)).where == str(path)


@pytest.mark.parametrize("which", sorted(set(GOOD) - {"rim"}))
@pytest.mark.parametrize("data", [b"", b"noise", b"{}", b"\xff\xfe", b"-----BEGIN X-----"])
def test_something_that_is_no_such_document(path, which, data):
    kind, name, _ = GOOD[which]
    code = {K.AMD_CHAIN: "ST-ATTS-402", K.ISSUER_CHAIN: "ST-ATTS-502"}.get(kind, "ST-ATTS-739")
    if kind is K.RUNTIME_POLICY and data == b"{}":
        code = "ST-ATTS-320"
    refused(code, path, (kind, name, data))


@pytest.mark.forgery
def test_a_rim_that_does_not_verify(path):
    refused("ST-ATTS-703", path, (K.RIM, VBIOS, RIM.replace(b'size="48"', b'size="49"', 1)))
    path.write_bytes(RIM)
    vocabulary.refused(AttestationError, "ST-ATTS-705", read_item, K.RIM, VBIOS, path, NOW)


def test_an_answer_that_is_no_answer(path):
    data = ocsp.OCSPResponseBuilder.build_unsuccessful(ocsp.OCSPResponseStatus.TRY_LATER)
    refused("ST-ATTS-739", path, (K.OCSP, "ab" * 32, data.public_bytes(Encoding.DER)))


def test_a_chain_as_its_header_spells_it(path):
    plain = forge_intel.signing_chain()
    header = quote(plain.decode()).encode()
    assert read(path, K.ISSUER_CHAIN, "qe-identity", header).data == plain


def test_a_runtime_policy_in_an_envelope(path):
    good = dsse.sign(POLICY, "application/vnd.keylime+json", [KEY])
    assert read(path, K.RUNTIME_POLICY, "", good).id == hashlib.sha256(good).hexdigest()
    other = dsse.sign(POLICY, "application/json", [KEY])
    refused("ST-ATTS-739", path, (K.RUNTIME_POLICY, "", other))


def test_a_giant(path):
    refused("ST-USAG-002", path, (K.OCSP, "ab" * 32, bytes(LIMITS[K.OCSP] + 1)))


# The cache.


def test_what_is_put_in_is_found(path, tmp_path):
    folder = tmp_path / "cache"
    items = [read(path, *GOOD[which]) for which in ("rim", "amd-chain", "tcb-info")]
    index = add_items(folder, items, key=KEY, signed_by=SIGNED_BY, now=NOW, state=MemoryState())
    assert (index.version, index.expires) == (1, NOW + timedelta(days=30))
    opened = CollateralCache.open(folder, {KEY.key_id: KEY.public}, NOW)
    assert opened.get(K.RIM, VBIOS) == RIM
    assert opened.has(K.TCB_INFO, FMSPC)
    again = add_items(
        folder, [], key=KEY, signed_by=SIGNED_BY, now=NOW + DAY, lifetime=DAY, state=MemoryState()
    )
    assert (again.version, again.expires) == (2, NOW + 2 * DAY)
    assert [entry.id for entry in again.entries] == [entry.id for entry in index.entries]


def test_a_new_operator_key(path, tmp_path):
    folder, successor = tmp_path / "cache", PrivateKey.generate()
    add_items(
        folder,
        [read(path, *GOOD["rim"])],
        key=KEY,
        signed_by=SIGNED_BY,
        now=NOW,
        state=MemoryState(),
    )
    own = [key_text(successor.public)]
    with pytest.raises(AttestationError, match="ST-ATTS-732"):
        add_items(folder, [], key=successor, signed_by=own, now=NOW, state=MemoryState())
    add_items(folder, [], key=successor, signed_by=SIGNED_BY, now=NOW, state=MemoryState())
    assert list_cache(folder, own, NOW, MemoryState()).index.version == 2


def test_a_listing_tells_what_has_ended(path, tmp_path):
    folder = tmp_path / "cache"
    items = [read(path, *GOOD[which]) for which in ("rim", "amd-crl")]
    add_items(folder, items, key=KEY, signed_by=SIGNED_BY, now=NOW, state=MemoryState())
    fresh = list_cache(folder, SIGNED_BY, NOW, MemoryState())
    assert not fresh.expired
    assert fresh.ended() == ()
    late = list_cache(folder, SIGNED_BY, NOW + 2 * DAY, MemoryState())
    assert not late.expired
    assert late.ended() == ("crl amd-Milan-VCEK",)
    assert list_cache(folder, SIGNED_BY, NOW + 31 * DAY, MemoryState()).expired


def test_a_listing_of_somebody_elses_cache(tmp_path):
    build_cache(tmp_path, [], PrivateKey.generate(), NOW, NOW + DAY)
    with pytest.raises(AttestationError, match="ST-ATTS-732"):
        list_cache(tmp_path, SIGNED_BY, NOW, MemoryState())
    with pytest.raises(AttestationError, match="ST-ATTS-009"):
        list_cache(tmp_path, ["no key"], NOW, MemoryState())
    with pytest.raises(AttestationError, match="ST-ATTS-731"):
        list_cache(tmp_path / "nothing", SIGNED_BY, NOW, MemoryState())


def test_the_platform_is_told_in_both_cases(path):
    answer = json.loads(tcb_info())
    answer["tcbInfo"]["fmspc"] = FMSPC.upper()
    assert read(path, K.TCB_INFO, FMSPC, canonical.dumps(answer)).id == FMSPC
