# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is asked of makers for a node; fetching and verifying it is in `test_fetch`."""

from itertools import pairwise

import pytest
from cryptography import x509

from securetrain.attest.fleet import gather as module
from securetrain.attest.fleet.fetch import Pins
from securetrain.attest.fleet.gather import Gathered, gather
from securetrain.attest.session.cache import Item
from securetrain.core.errors import AttestationError
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.gpu.revocation import crl_id, ocsp_id
from securetrain.evidence.gpu.rim import parse_rim
from securetrain.evidence.tee.snp_report import Product, SigningKey
from tests.attest.worlds import (
    Machine,
    bundle_of,
    replaced,
    self_report,
    together,
    with_devices,
    with_snp,
    with_tdx,
)
from tests.evidence.gpu.forge import Device
from tests.evidence.gpu.forge import roots as gpu_roots
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import AmdWorld
from tests.evidence.test_gpu_appraiser import AUTHORITY, rims
from tests.evidence.tpm.forge import NOW
from tests.tables import each

GPU = Device()


class Makers:
    """A fetcher that says what it was asked for, and lacks what a test says."""

    now = NOW
    pins = Pins(rim=frozenset(AUTHORITY.roots))

    def __init__(self, lacks=(), devices=(GPU,)):
        self.lacks = lacks
        self.asked = []
        self.documents = rims(*devices)

    def item(self, kind, name, data=b"x"):
        self.asked.append((kind.value, name))
        if kind.value in self.lacks or name in self.lacks:
            raise AttestationError("ST-ATTS-741", "it answered with status 404", name)
        return Item(kind=kind, id=name, data=data, fetched=NOW)

    def rim(self, name):
        return self.item(CollateralKind.RIM, name, self.documents["rim", name])

    def ocsp(self, certificate, issuer):
        assert certificate.issuer == issuer.subject
        return self.item(CollateralKind.OCSP, ocsp_id(certificate))

    def nvidia_crl(self, certificate, issuer):
        assert certificate.issuer == issuer.subject
        return self.item(CollateralKind.CRL, crl_id(issuer))

    def amd(self, product, key):
        name = f"{product}-{key.name}"
        return [
            self.item(CollateralKind.AMD_CHAIN, name),
            self.item(CollateralKind.CRL, f"amd-{name}"),
        ]

    def tdx(self, fmspc, ca):
        return [
            self.item(CollateralKind.TCB_INFO, fmspc),
            self.item(CollateralKind.CRL, f"intel-{ca}"),
        ]


def found(makers, *bundles):
    gathered = gather(bundles, makers, gpu_roots())
    return {(item.kind.value, item.id) for item in gathered.items}, gathered.problems


@pytest.fixture(scope="module")
def machine():
    return Machine("node-0")


def device_certificates():
    """Of the GPU but the leaf and the root."""
    chain = [x509.load_der_x509_certificate(der) for der in GPU.evidence().certificates]
    return {("ocsp", ocsp_id(one)) for one in chain[1:-1]}


def signer_certificates():
    data = next(iter(rims(GPU).values()))
    chain = parse_rim(data, roots=AUTHORITY.roots, now=NOW).certificates
    return {("ocsp", ocsp_id(one)) for one, _ in pairwise(chain)}


def test_a_gpu(machine):
    makers = Makers()
    items, problems = found(makers, bundle_of(machine, with_devices(GPU)))
    assert problems == ()
    assert items == {*rims(GPU), *device_certificates(), *signer_certificates()}
    assert len(makers.asked) == len(set(makers.asked)), "everything once"


def test_two_nodes_ask_once_for_what_they_share(machine):
    other = Device("00112233445566bb")
    makers = Makers(devices=(GPU, other))
    bundles = [bundle_of(machine, with_devices(GPU)), bundle_of(machine, with_devices(other, GPU))]
    _, problems = found(makers, *bundles)
    assert problems == ()
    assert len(makers.asked) == len(set(makers.asked))


def test_a_list_where_there_is_no_answer(machine):
    makers = Makers(lacks=("ocsp",))
    items, problems = found(makers, bundle_of(machine, with_devices(GPU)))
    assert problems == ()
    assert {kind for kind, _ in items} == {"rim", "crl"}
    makers = Makers(lacks=("ocsp", "crl"))
    items, problems = found(makers, bundle_of(machine, with_devices(GPU)))
    assert {kind for kind, _ in items} == {"rim"}
    assert len(problems) == len(device_certificates() | signer_certificates())
    assert all(problem.startswith("ST-ATTS-741: it answered") for problem in problems)


@each("key", *list(SigningKey))
def test_an_amd_cpu(machine, key):
    world = AmdWorld(product=Product.GENOA, key=key)
    items, problems = found(Makers(), bundle_of(machine, with_snp(world)))
    assert problems == ()
    name = f"Genoa-{key.name}"
    assert items == {("amd-chain", name), ("crl", f"amd-{name}")}


def test_an_amd_cpu_without_certificates(machine):
    items, _ = found(Makers(), bundle_of(machine, with_snp(certificates=False)))
    assert ("amd-chain", "Milan-VCEK") in items
    for unknown in ({"cpu": (0x17, 0x31, 0)}, {"flags": 5 << 2}):
        bundle = bundle_of(machine, with_snp(certificates=False, **unknown))
        items, problems = found(Makers(), bundle)
        assert items == set()
        assert problems[0].startswith("ST-ATTS-402: the processor is not known")


def test_an_intel_cpu(machine):
    items, problems = found(Makers(), bundle_of(machine, with_tdx()))
    assert problems == ()
    assert items == {("tcb-info", intel.FMSPC), ("crl", "intel-platform")}


def test_what_needs_nothing(machine, tmp_path):
    for bundle in (bundle_of(machine), self_report(machine, tmp_path)):
        assert found(Makers(), bundle) == (set(), ())


def test_what_cannot_be_had_hides_nothing_else(machine):
    makers = Makers(lacks=("amd-chain",))
    bundle = bundle_of(machine, together(with_snp(), with_devices(GPU)))
    items, problems = found(makers, replaced(bundle, body=b"{}"), bundle)
    assert ("amd-chain", "Milan-VCEK") not in items
    assert items >= set(rims(GPU))
    assert [problem[:11] for problem in problems] == ["ST-ATTS-001", "ST-ATTS-741"]


def test_devices_of_another_maker(machine):
    bundle = bundle_of(machine, with_devices(GPU))
    makers = Makers()
    gathered = gather([bundle], makers)  # type: ignore[arg-type]
    assert gathered.items == ()
    assert "ST-ATTS-609" in gathered.problems[0]
    assert "node-0: gpu 0" in gathered.problems[0]
    assert makers.asked == []


def test_the_makers_own_services(monkeypatch):
    seen = []

    def look(bundles, fetcher):
        seen.append(fetcher)
        return Gathered((), ())

    monkeypatch.setattr(module, "gather", look)
    assert module.gather_from_makers([], NOW) == Gathered((), ())
    assert seen[0].now == NOW
    assert seen[0].services.amd == "https://kdsintf.amd.com"
