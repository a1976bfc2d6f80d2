# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fetching into the cache, from services on loopback; each maker's first test is the control."""

import base64
from datetime import timedelta
from urllib.parse import quote

import msgspec
import pytest
from cryptography import x509
from cryptography.x509 import ocsp

from securetrain.attest.fleet.download import Downloader
from securetrain.attest.fleet.fetch import Fetcher, Pins, Services
from securetrain.attest.session.cache import CollateralCache, build_cache
from securetrain.core.errors import AttestationError
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.gpu.revocation import crl_id, ocsp_id
from securetrain.evidence.tee.snp import ROOTS
from securetrain.evidence.tee.snp_report import Product, SigningKey
from securetrain.evidence.tee.tdx_collateral import ROOT
from securetrain.identity.keys import PrivateKey
from tests import vocabulary
from tests.attest.fleet.test_download import no_proxies
from tests.attest.httpservice import serve
from tests.evidence.gpu.authority import NOW, issue, make_authority
from tests.evidence.gpu.rimforge import manifest, sign
from tests.evidence.gpu.test_crl import make as make_crl
from tests.evidence.gpu.test_ocsp import AUTHORITY as OCSP_AUTHORITY
from tests.evidence.gpu.test_ocsp import NOW as OCSP_NOW
from tests.evidence.gpu.test_ocsp import respond
from tests.evidence.tee import forge, forge_intel
from tests.evidence.tee.forge_amd import AmdWorld, _ca
from tests.tables import items

AUTHORITY = make_authority()
WALL_CLOCK = OCSP_NOW
DAY = timedelta(days=1)
VBIOS = "NV_GPU_VBIOS_1010_0200_882_96005E0001"
AMD_WORLD = AmdWorld()

__all__ = ["no_proxies"]


@pytest.fixture
def service():
    with serve() as running:
        yield running


def fetcher(service, *, now=NOW, **changes):
    names = ("rim", "ocsp", "crl", "amd", "intel", "intel_root")
    services = Services(**dict.fromkeys(names, service.origin))
    pins = Pins(rim=frozenset(AUTHORITY.roots), amd=AMD_WORLD.roots, intel=forge_intel.pin())
    download = Downloader(services.origins())
    return Fetcher(now=now, services=services, pins=pins, download=download, **changes)


def refused(code, act, *arguments, **how):
    return vocabulary.refused(AttestationError, code, act, *arguments, **how)


def test_nothing_is_fetched_from_elsewhere():
    services = Services()
    assert len(services.origins()) == 6
    assert all(origin.startswith("https://") for origin in services.origins())
    Downloader(services.origins())
    assert Pins().amd == ROOTS
    assert Pins().intel == ROOT


# NVIDIA: RIMs.


def rim_answer(data, name=VBIOS, **more):
    return msgspec.json.encode(
        {"id": name, "rim": base64.b64encode(data).decode(), "rim_format": "TCG", **more}
    )


@items(
    "name, text",
    (VBIOS, manifest()),
    ("NV_GPU_DRIVER_GH100_550.144.03", manifest("550.144.03")),
    ("NV_GPU_CC_DRIVER_GB100_595.91.07", manifest("595.91.07", product="GB100")),
    (
        "NV_SWITCH_BIOS_5612_0002_890_9610550001",
        manifest("96.10.55.00.01", product="LS10", edition="SWITCH"),
    ),
)
def test_a_rim(service, name, text):
    data = sign(text, AUTHORITY)
    service.routes = {f"/v1/rim/{name}": rim_answer(data, name)}
    item = fetcher(service).rim(name)
    assert (item.kind, item.id, item.data) == (CollateralKind.RIM, name, data)
    assert (item.fetched, item.expires) == (NOW, None)


def test_a_rim_whose_signer_has_expired_is_fetched_all_the_same(service):
    old = make_authority(not_before=NOW - 9 * DAY, not_after=NOW - DAY)
    data = sign(manifest(), old)
    service.routes = {f"/v1/rim/{VBIOS}": rim_answer(data)}
    fetch = fetcher(service)
    refused("ST-ATTS-705", fetch.rim, VBIOS)
    pinned = Fetcher(
        now=NOW,
        services=fetch.services,
        pins=Pins(rim=frozenset(old.roots)),
        download=fetch.download,
    )
    assert pinned.rim(VBIOS).data == data


def test_the_token_goes_to_the_rim_service_alone(service):
    service.routes = {
        f"/v1/rim/{VBIOS}": rim_answer(sign(manifest(), AUTHORITY)),
        "/crl/x.crl": make_crl(by=AUTHORITY.issuer),
    }
    fetch = fetcher(service, nvidia_token="secret")
    fetch.rim(VBIOS)
    fetch.nvidia_crl(listed(f"{service.origin}/crl/x.crl"), AUTHORITY.issuer.certificate)
    assert service.headers[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in service.headers[1]
    assert "secret" not in repr(fetch)


@pytest.mark.forgery
@items(
    "id, code, answer",
    ("not-found", "741", (404, {}, b"")),
    ("no-json", "741", b"<html>"),
    ("no-rim", "741", b"{}"),
    ("no-base64", "741", b'{"id": "x", "rim": "?"}'),
    ("another-id", "741", rim_answer(sign(manifest(), AUTHORITY), "other")),
    ("another-version", "741", rim_answer(sign(manifest("96.00.5E.00.02"), AUTHORITY))),
    ("a-switchs", "741", rim_answer(sign(manifest(edition="SWITCH"), AUTHORITY))),
    ("a-drivers", "741", rim_answer(sign(manifest("550.144.03"), AUTHORITY))),
    ("too-large", "741", bytes(3 << 20)),
    ("a-strangers", "705", rim_answer(sign(manifest(), make_authority()))),
    (
        "changed",
        "703",
        rim_answer(sign(manifest(), AUTHORITY).replace(b'active="True"', b'active="False"')),
    ),
    ("empty", "701", rim_answer(b"")),
)
def test_answers_that_are_no_rim(service, code, answer):
    service.routes = {f"/v1/rim/{VBIOS}": answer}
    refused(f"ST-ATTS-{code}", fetcher(service).rim, VBIOS)


@pytest.mark.forgery
def test_a_driver_rim_of_another_chip(service):
    name = "NV_GPU_CC_DRIVER_GB100_595.91.07"
    service.routes = {f"/v1/rim/{name}": rim_answer(sign(manifest("595.91.07"), AUTHORITY), name)}
    refused("ST-ATTS-741", fetcher(service).rim, name)


def test_a_name_cannot_leave_its_path(service):
    refused("ST-ATTS-741", fetcher(service).rim, "../x?y#z")
    assert service.asked[0][1] == "/v1/rim/..%2Fx%3Fy%23z"


# NVIDIA: OCSP and lists.


def responder(**changes):
    def answer(body):
        request = ocsp.load_der_ocsp_request(body)
        nonce = request.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
        return respond(**{"nonce": nonce, **changes})

    return answer


PAIR = (OCSP_AUTHORITY.signer.certificate, OCSP_AUTHORITY.issuer.certificate)


@pytest.mark.parametrize("status", list(ocsp.OCSPCertStatus))
def test_an_ocsp_response(service, status):
    service.routes = {"/": responder(status=status)}
    item = fetcher(service, now=WALL_CLOCK).ocsp(*PAIR)
    assert (item.kind, item.id) == (CollateralKind.OCSP, ocsp_id(PAIR[0]))
    assert item.expires is not None
    assert abs(item.expires - (WALL_CLOCK + DAY / 2)) < timedelta(minutes=10)
    assert item.data
    assert service.asked[0][:2] == ("POST", "/")


def test_every_request_has_a_nonce_of_its_own(service):
    service.routes = {"/": responder()}
    fetch = fetcher(service, now=WALL_CLOCK)
    fetch.ocsp(*PAIR)
    fetch.ocsp(*PAIR)
    assert service.asked[0][2] != service.asked[1][2]


@pytest.mark.forgery
@items(
    "id, code, answer",
    ("a-replay", "718", responder(nonce=b"\x01" * 32)),
    ("no-nonce", "718", lambda _: respond()),
    ("empty", "711", b""),
    ("busy", "741", (503, {}, b"")),
    ("too-large", "741", bytes(65 << 10)),
)
def test_answers_that_are_no_ocsp_response(service, code, answer):
    service.routes = {"/": answer}
    refused(f"ST-ATTS-{code}", fetcher(service, now=WALL_CLOCK).ocsp, *PAIR)


def listed(*locations):
    names = [x509.UniformResourceIdentifier(location) for location in locations]
    point = x509.DistributionPoint(names or None, None, None, None if names else ISSUED_BY)
    extension = x509.CRLDistributionPoints([point])
    return issue("leaf", AUTHORITY.issuer, ca=False, extra=((extension, False),)).certificate


ISSUED_BY = [x509.DirectoryName(AUTHORITY.issuer.certificate.subject)]


def test_a_list(service):
    data = make_crl(by=AUTHORITY.issuer)
    service.routes = {"/crl/l2.crl": data}
    issuer = AUTHORITY.issuer.certificate
    item = fetcher(service).nvidia_crl(listed("http://elsewhere.example/crl/l2.crl"), issuer)
    assert (item.kind, item.id, item.data) == (CollateralKind.CRL, crl_id(issuer), data)
    assert item.expires == NOW + DAY


@pytest.mark.forgery
def test_lists_that_are_none(service):
    issuer = AUTHORITY.issuer.certificate
    service.routes = {
        "/stranger": make_crl(by=make_authority().issuer),
        "/old": make_crl(by=AUTHORITY.issuer, end=NOW - DAY / 2),
    }
    fetch = fetcher(service)
    refused("ST-ATTS-714", fetch.nvidia_crl, listed("https://x.example/stranger"), issuer)
    refused("ST-ATTS-716", fetch.nvidia_crl, listed("https://x.example/old"), issuer)
    refused("ST-ATTS-741", fetch.nvidia_crl, listed(), issuer)
    refused("ST-ATTS-741", fetch.nvidia_crl, AUTHORITY.signer.certificate, issuer)


# AMD.


def amd_routes(**changes):
    ark = changes.get("ark", AMD_WORLD.ark())
    certificates = changes.get("chain", forge.pem(AMD_WORLD.ask(), ark))
    data = changes.get("crl", forge.revocation_list("ARK-Milan", forge.rsa_key("ark")))
    return {"/vcek/v1/Milan/cert_chain": certificates, "/vcek/v1/Milan/crl": data}


def test_amd(service):
    service.routes = amd_routes()
    certificates, crl = fetcher(service).amd(Product.MILAN, SigningKey.VCEK)
    assert (certificates.kind, certificates.id) == (CollateralKind.AMD_CHAIN, "Milan-VCEK")
    assert certificates.data == service.routes["/vcek/v1/Milan/cert_chain"]
    assert (crl.kind, crl.id) == (CollateralKind.CRL, "amd-Milan-VCEK")
    assert crl.expires is not None


@pytest.mark.forgery
@items(
    "id, code, changes",
    ("another-root", "404", {"ark": _ca("ARK-Milan", "ARK-Milan", "x", "x")}),
    (
        "not-signed-by-the-root",
        "404",
        {"chain": forge.pem(_ca("SEV-Milan", "ARK-Milan", "ask", "x"), AMD_WORLD.ark())},
    ),
    ("root-alone", "402", {"chain": forge.pem(AMD_WORLD.ark())}),
    ("no-certificates", "402", {"chain": b"x"}),
    ("list", "407", {"crl": forge.revocation_list("ARK-Milan", forge.rsa_key("x"))}),
    (
        "old-list",
        "405",
        {
            "crl": forge.revocation_list(
                "ARK-Milan", forge.rsa_key("ark"), end=NOW - timedelta(seconds=1)
            )
        },
    ),
    ("no-list", "407", {"crl": b"x"}),
)
def test_documents_that_are_not_amds(service, code, changes):
    service.routes = amd_routes(**changes)
    refused(f"ST-ATTS-{code}", fetcher(service).amd, Product.MILAN, SigningKey.VCEK)


# Intel.

FMSPC = forge_intel.FMSPC


def intel_routes(fmspc=FMSPC, **changes):
    good = forge_intel.collateral(**changes)
    pck = forge.pem(forge_intel.pck_ca(), forge_intel.root())

    def header(name, data):
        return {name: quote(data.decode())}

    return {
        f"/tdx/certification/v4/tcb?fmspc={fmspc}": (
            200,
            header("TCB-Info-Issuer-Chain", good.tcb_info_chain),
            good.tcb_info,
        ),
        "/tdx/certification/v4/qe/identity": (
            200,
            header("SGX-Enclave-Identity-Issuer-Chain", good.qe_identity_chain),
            good.qe_identity,
        ),
        "/sgx/certification/v4/pckcrl?ca=platform&encoding=der": (
            200,
            header("SGX-PCK-CRL-Issuer-Chain", pck),
            good.pck_crl,
        ),
        "/IntelSGXRootCA.der": good.root_crl,
    }


def test_intel(service, tmp_path):
    service.routes = intel_routes()
    items = fetcher(service).tdx(FMSPC, "platform")
    assert {(item.kind.value, item.id) for item in items} == {
        ("tcb-info", FMSPC),
        ("issuer-chain", "tcb-info"),
        ("qe-identity", "tdx"),
        ("issuer-chain", "qe-identity"),
        ("crl", "intel-root"),
        ("crl", "intel-platform"),
    }
    good = forge_intel.good_collateral()
    key = PrivateKey.generate()
    build_cache(tmp_path / "cache", items, key, NOW, NOW + DAY)
    cache = CollateralCache.open(tmp_path / "cache", {key.key_id: key.public}, NOW)
    assert cache.get("tcb-info", FMSPC) == good.tcb_info
    assert cache.get("issuer-chain", "qe-identity") == good.qe_identity_chain
    assert cache.get("crl", "intel-platform") == good.pck_crl


@pytest.mark.forgery
@items(
    "id, code, changes",
    ("tcb-info", "509", {"tcb_info": forge_intel.tcb_response(key=forge.p256_key("x"))}),
    ("pck-crl", "507", {"pck_crl": forge_intel.pck_crl(signer=forge.p256_key("x"))}),
    ("root-crl", "507", {"root_crl": forge_intel.root_crl(signer=forge.p256_key("x"))}),
    ("no-chain", "509", {"tcb_info_chain": b""}),
)
def test_documents_that_are_not_intels(service, code, changes):
    service.routes = intel_routes(**changes)
    refused(f"ST-ATTS-{code}", fetcher(service).tdx, FMSPC, "platform")


@pytest.mark.forgery
def test_intels_document_for_another_platform(service):
    service.routes = intel_routes(fmspc="00906ed50000")
    refused("ST-ATTS-741", fetcher(service).tdx, "00906ed50000", "platform", says="got")


@pytest.mark.forgery
def test_a_pck_list_under_a_strangers_root(service):
    service.routes = intel_routes()
    path = "/sgx/certification/v4/pckcrl?ca=platform&encoding=der"
    status, _, body = service.routes[path]
    stranger = forge_intel.root(key=forge.p256_key("x"), signer=forge.p256_key("x"))
    chain = forge.pem(forge_intel.pck_ca(signer=forge.p256_key("x")), stranger)
    service.routes[path] = (status, {"SGX-PCK-CRL-Issuer-Chain": quote(chain.decode())}, body)
    refused("ST-ATTS-504", fetcher(service).tdx, FMSPC, "platform")
