# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From a node's evidence to reference values under which the verifier accepts that node."""

import dataclasses
import hashlib
import json
from datetime import timedelta

import msgspec
import pytest
from OpenSSL import crypto

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.enrollment import LIFETIME, Enrollment, Roots, enroll, enroll_into
from securetrain.attest.fleet.learn import CpuRoots
from securetrain.attest.fleet.named_files import ima_reference, read_pem
from securetrain.attest.session.cache import Item, build_cache
from securetrain.attest.session.reference_file import read_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.gpu.reference import GpuReference
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.node_evidence import parse_node
from securetrain.evidence.reference import ReferenceValues
from securetrain.evidence.tpm.runtime_policy import ImaReference, ViolationMode, ViolationRule
from securetrain.identity.keys import PrivateKey
from securetrain.testing.bootlog import Boot
from securetrain.testing.machine import runtime_policy
from tests import vocabulary
from tests.attest.fleet.worlds import appraiser, judged
from tests.attest.worlds import (
    AMD,
    MAKER_CA,
    Machine,
    bundle_of,
    replaced,
    resigned,
    self_report,
    with_devices,
    with_keys,
    with_snp,
)
from tests.evidence.gpu.forge import Device
from tests.evidence.gpu.forge import roots as gpu_roots
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import pem
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.forge import NOW, Authority
from tests.tables import each, forgeries, items
from tests.vocabulary import changed

ROOTS = Roots(hardware=(MAKER_CA.pem,))
MAKERS = CpuRoots(amd=AMD.roots, intel=intel.pin())
OPERATOR = PrivateKey.generate()
GUEST_LOG = bootlogs.encode(bootlogs.good_guest(), (bootlogs.SHA384,))
GUEST_RTMRS = tuple(bootlogs.rtmrs(bootlogs.good_guest()))


@pytest.fixture(scope="module")
def machine():
    return Machine("node-0")


@pytest.fixture(scope="module")
def other():
    return Machine("node-1")


def make(values, *bundles, learn_boot=True, roots=ROOTS, now=NOW, makers=MAKERS, **how):
    flags = {name: how.pop(name) for name in ("uncertified", "replace", "group") if name in how}
    enrollments = [
        Enrollment(bundle=one, learn_boot=learn_boot, unproven=learn_boot, **flags)
        for one in bundles
    ]
    edition = enroll(values, enrollments, roots=roots, now=now, makers=makers, **how)
    # That nothing is proven here is told by `test_proof`.
    nodes = [
        dataclasses.replace(
            one, notes=tuple(note for note in one.notes if not note.startswith("UNPROVEN"))
        )
        for one in edition.nodes
    ]
    return dataclasses.replace(edition, nodes=tuple(nodes))


def refused(code, *args, error=AttestationError, **how):
    return vocabulary.refused(error, code, make, *args, **how)


# TPMs.


def test_a_node_that_was_enrolled_is_accepted(machine):
    edition = make(None, bundle_of(machine))
    assert judged(machine, edition.values) is NodeTier.TPM
    (one,) = edition.nodes
    assert one.entry == EnrolledNode(ek_names=(machine.ek_name,), own=one.entry.own)
    assert set(one.entry.own) == {"1", "5"}
    assert not {d for digests in one.entry.own.values() for d in digests} & {
        *edition.values.boot.firmware
    }
    assert one.name == "node-0"
    assert one.endorsement.startswith("tpm, ")
    assert one.learned[0].startswith("boot: 4 whole registers, 4 Secure Boot variables, 1 signer")
    assert edition.notes == ()
    values = edition.values
    assert (values.version, values.issued, values.expires) == (1, NOW, NOW + LIFETIME)
    assert values.tpm.roots == (MAKER_CA.pem,)


def test_the_next_edition_keeps_what_the_last_one_said(machine, other):
    first = make(None, bundle_of(machine)).values
    later = NOW + timedelta(days=1)
    edition = make(
        first, bundle_of(other), learn_boot=False, roots=Roots(), now=later, lifetime=LIFETIME * 2
    )
    second = edition.values
    assert [note[:32] for note in edition.notes] == ["what this machine alone measures"] * 2
    with pytest.raises(AttestationError, match="ST-ATTS-217"):
        judged(other, msgspec.structs.replace(second, issued=NOW))
    second = make(first, bundle_of(other), roots=Roots(), now=later, lifetime=LIFETIME * 2).values
    assert (second.version, second.issued, second.expires) == (2, later, later + LIFETIME * 2)
    assert set(second.nodes) == {"node-0", "node-1"}
    assert second.boot == first.boot
    assert second.nodes["node-0"] == first.nodes["node-0"]
    assert second.tpm == first.tpm
    assert judged(other, msgspec.structs.replace(second, issued=NOW)) is NodeTier.TPM
    renewed = make(second, roots=Roots(), now=later).values
    assert (
        msgspec.structs.replace(renewed, version=2, issued=second.issued, expires=second.expires)
        == second
    )


def test_another_boot_is_learned_beside_the_first(machine):
    first = make(None, bundle_of(machine)).values
    usual = machine.what
    try:
        machine.boot(Boot(kernel=b"kernel 6.9"))
        vocabulary.refused(AttestationError, "ST-ATTS-213", judged, machine, first)
        both = make(first, bundle_of(machine)).values
        assert judged(machine, both) is NodeTier.TPM
    finally:
        machine.boot(usual)
    assert judged(machine, both) is NodeTier.TPM


def test_a_boot_that_nobody_vouches_for_is_not_learned(machine):
    edition = make(None, bundle_of(machine), learn_boot=False)
    assert edition.values.boot == ReferenceValues(version=1, issued=NOW, expires=NOW).boot
    assert edition.nodes[0].learned == ()
    vocabulary.refused(AttestationError, r"ST-ATTS-21\d", judged, machine, edition.values)


@each(
    "roots, tier",
    (Roots(hardware=(MAKER_CA.pem,)), NodeTier.TPM),
    (Roots(virtual=(MAKER_CA.pem,)), NodeTier.VTPM),
    (Roots(hardware=(MAKER_CA.pem,), virtual=(MAKER_CA.pem,)), NodeTier.VTPM),
    (Roots(hardware=(MAKER_CA.pem,), test=(MAKER_CA.pem,)), NodeTier.TEST_ONLY),
)
def test_what_a_root_is_worth(machine, roots, tier):
    edition = make(None, bundle_of(machine), roots=roots)
    assert edition.nodes[0].endorsement.startswith(
        "TEST-ONLY" if tier is NodeTier.TEST_ONLY else f"{tier}, "
    )
    assert judged(machine, edition.values) is tier


def test_roots_are_pinned_once(machine):
    first = make(None, bundle_of(machine)).values
    roots = Roots(
        hardware=(MAKER_CA.pem, MAKER_CA.pem), intermediates=("a",), virtual=("b",), test=("c",)
    )
    tpm = make(first, roots=roots).values.tpm
    assert tpm.roots == (MAKER_CA.pem,)
    assert (tpm.intermediates, tpm.virtual_roots, tpm.test_roots) == (("a",), ("b",), ("c",))


def test_a_maker_that_is_not_pinned_is_said_at_once(machine):
    edition = make(None, bundle_of(machine), roots=Roots(hardware=(Authority("other").pem,)))
    (note,) = edition.notes
    assert note.startswith("a verifier will refuse its TPM: ST-ATTS-107: ")
    assert edition.nodes[0].endorsement == ""


def test_a_tpm_without_a_certificate(machine):
    bare = with_keys(bundle_of(machine), ek_certificate=b"")
    assert "ST-ATTS-110" in make(None, bare).notes[0]
    edition = make(None, bare, uncertified=True)
    assert edition.notes == ()
    assert edition.nodes[0].endorsement == "vtpm, without a certificate"
    assert edition.values.tpm.allow_uncertified == (machine.ek_name,)
    assert make(None, bundle_of(machine)).values.tpm.allow_uncertified == ()


# Forged bundles.


def tpm(**fields):
    return lambda said, _: changed(said, tpm=fields)


def lied_register(said, _):
    pcrs = {**said.tpm.pcrs, 7: hashlib.sha256(b"it was on").digest()}
    return changed(said, tpm={"pcrs": pcrs})


@forgeries(
    "id, code, forge",
    ("no-log-to-learn-from", "ST-ATTS-013", tpm(event_log=b"")),
    ("the-log-of-another-boot", "ST-ATTS-204", tpm(event_log=Boot(kernel=b"another").log())),
    ("a-register-told-otherwise", "ST-ATTS-116", lied_register),
)
def test_a_boot_that_teaches_nothing(machine, code, forge):
    refused(code, None, bundle_of(machine, forge))


@forgeries(
    "id, code, forge",
    ("signature", "ST-ATTS-003", lambda b, _: replaced(b, signature=b.signature[:-1])),
    ("binding", "ST-ATTS-003", lambda b, _: replaced(b, binding=bytes(32))),
    (
        "question",
        "ST-ATTS-003",
        lambda b, _: changed(b, question={"nonce": bytes(32)}),
    ),
    ("key", "ST-ATTS-001", lambda b, _: replaced(b, key=b"")),
    (
        "keys-without-a-quote",
        "ST-ATTS-013",
        lambda b, m: resigned(b, m, msgspec.structs.replace(parse_node(b.body), tpm=None).encode()),
    ),
    ("a-quote-without-the-keys", "ST-ATTS-003", lambda b, _: replaced(b, keys=None)),
    (
        "the-endorsement-key-of-another",
        "ST-ATTS-114",
        lambda b, _: with_keys(b, ek_public=Machine().keys().ek_public),
    ),
    (
        "an-endorsement-key-that-is-none",
        "ST-ATTS-103",
        lambda b, _: with_keys(b, ek_public=b.keys.ak_public),
    ),
)
def test_a_bundle_that_does_not_hold_together(machine, code, forge):
    refused(code, None, forge(bundle_of(machine), machine))


def test_a_self_report_cannot_be_enrolled(machine, tmp_path):
    assert "only a self-report" in refused("ST-ATTS-013", None, self_report(machine, tmp_path)).what


def test_nothing_but_what_cannot_be_verified(machine):
    bundle = bundle_of(machine, with_snp(), tpm=False)
    refused("ST-ATTS-013", None, bundle, makers=CpuRoots(), says="ST-ATTS-404")


# One machine is one node.


@pytest.mark.forgery
def test_one_tpm_under_two_names(machine):
    values = make(None, bundle_of(machine)).values
    machine.name = "node-9"
    try:
        error = refused("ST-USAG-005", values, bundle_of(machine), error=UsageError)
    finally:
        machine.name = "node-0"
    assert "enrolled as node-0" in error.what


@pytest.mark.forgery
def test_another_tpm_under_the_same_name(machine, other):
    values = make(None, bundle_of(machine)).values
    other.name = "node-0"
    try:
        refused("ST-USAG-005", values, bundle_of(other), error=UsageError, says="another TPM")
        replacing = make(values, bundle_of(other), replace=True, learn_boot=False).values
        assert replacing.nodes == {"node-0": EnrolledNode(ek_names=(other.ek_name,))}
    finally:
        other.name = "node-1"


@pytest.mark.forgery
def test_one_chip_or_device_in_two_nodes(machine, other):
    gpu = with_devices(Device())
    values = ReferenceValues(
        version=1, issued=NOW, expires=NOW, gpu=GpuReference(roots=tuple(gpu_roots()))
    )
    for forge, kind in ((with_snp(), "chip"), (gpu, "device")):
        first = make(values, bundle_of(machine, forge)).values
        error = refused("ST-USAG-005", first, bundle_of(other, forge), error=UsageError)
        assert error.what.startswith(f"the {kind} ")


def test_what_a_bundle_does_not_speak_of_stays(machine):
    first = make(make(None, bundle_of(machine)).values, bundle_of(machine, with_snp())).values
    assert first.nodes["node-0"].chips == (AMD.chip.hex(),)
    second = make(first, bundle_of(machine)).values
    assert second.nodes == first.nodes
    third = make(second, bundle_of(machine), replace=True).values
    assert third.nodes["node-0"].chips == ()


# Files.


def into(path, *bundles, key=OPERATOR, now=NOW, signed_by=None, **how):
    return enroll_into(
        path,
        [Enrollment(bundle=one) for one in bundles],
        key=key,
        signed_by=signed_by or [key_text(key.public)],
        roots=ROOTS,
        now=now,
        **{"state": MemoryState(), **how},
    )


def test_a_file_and_its_next_editions(machine, other, tmp_path):
    path = tmp_path / "fleet.json"
    into(path, bundle_of(machine))
    late = NOW + timedelta(days=400)
    into(path, bundle_of(other), now=late)
    signed = read_reference_values(path, [key_text(OPERATOR.public)], MemoryState())
    assert signed.values.version == 2
    assert set(signed.values.nodes) == {"node-0", "node-1"}
    signed.check_time(late)
    into(path, now=late)
    assert (
        read_reference_values(path, [key_text(OPERATOR.public)], MemoryState()).values.version == 3
    )


def test_a_new_operator_key(machine, tmp_path):
    path, successor = tmp_path / "fleet.json", PrivateKey.generate()
    into(path, bundle_of(machine))
    before = path.read_bytes()
    vocabulary.refused(AttestationError, "ST-ATTS-009", into, path, key=successor)
    assert path.read_bytes() == before
    into(path, key=successor, signed_by=[key_text(OPERATOR.public)])
    read_reference_values(path, [key_text(successor.public)], MemoryState())


def test_nothing_to_make_an_edition_of(tmp_path):
    vocabulary.refused(UsageError, "ST-USAG-002", into, tmp_path / "fleet.json")
    assert not (tmp_path / "fleet.json").exists()


def test_a_refused_bundle_changes_no_file(machine, other, tmp_path):
    path = tmp_path / "fleet.json"
    into(path, bundle_of(machine))
    before = path.read_bytes()
    with pytest.raises(AttestationError):
        into(path, bundle_of(other), replaced(bundle_of(other), signature=b""))
    assert path.read_bytes() == before


def test_a_cache_beside_the_file(machine, tmp_path):
    chain = pem(AMD.ask(), AMD.ark())
    item = Item(kind=CollateralKind.AMD_CHAIN, id="Milan-VCEK", data=chain, fetched=NOW)
    build_cache(tmp_path / "cache", [item], OPERATOR, NOW, NOW + timedelta(days=1))
    edition = into(tmp_path / "f", bundle_of(machine, with_snp()), cache=tmp_path / "cache")
    assert "ST-ATTS-404" in edition.notes[0], "its root is the forger's own"
    with pytest.raises(AttestationError, match="ST-ATTS-732"):
        into(
            tmp_path / "g",
            bundle_of(machine),
            cache=tmp_path / "cache",
            signed_by=[key_text(PrivateKey.generate().public)],
        )


# Runtime policies and certificates.


def test_a_runtime_policy_from_a_file(machine, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(runtime_policy({"/bin/true": b"true"})))
    reference = ima_reference(path, "")
    values = make(None, bundle_of(machine), ima=reference).values
    assert values.ima == reference
    assert make(values).values.ima == reference
    appraiser(values, tpm={"ima": "enforce"})
    rule = ViolationRule(paths="/var/.*", mode=ViolationMode.LOG)
    ruled = changed(values, ima={"violations": (rule,)})
    assert make(ruled, ima=ima_reference(None, "ab" * 32)).values.ima == ImaReference(
        policy_sha256="ab" * 32, violations=(rule,)
    )
    assert ima_reference(None, "") is None
    assert ima_reference(None, "ab" * 32) == ImaReference(policy_sha256="ab" * 32)


@items(
    "id, code, content, digest",
    ("not-json", "ST-USAG-008", b"{", ""),
    ("not-an-object", "ST-USAG-008", b"[]", ""),
    ("not-a-policy", "ST-ATTS-320", b"{}", ""),
    ("two-policies", "ST-USAG-001", b"{}", "ab" * 32),
    ("not-a-digest", "ST-USAG-001", None, "AB" * 32),
)
def test_a_runtime_policy_that_is_none(tmp_path, code, content, digest):
    path = tmp_path / "policy.json" if content is not None else None
    if path is not None:
        path.write_bytes(content)
    kind = UsageError if code.startswith("ST-USAG") else AttestationError
    vocabulary.refused(kind, code, ima_reference, path, digest)


def test_a_policy_that_asks_for_what_is_not_enforced(tmp_path):
    policy = runtime_policy({}) | {"ima": {"dm_policy": {"version": 1}}}
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    vocabulary.refused(AttestationError, "ST-ATTS-322", ima_reference, tmp_path / "policy.json", "")


def test_certificates_in_both_forms(tmp_path):
    path = tmp_path / "ca"
    path.write_text(MAKER_CA.pem)
    assert read_pem(path) == MAKER_CA.pem
    loaded = crypto.load_certificate(crypto.FILETYPE_PEM, MAKER_CA.pem.encode())
    path.write_bytes(crypto.dump_certificate(crypto.FILETYPE_ASN1, loaded))
    assert read_pem(path).split() == MAKER_CA.pem.split()


@items(
    "id, data",
    ("empty", b""),
    ("noise", b"\x30\x82"),
    ("empty", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ("not-text", b"-----BEGIN CERTIFICATE-----\xff"),
    ("cut-off", b"-----BEGIN CERTIFICATE-----\n"),
)
def test_certificates_that_are_none(tmp_path, data):
    path = tmp_path / "ca"
    path.write_bytes(data)
    vocabulary.refused(UsageError, "ST-USAG-008", read_pem, path, names=str(path))
