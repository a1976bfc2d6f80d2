# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Launch endorsements: honest ones, and everything that they are not."""

import random
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.google_certificates import pinned
from securetrain.evidence.tee.google_endorsement import (
    ENDORSEMENT_LIMIT,
    MAX_FIELDS,
    endorsed,
    open_endorsement,
)
from tests import vocabulary
from tests.evidence.tee import forge_google as google
from tests.evidence.tee.forge import NOW, pem, short_rsa_key
from tests.evidence.tee.forge_amd import MEASUREMENT
from tests.evidence.tpm import forge
from tests.identity.worlds import usage
from tests.tables import each, forgeries

ROOTS = pinned([google.tcb_root().pem], "endorsement_roots")
GOOD = google.good_endorsement()


def refused(code, call, *args, **kwargs):
    return vocabulary.refused(AttestationError, code, call, *args, **kwargs)


def read(data=GOOD, roots=ROOTS):
    return open_endorsement(data, roots)


def bad(data, roots=ROOTS):
    return refused("ST-ATTS-442", read, data, roots)


def test_an_endorsement():
    found = read()
    assert found.firmware == "d1" * 48
    assert found.build == 700_000_000
    assert found.issued.year == 2025
    assert {one.count: one.measurement for one in found.snp} == {
        google.VCPUS: MEASUREMENT.hex(),
        2: "02" * 48,
    }
    assert {one.count for one in found.tdx} == {google.MEMORY, 64}
    assert {one.svn for one in (*found.snp, *found.tdx)} == {google.SVN}
    assert found.validity.covers(NOW)


def test_what_google_adds_is_stepped_over():
    more = google.text(99, b"new") + google.number(98, 1 << 63)
    fixed = google.varint(97 << 3 | 1) + bytes(8) + google.varint(96 << 3 | 5) + bytes(4)
    changed = google.endorsement(sev_snp=google.snp_golden(more=more), more=more + fixed)
    assert read(changed).snp == read().snp
    svsm = google.text(7, b"\x77" * 48)
    with_svsm = read(google.endorsement(sev_snp=google.snp_golden(more=svsm)))
    assert with_svsm.snp == read().snp, "an SVSM is none of a guest"


def test_a_signer_below_another_ca():
    between = forge.Authority("between", parent=google.tcb_root(), key=short_rsa_key("between"))
    leaf = google.signer(authority=between).public_bytes(Encoding.DER)
    made = google.endorsement(cert=leaf, ca_bundle=pem(between.certificate))
    assert read(made).snp == read().snp
    bad(google.endorsement(cert=leaf))
    bad(google.endorsement(cert=leaf, ca_bundle=pem(between.certificate) * 9))


@each(
    "how, counts, why",
    ({"measurement": "ab" * 48}, (), "do not name"),
    ({"min_svn": google.SVN + 1}, (), "security version"),
    ({}, (google.VCPUS + 1,), "virtual CPUs"),
    ({"now": NOW + timedelta(days=36500)}, (), "good from"),
    ({"now": NOW - timedelta(days=36500)}, (), "good from"),
    ({"kind": "tdx"}, (), "do not name"),
)
def test_what_is_endorsed(how, counts, why):
    fields = {"kind": "sev-snp", "measurement": MEASUREMENT.hex(), "now": NOW, **how}
    least = fields.pop("min_svn", 0)
    honest = endorsed(
        [read()], "sev-snp", MEASUREMENT.hex(), NOW, counts=(google.VCPUS,), min_svn=3
    )
    assert honest[1].count == google.VCPUS
    call = (fields["kind"], fields["measurement"], fields["now"])
    refused("ST-ATTS-443", endorsed, [read()], *call, counts=counts, min_svn=least, says=why)


def test_the_memory_of_a_guest_with_tdx():
    mrtd = google.MRTD.hex()
    found = endorsed([read()], "tdx", mrtd, NOW, counts=(google.MEMORY,), min_svn=0)
    assert found[1].count == google.MEMORY
    refused("ST-ATTS-443", endorsed, [read()], "tdx", mrtd, NOW, counts=(1,), min_svn=0, says="GiB")


# Forgeries.

OTHER = google.short_rsa_key("stranger")
CA_BITS = ("key_cert_sign", "digital_signature")


def by(**how):
    """An endorsement by a signer that is made so."""
    return google.endorsement(cert=google.signer(**how).public_bytes(Encoding.DER))


def signed_by(key):
    """An endorsement that is signed by this key, for which it has a certificate."""
    return google.endorsement(cert=google.signer(key=key).public_bytes(Encoding.DER), key=key)


def pkcs1(signed):
    signature = google.short_rsa_key("tcb-signer").sign(signed, padding.PKCS1v15(), hashes.SHA256())
    return google.text(1, signed) + google.text(2, signature)


def salted(length):
    signed = google.golden()
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), length)
    signature = google.short_rsa_key("tcb-signer").sign(signed, pss, hashes.SHA256())
    return google.text(1, signed) + google.text(2, signature)


@forgeries(
    "make",
    lambda: google.endorsement(key=OTHER),
    lambda: pkcs1(google.golden()),
    lambda: salted(20),
    lambda: salted(0),
    lambda: by(authority=forge.Authority("stranger")),
    lambda: by(authority=google.root()),
    lambda: by(key=OTHER),
    lambda: by(key=ec.generate_private_key(ec.SECP256R1())),
    lambda: signed_by(rsa.generate_private_key(65537, 1024)),
    lambda: by(usage=usage("key_encipherment")),
    lambda: by(usage=usage("digital_signature", "key_agreement")),
    lambda: by(usage=usage(*CA_BITS)),
    lambda: by(pss=False, digest=hashes.SHA224()),
    lambda: by(
        extensions={"x": (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"x"), True)}
    ),
    lambda: by(extensions={"basic": (x509.BasicConstraints(True, None), True)}),
    lambda: google.endorsement(cert=google.tcb_root().der, key=google.short_rsa_key("tcb-root")),
    lambda: google.endorsement(cert=b""),
    lambda: google.endorsement(cert=b"\x30\x03\x02\x01\x01"),
    lambda: google.endorsement(cert=google.good_signer() + b"\0"),
    lambda: google.endorsement(cert=bytes(9000)),
    lambda: google.endorsement(ca_bundle=b"none"),
    lambda: google.endorsement(digest=b"\xd1" * 32),
    lambda: google.endorsement(digest=b""),
    lambda: google.endorsement(timestamp=b""),
    lambda: google.endorsement(timestamp=google.number(1, (1 << 64) - 1)),
    lambda: google.endorsement(timestamp=google.text(1, b"now")),
    lambda: google.endorsement(sev_snp=b"", tdx=b""),
    lambda: google.endorsement(sev_snp=google.snp_golden(measurements={}), tdx=b""),
    lambda: google.endorsement(sev_snp=google.snp_golden(measurements={0: MEASUREMENT})),
    lambda: google.endorsement(sev_snp=google.snp_golden(measurements={8: b"\1" * 47})),
    lambda: google.endorsement(sev_snp=google.snp_golden(measurements={8: b"\1" * 49})),
    lambda: google.endorsement(sev_snp=google.snp_golden(measurements={1 << 17: MEASUREMENT})),
    lambda: google.endorsement(sev_snp=google.snp_golden(svn=1 << 32)),
    lambda: google.endorsement(
        sev_snp=google.snp_golden(more=google.snp_golden()[len(google.number(1, google.SVN)) :])
    ),
    lambda: google.endorsement(sev_snp=google.snp_golden(more=google.number(1, 9))),
    lambda: google.endorsement(sev_snp=google.snp_golden(more=google.number(2, 9))),
    lambda: google.endorsement(sev_snp=google.snp_golden() * 2),
    lambda: google.endorsement(tdx=google.tdx_golden(measurements={32: b""})),
    lambda: google.endorsement(tdx=google.tdx_golden(measurements={1 << 40: google.MRTD})),
    lambda: google.endorsement(more=google.text(4, google.good_signer())),
    lambda: google.endorsement(more=google.text(7, google.snp_golden())),
    lambda: google.endorsement(more=b"\x0b"),
    lambda: google.endorsement(more=b"\x0c"),
    lambda: google.endorsement(more=b"\x0e"),
    lambda: google.endorsement(more=b"\x00\x00"),
    lambda: google.endorsement(more=b"\xf8\x07\x80\x00"),
    lambda: google.endorsement(more=b"\xf8\x07" + b"\xff" * 10),
    lambda: google.endorsement(more=b"\xf8\x07" + b"\xff" * 9 + b"\x02"),
    lambda: google.endorsement(more=b"\xf8\x07"),
    lambda: google.endorsement(more=b"\xfa\x07\x05abcd"),
    lambda: google.endorsement(more=b"\xfd\x07abc"),
    lambda: google.endorsement(more=b"\xf9\x07abcdefg"),
    lambda: google.endorsement(more=google.number(50, 1) * MAX_FIELDS),
    lambda: b"",
    lambda: google.text(1, google.golden()),
    lambda: google.text(2, b"x" * 384),
    lambda: GOOD + GOOD,
    lambda: GOOD + google.text(2, b"x"),
    lambda: GOOD[:-1],
    lambda: GOOD + b"\x80",
    lambda: google.number(1, 7) + google.text(2, b"x"),
    lambda: GOOD + google.text(9, bytes(ENDORSEMENT_LIMIT)),
)
def test_a_forged_endorsement(make):
    read()
    bad(make())


@pytest.mark.forgery
def test_no_root_is_pinned():
    bad(GOOD, [])
    bad(GOOD, pinned([google.root().pem], "endorsement_roots"))
    refused("ST-ATTS-009", pinned, ["none"], "roots")


def flips(seed):
    """One bit of it is changed."""
    source = random.Random(seed)
    at = source.randrange(len(GOOD))
    return GOOD[:at] + bytes([GOOD[at] ^ 1 << source.randrange(8)]) + GOOD[at + 1 :]


def check_flipped(seed):
    """Refused, or the same: what nobody signed may be spelled otherwise."""
    changed = flips(seed)
    try:
        found = read(changed)
    except AttestationError:
        bad(changed)
    else:
        assert found == read()


@forgeries("seed", *range(8))
def test_a_bit_that_was_changed(seed):
    check_flipped(seed)


@pytest.mark.many
@pytest.mark.forgery
def test_many_bits_that_were_changed():
    for seed in range(2000):
        check_flipped(seed)
