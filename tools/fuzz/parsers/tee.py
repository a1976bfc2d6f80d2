# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of TEE reports, their certificates and collateral, with valid inputs to start from.

What is signed is also changed before it is signed, so that mutations reach what is behind the
signature.
"""

import json
from dataclasses import replace

from securetrain.attest.node.configfs import parse_certificate_table
from securetrain.evidence.tee import chain
from securetrain.evidence.tee.google import GoogleAppraiser, check_technology
from securetrain.evidence.tee.google_certificates import pinned
from securetrain.evidence.tee.google_endorsement import open_endorsement
from securetrain.evidence.tee.paravisor import (
    ParavisorReference,
    judge_vm,
    parse_hcl_report,
    parse_runtime_data,
)
from securetrain.evidence.tee.snp import AMD
from securetrain.evidence.tee.snp_report import Product, SigningKey, parse_report
from securetrain.evidence.tee.tdx_collateral import INTEL
from securetrain.evidence.tee.tdx_quote import parse_quote
from tests.evidence.tee import forge, forge_amd, forge_azure, forge_google
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import AmdWorld
from tools.fuzz.engine import Parser

_VCEK = "63da758de6644564adc5f4b93be8accd"


def tee() -> list[Parser]:
    """All of them."""
    return [*_snp(), *_tdx(), *_paravisor(), *_google()]


def _google() -> list[Parser]:
    """What Google signs: endorsements, and certificates of virtual TPMs' keys."""
    vm = forge_google.Vm()
    world = GoogleAppraiser(forge_google.reference())
    roots = pinned([forge_google.tcb_root().pem], "endorsement_roots")
    boot = forge_google.boot("sev-snp")

    def signed(data: bytes) -> None:
        open_endorsement(forge_google.endorsement(data), roots)

    def named(data: bytes) -> None:
        world.key(forge_google.certify(vm.tpm.ak.public, info=data or b"?"), (), forge.NOW)

    return [
        Parser(
            "google-endorsement",
            lambda: [forge_google.good_endorsement()],
            lambda data: open_endorsement(data, roots),
        ),
        Parser("google-golden", lambda: [forge_google.golden()], signed, share=0.5),
        Parser("google-key", lambda: [vm.certificate], lambda data: world.key(data, (), forge.NOW)),
        Parser("google-instance", lambda: [forge_google.instance_info()], named, share=0.5),
        Parser(
            "google-technology",
            lambda: [boot.log()],
            lambda data: check_technology(data, boot.registers()[0], "sev-snp"),
        ),
    ]


def _paravisor() -> list[Parser]:
    """The report in a VM's TPM, and what it vouches for."""
    vm = forge_azure.Vm()
    runtime = vm.runtime()
    accepted = ParavisorReference(any_vm=True)

    def judge(data: bytes) -> None:
        found = parse_runtime_data(data)
        judge_vm(found, accepted, enrolled=(), secure_boot=False, node="fuzz")

    return [
        Parser(
            "hcl-report",
            lambda: [forge_azure.hcl(runtime), forge_azure.hcl(runtime, bytes(1024), kind=4)],
            parse_hcl_report,
        ),
        Parser("runtime-data", lambda: [runtime], judge),
    ]


def _snp() -> list[Parser]:
    world = AmdWorld()
    turin = AmdWorld(product=Product.TURIN, key=SigningKey.VLEK)

    def signed(data: bytes) -> None:
        body = data[:0x2A0].ljust(0x2A0, b"\0")
        world.verify(forge_amd.sign(body, forge.p384_key("vek")))

    def extension(data: bytes) -> None:
        name, _, value = data.partition(b"=")
        suffix = name.decode("ascii", "ignore") if name in {b"2", b"3.1", b"4"} else "3.8"
        leaf = world.leaf(changes={suffix: value or b"\0"})
        world.verify(certificates=[forge.der(leaf)])

    def table() -> list[bytes]:
        entry = bytes.fromhex(_VCEK) + (48).to_bytes(4, "little") + (5).to_bytes(4, "little")
        return [entry + bytes(24) + b"abcde", bytes(24)]

    return [
        Parser(
            "snp-report",
            lambda: [world.report(version=version) for version in (2, 3, 4, 5)],
            parse_report,
        ),
        Parser("snp-evidence", lambda: [world.report(), world.report(version=3)], world.verify),
        Parser("snp-signed", lambda: [world.body(), world.body(version=3)], signed, share=0.5),
        Parser(
            "snp-certificate",
            lambda: [forge_amd.good_leaf(world)],
            lambda data: world.verify(certificates=[data]),
        ),
        Parser(
            "snp-extension",
            lambda: [b"2=\x16\x05Milan", b"3.8=\x02\x02\x00\xd9", b"4=" + world.chip],
            extension,
            share=0.1,
        ),
        Parser(
            "tee-certificates",
            lambda: [forge_amd.good_leaf(turin), forge.pem(world.ask(), world.ark())],
            lambda data: chain.load_certificates(data, AMD, "fuzz"),
        ),
        Parser("snp-crl", lambda: [world.crl([8, 9])], lambda data: world.verify(crl=data)),
        Parser("snp-certificate-table", table, parse_certificate_table),
    ]


def _tdx() -> list[Parser]:
    good = intel.good_collateral()

    def signed(data: bytes) -> None:
        body = data[:648].ljust(648, b"\0")
        intel.verify(intel.quote(version=5, td={"raw": {0: body}}))

    def enclave(data: bytes) -> None:
        intel.verify(intel.quote(chain=data))

    def extension(data: bytes) -> None:
        pem = forge.pem(intel.pck(data or b"\0"), intel.pck_ca(), intel.root())
        intel.verify(intel.quote(chain=pem))

    def document(name: str, field: str, data: bytes) -> None:
        signature = intel.raw_signature(forge.p256_key("tcb-signing"), data).hex()
        body = b'{"%s":%s,"signature":"%s"}' % (name.encode(), data, signature.encode())
        intel.verify(collateral=replace(good, **{field: body}))

    def crl(data: bytes) -> None:
        chain.verify_crl(
            chain.load_crl(data, INTEL, "fuzz"), intel.root(), forge.NOW, INTEL, "fuzz"
        )

    return [
        Parser(
            "tdx-quote",
            lambda: [intel.quote(), intel.quote(version=5), intel.quote(version=5, body_type=2)],
            parse_quote,
        ),
        Parser("tdx-evidence", lambda: [intel.quote(), intel.quote(version=5)], intel.verify),
        Parser("tdx-signed", lambda: [intel.Td().encode(648)], signed, share=0.5),
        Parser("tdx-chain", lambda: [intel.pck_chain()], enclave, share=0.5),
        Parser(
            "tdx-extension",
            lambda: [intel.sgx_extension(), intel.sgx_extension(server=False)],
            extension,
            share=0.5,
        ),
        Parser(
            "tdx-tcb-info",
            lambda: [json.dumps(intel.tcb_info()).encode()],
            lambda data: document("tcbInfo", "tcb_info", data),
        ),
        Parser(
            "tdx-qe-identity",
            lambda: [json.dumps(intel.qe_identity()).encode()],
            lambda data: document("enclaveIdentity", "qe_identity", data),
        ),
        Parser(
            "tdx-response",
            lambda: [good.tcb_info],
            lambda data: intel.verify(collateral=replace(good, tcb_info=data)),
        ),
        Parser("tdx-crl", lambda: [intel.root_crl([1, 2]), intel.root_crl()], crl),
    ]
