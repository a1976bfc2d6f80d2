# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Google's attestation keys, instances and kinds of VM: real ones, and what they are not."""

import random
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.google import (
    GoogleAppraiser,
    GoogleReference,
    check_technology,
    key_digest,
)
from securetrain.evidence.tpm import eventlog
from securetrain.evidence.tpm.constants import Hash
from tests import vocabulary
from tests.evidence.tee import forge_google as google
from tests.evidence.tee.forge import NOW, short_rsa_key, tlv, turned
from tests.evidence.tpm import forge
from tests.evidence.vectors import ROOT, vector
from tests.identity.worlds import usage
from tests.tables import forgeries

der_int = google.der_int
VM = google.Vm()
WORLD = GoogleAppraiser(google.reference())
LOGS = "google__go-tpm-tools/internal/test/eventlogs"


def refused(code, call, *args, **kwargs):
    return vocabulary.refused(AttestationError, code, call, *args, **kwargs)


def key(certificate=VM.certificate, chain=(), now=NOW, world=WORLD):
    return world.key(certificate, chain, now)


def test_a_certified_key():
    found = key()
    instance = found.instance
    assert found.ak.unique == VM.tpm.ak.public.unique
    assert found.digest == VM.digest()
    said = (instance.vm, instance.project, instance.zone)
    assert said == (google.VM, google.PROJECT, google.ZONE)
    assert (instance.name, instance.security_version, instance.production) == ("node-0", 1, True)
    assert key() is found, "it is read once"


def test_a_key_on_p256():
    tpm = forge.Tpm()
    assert key(google.certify(tpm.ak.public)).ak.unique == tpm.ak.public.unique


def test_the_vm_sends_the_certificates_above():
    bare = GoogleAppraiser(google.reference(intermediates=()))
    refused("ST-ATTS-444", key, world=bare)
    assert key(chain=(google.intermediate().der,), world=bare).instance.vm == google.VM
    refused("ST-ATTS-444", key, chain=(google.intermediate().der,) * 9, world=bare)
    refused("ST-ATTS-444", key, chain=(b"none",), world=bare)


def test_a_key_is_read_again_when_it_is_over():
    short = google.certify(VM.tpm.ak.public, begin=NOW - timedelta(1), end=NOW + timedelta(1))
    key(short)
    refused("ST-ATTS-444", key, short, now=NOW + timedelta(2))
    refused("ST-ATTS-444", key, short, now=NOW - timedelta(2))


def properties(*said):
    return google.certify(VM.tpm.ak.public, info=google.instance_info(properties=said))


def test_properties_that_are_not_there():
    assert not key(properties()).instance.production
    bare = key(properties(tlv(0xA0, der_int(7)))).instance
    assert (bare.security_version, bare.production) == (7, False)


# Forgeries.

PUBLIC = VM.tpm.ak.public
STRANGER = forge.Authority("stranger")
CRITICAL = (x509.UnrecognizedExtension(google.INSTANCE_INFO, b"x"), True)


def named(**changes):
    return google.certify(PUBLIC, info=google.instance_info(**changes))


@forgeries(
    "make",
    lambda: b"",
    lambda: b"\x30\x03\x02\x01\x01",
    lambda: VM.certificate + b"\0",
    lambda: bytes(9 << 10),
    lambda: google.certify(PUBLIC, authority=STRANGER),
    lambda: google.certify(PUBLIC, authority=google.tcb_root()),
    lambda: google.certify(PUBLIC, ca=True),
    lambda: google.certify(PUBLIC, usage=usage("key_encipherment")),
    lambda: google.certify(PUBLIC, usage=usage("digital_signature", "key_encipherment")),
    lambda: google.certify(PUBLIC, usage=usage("digital_signature", "key_cert_sign")),
    lambda: google.certify(PUBLIC, extensions={"usage": None}),
    lambda: google.certify(PUBLIC, extensions={"x": CRITICAL}, info=b""),
    lambda: google.certify(PUBLIC, info=b""),
    lambda: google.certify(PUBLIC, info=b"x"),
    lambda: google.certify(PUBLIC, info=google.instance_info() + b"\0"),
    lambda: google.certify(PUBLIC, info=bytes(2000)),
    lambda: google.certify(PUBLIC, end=NOW - timedelta(1)),
    lambda: google.certify(PUBLIC, begin=NOW + timedelta(1)),
    lambda: google.certify(PUBLIC, key=short_rsa_key("weak-exponent").public_key(), info=b"x"),
    lambda: google.certify(PUBLIC, key=ed25519.Ed25519PrivateKey.generate().public_key()),
    lambda: google.certify(PUBLIC, key=ec.generate_private_key(ec.SECP384R1()).public_key()),
    lambda: google.intermediate().der,
    lambda: google.root().der,
    lambda: named(vm=0),
    lambda: named(vm=-5),
    lambda: named(vm=1 << 64),
    lambda: named(project_number=-1),
    lambda: named(project=""),
    lambda: named(project="a b"),
    lambda: named(project="p" * 129),
    lambda: named(zone="\n"),
    lambda: named(name="n\0"),
    lambda: properties(tlv(0xA1, b"\1\1\xff"), tlv(0xA0, der_int(1))),
    lambda: properties(tlv(0xA0, der_int(1)), tlv(0xA0, der_int(2))),
    lambda: properties(tlv(0xA0, der_int(-1))),
    lambda: properties(tlv(0xA0, b"\1\1\xff")),
    lambda: properties(tlv(0xA1, b"\1\1\x01")),
    lambda: properties(tlv(0xA1, der_int(1))),
)
def test_a_forged_certificate(make):
    refused("ST-ATTS-444", key, make())


@pytest.mark.forgery
def test_no_root_is_pinned():
    refused("ST-ATTS-444", key, world=GoogleAppraiser(GoogleReference()))


@forgeries(
    "made, reference, code, where",
    ({"project": "another"}, {}, "ST-ATTS-445", "project"),
    ({}, {"projects": ()}, "ST-ATTS-445", "project"),
    ({}, {"zones": ("us-central1-a",)}, "ST-ATTS-445", "zone"),
    ({"zone": "mars"}, {"zones": (google.ZONE,)}, "ST-ATTS-445", "zone"),
    ({"properties": ()}, {}, "ST-ATTS-445", "is_production"),
    ({}, {"min_security_version": 2}, "ST-ATTS-445", "security_version"),
    ({"vm": 77}, {}, "ST-ATTS-012", "vms"),
    ({"vm": 77}, {"any_vm": True}, "ST-ATTS-012", "vms"),
)
def test_another_instance(made, reference, code, where):
    """Ids, names and numbers of another one; the honest one is let in by the same rules."""
    world = GoogleAppraiser(google.reference(**reference))
    instance = world.key(named(**made), (), NOW).instance
    error = refused(code, world.judge, instance, (google.VM,), "node-0")
    assert error.where.endswith(where)
    WORLD.judge(key().instance, (google.VM,), "node-0")


def test_an_instance_in_a_zone_that_is_named():
    world = GoogleAppraiser(google.reference(zones=("us-central1-a", google.ZONE)))
    world.judge(world.key(named(), (), NOW).instance, (google.VM,), "node-0")


def test_instances_that_come_and_go():
    refused("ST-ATTS-012", WORLD.judge, key().instance, (), "node-0")
    GoogleAppraiser(google.reference(any_vm=True)).judge(key().instance, (), "node-0")
    tests = GoogleAppraiser(google.reference(allow_test=True))
    tests.judge(key(properties()).instance, (google.VM,), "node-0")


@pytest.mark.forgery
def test_reference_values_with_a_bad_endorsement():
    endorsement = google.good_endorsement()
    changed = endorsement[:-1] + bytes([endorsement[-1] ^ 1])
    error = refused("ST-ATTS-009", GoogleAppraiser, google.reference(endorsements=(changed,)))
    assert "endorsements[0]" in error.where


# The kind of VM.


def judged(boot, kind="sev-snp", pcr0=None, log=None):
    return check_technology(log or boot.log(), pcr0 or boot.registers()[0], kind)


def test_the_kind_of_a_vm():
    judged(google.boot("sev-snp"))
    judged(google.boot("tdx"), "tdx")


HONEST = google.boot("sev-snp")


SAID = google.host_info("sev-snp")


@forgeries(
    "boot, kind",
    *((google.boot(kind), "sev-snp") for kind in ("none", "sev", "tdx")),
    (google.boot("sev-snp"), "tdx"),
    (google.Boot(), "sev-snp"),
    *((google.Boot(host=host), "sev-snp") for host in (SAID + b"\0", SAID[:31], SAID.lower())),
)
def test_another_kind(boot, kind):
    refused("ST-ATTS-446", judged, boot, kind)


@pytest.mark.forgery
def test_a_log_that_tells_of_another_kind_than_was_measured():
    """Data are the log's own word: only their digest is signed."""
    plain = google.boot("none")
    told = plain.log().replace(google.host_info("none"), google.host_info("sev-snp"))
    refused("ST-ATTS-446", judged, plain, log=told)
    refused("ST-ATTS-204", judged, plain, log=HONEST.log())
    refused("ST-ATTS-201", judged, plain, log=b"?")


@pytest.mark.forgery
def test_a_loader_says_it_once_more():
    """What is measured later into PCR 0 by whoever is root cannot say it a second time."""
    plain = google.boot("none")
    events = list(plain.events())
    events.insert(3, google.Event(0, eventlog.EventType.NONHOST_INFO, google.host_info("sev-snp")))
    log = google.encode_log(events, (Hash.SHA256,))
    pcr0 = eventlog.replay(eventlog.parse(log))[0]
    refused("ST-ATTS-446", judged, plain, log=log, pcr0=pcr0)


@pytest.mark.vectors
@pytest.mark.skipif(not (ROOT / LOGS).is_dir(), reason=f"NO REAL LOG WAS CHECKED: {ROOT}/{LOGS}")
def test_real_logs():
    """A VM with SEV-SNP says so; plain VMs and those with SEV alone do not."""
    for name in ("ubuntu-2404-amd-sevsnp.bin", "cos-101-amd-sev.bin", "rhel8-uefi.bin"):
        log = vector(f"{LOGS}/{name}")
        given = (log, eventlog.replay(eventlog.parse(log))[0], "sev-snp")
        if "snp" in name:
            check_technology(*given)
        else:
            refused("ST-ATTS-446", check_technology, *given)


def check_flipped(seed):
    refused("ST-ATTS-444", key, turned(VM.certificate, random.Random(seed)))


@forgeries("seed", *range(8))
def test_a_bit_that_was_changed(seed):
    check_flipped(seed)


@pytest.mark.many
@pytest.mark.forgery
def test_many_bits_that_were_changed():
    for seed in range(2000):
        check_flipped(seed)


def test_a_digest_is_that_of_the_key():
    read = x509.load_der_x509_certificate(VM.certificate)
    again = x509.load_der_x509_certificate(google.certify(PUBLIC))
    assert read.public_bytes(Encoding.DER) != again.public_bytes(Encoding.DER)
    assert key_digest(read) == key_digest(again)
