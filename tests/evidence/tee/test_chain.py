# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is remembered of makers' signatures, and what never is; the paths are in `test_snp.py`."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee import chain
from securetrain.evidence.tee.tdx_collateral import INTEL
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.tee import forge
from tests.evidence.tee.forge import DAY, NOW, certificate, ed25519_key, p256_key, p384_key, rsa_key
from tests.tables import forgeries

ROOT = certificate("root", "root", p256_key("root"), p256_key("root"), ca=True)
CA = certificate("ca", "root", p256_key("ca"), p256_key("root"), ca=True)
LEAF = certificate("leaf", "ca", p256_key("leaf"), p256_key("ca"))
PATH = (("leaf", LEAF), ("CA", CA), ("root", ROOT))
PIN = paths.spki_sha256(ROOT)


def refused(code, text, path=PATH, now=NOW, pin=PIN, *, memory=None):
    vocabulary.refused(
        AttestationError, code, chain.verify_path, path, pin, now, INTEL, memory, says=text
    )


@pytest.fixture
def checked(monkeypatch):
    """The place of every certificate that is really checked against its issuer."""
    calls = []
    check = paths._check_issued

    def counted(*arguments):
        calls.append(arguments[3])
        check(*arguments)

    monkeypatch.setattr(paths, "_check_issued", counted)
    return calls


def test_dates_are_judged_each_time():
    memory = chain.Memory()
    chain.verify_path(PATH, PIN, NOW, INTEL, memory)
    refused("ST-ATTS-505", "is good from", now=forge.END + DAY, memory=memory)
    chain.verify_path(PATH, PIN, NOW, INTEL, memory)


def test_good_signatures_are_checked_once_for_each_memory(checked):
    memory = chain.Memory()
    for _ in range(3):
        chain.verify_path(PATH, PIN, NOW, INTEL, memory)
    assert len(checked) == 3
    chain.verify_path(PATH, PIN, NOW, INTEL, chain.Memory())
    assert len(checked) == 6
    chain.verify_path(PATH, PIN, NOW, INTEL)
    assert len(checked) == 9


@pytest.mark.forgery
def test_bad_signatures_are_never_remembered():
    forged = certificate("leaf", "ca", p256_key("leaf"), p256_key("x"))
    path = (("leaf", forged), *PATH[1:])
    memory = chain.Memory()
    for _ in range(3):
        refused("ST-ATTS-504", "is not signed by the CA", path=path, memory=memory)
    assert len(memory.links) == 2


@pytest.mark.forgery
def test_nothing_of_a_path_without_the_pinned_root_is_remembered(checked):
    memory = chain.Memory()
    refused("ST-ATTS-504", "the pinned root has", pin="00" * 32, memory=memory)
    assert checked == []
    assert len(memory.links) == 0


def test_the_memory_is_bounded():
    memory = chain.Memory()
    for number in range(chain.REMEMBERED_SIGNATURES + 10):
        memory.signed.put((CA, INTEL.scheme, b"", str(number).encode()), value=True)
        memory.files.put((str(number).encode(), INTEL, ""), (LEAF,))
    assert len(memory.signed) == chain.REMEMBERED_SIGNATURES
    assert len(memory.files) == chain.REMEMBERED_FILES


@pytest.mark.forgery
def test_a_longer_path():
    # Four certificates: the CA that must not have another below it says so.
    low = certificate("low", "ca", p256_key("low"), p256_key("ca"), ca=True)
    leaf = certificate("leaf", "low", p256_key("leaf"), p256_key("low"))
    chain.verify_path((("leaf", leaf), ("low", low), *PATH[1:]), PIN, NOW, INTEL)
    high = certificate("ca", "root", p256_key("ca"), p256_key("root"), ca=True, path_length=0)
    path = (("leaf", leaf), ("low", low), ("CA", high), PATH[2])
    refused("ST-ATTS-504", "its path length is 0, 1 CAs are below it", path=path)


@pytest.mark.forgery
def test_names_that_do_not_chain():
    leaf = certificate("leaf", "another", p256_key("leaf"), p256_key("ca"))
    refused("ST-ATTS-504", "does not name the CA", path=(("leaf", leaf), *PATH[1:]))


@forgeries(
    "id, key", ("p384", p384_key("big")), ("rsa", rsa_key("x")), ("ed25519", ed25519_key("x"))
)
def test_a_ca_with_a_key_of_another_kind(key):
    ca = certificate("ca", "root", key, p256_key("root"), ca=True)
    leaf = certificate("leaf", "ca", p256_key("leaf"), key)
    refused(
        "ST-ATTS-504", "its key is not one of P-256", path=(("leaf", leaf), ("CA", ca), PATH[2])
    )


@forgeries(
    "id, extensions",
    ("no-usage", [(x509.BasicConstraints(True, None), True)]),
    ("no-constraints", [(forge.CA_USAGE, True)]),
    ("no-ca", [(x509.BasicConstraints(False, None), True), (forge.CA_USAGE, True)]),
)
def test_a_ca_that_is_half_of_one(extensions):
    ca = certificate("ca", "root", p256_key("ca"), p256_key("root"), extensions=extensions)
    path = (("leaf", LEAF), ("CA", ca), PATH[2])
    refused("ST-ATTS-504", "may not sign certificates", path=path)


def test_a_leaf_that_says_it_is_no_ca():
    extensions = [(x509.BasicConstraints(False, None), True), (forge.SIGNING_USAGE, True)]
    leaf = certificate("leaf", "ca", p256_key("leaf"), p256_key("ca"), extensions=extensions)
    chain.verify_path((("leaf", leaf), *PATH[1:]), PIN, NOW, INTEL)


@pytest.mark.forgery
def test_another_algorithm_beside_the_signature():
    # That field is not signed; the same one inside the certificate is.
    name = bytes.fromhex("06082a8648ce3d040302")
    der = forge.der(LEAF)
    assert der.count(name) == 2
    place = der.rindex(name)
    other = chain.load_certificate(
        der[:place] + name[:-1] + b"\x03" + der[place + len(name) :], INTEL, "x"
    )
    assert other.tbs_certificate_bytes == LEAF.tbs_certificate_bytes
    assert other.signature == LEAF.signature
    refused("ST-ATTS-504", "is not signed by the CA", path=(("leaf", other), *PATH[1:]))


@pytest.mark.forgery
def test_another_digest_than_the_makers():
    leaf = certificate(
        "leaf", "ca", p256_key("leaf"), p256_key("ca"), hash_algorithm=hashes.SHA384()
    )
    refused("ST-ATTS-504", "is not signed by the CA", path=(("leaf", leaf), *PATH[1:]))


def test_a_signature_over_another_message():
    assert chain.is_signed(CA, INTEL.scheme, LEAF.signature, LEAF.tbs_certificate_bytes)
    assert not chain.is_signed(CA, INTEL.scheme, LEAF.signature, LEAF.tbs_certificate_bytes[1:])
    assert not chain.is_signed(ROOT, INTEL.scheme, LEAF.signature, LEAF.tbs_certificate_bytes)


def test_common_names():
    def named(*values):
        oid = x509.NameOID.COMMON_NAME
        return x509.Name([x509.NameAttribute(oid, value) for value in values])

    assert chain.common_name(named("a")) == "a"
    assert chain.common_name(named()) == ""
    assert chain.common_name(named("a", "b")) == ""


def test_a_list_without_an_end():
    # The builder insists on one; real lists of other makers have none.
    crl = x509.load_der_x509_crl(forge.revocation_list("root", p256_key("root")))

    class Endless:
        next_update_utc = None

        def __getattr__(self, name):
            return getattr(crl, name)

    with pytest.raises(AttestationError, match="ST-ATTS-507") as caught:
        chain.verify_crl(Endless(), ROOT, NOW, INTEL, "list")  # type: ignore[arg-type]
    assert "does not say until when" in caught.value.what


def test_pem_and_der():
    assert chain.load_certificates(forge.der(CA), INTEL, "x") == [CA]
    assert chain.load_certificates(forge.pem(CA, ROOT), INTEL, "x", limit=2) == [CA, ROOT]
    with pytest.raises(AttestationError, match="ST-ATTS-502"):
        chain.load_certificates(forge.pem(CA, ROOT), INTEL, "x", limit=1)


def test_files_that_are_too_large():
    good = forge.pem(CA)
    assert chain.load_certificates(good + b"\n" * 1000, INTEL, "x") == [CA]
    with pytest.raises(AttestationError, match="ST-ATTS-502"):
        chain.load_certificates(good + b"\n" * (300 << 10), INTEL, "x")


@pytest.mark.forgery
def test_a_list_by_a_certificate_that_does_not_say_what_it_may():
    issuer = certificate("root", "root", p256_key("root"), p256_key("root"))
    crl = chain.load_crl(forge.revocation_list("root", p256_key("root")), INTEL, "list")
    with pytest.raises(AttestationError, match="may not sign lists"):
        chain.verify_crl(crl, issuer, NOW, INTEL, "list")
    chain.verify_crl(crl, ROOT, NOW, INTEL, "list")
