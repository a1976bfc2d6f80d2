# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Chains of certificates that must not lead to a root; `test_genuine_chain` is the control."""

import dataclasses
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CERTIFICATE_LIMIT, CertificateStatus, verify_chain
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.gpu.forge import END, FWID, NOW, ROLES, START, Device, device_info, key, roots
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

PDI = "00112233445566aa"
SECOND = timedelta(seconds=1)


def chain(chip="GH100", **certificates):
    return Device(PDI, chip, certificates=certificates).chain()


def reordered(*positions):
    certificates = chain()
    return tuple(certificates[position] for position in positions)


def verify(certificates, **changes):
    return verify_chain(certificates, **{"roots": roots(), "now": NOW, "where": "gpu 3", **changes})


def refused(code, what, certificates, role=None, **changes):
    where = f"gpu 3: {role} certificate" if role else "gpu 3"
    changes = {"says": what, "names": where, **changes}
    vocabulary.refused(AttestationError, f"ST-ATTS-{code}", verify, certificates, **changes)


@each("chip", "GH100", "GB100", "LS_10")
def test_genuine_chain(chip):
    identity = verify(chain(chip))
    assert identity.chip == chip
    assert identity.pdi == PDI
    assert identity.serial == "48b02df44660da06"
    assert identity.fwid == FWID
    assert identity.ueid == str(int(PDI, 16) + 1)
    assert identity.certificate_serials == ("112233445566ab", "7", "ca", "fa", "7")
    assert identity.expires == END.replace(microsecond=0)
    assert identity.key.public_numbers() == (
        Device(PDI, chip).private("leaf").public_key().public_numbers()
    )


def test_a_chain_that_says_more_than_it_must_is_fine():
    skid = (x509.SubjectKeyIdentifier(b"k"), False)
    assert verify(
        chain(
            leaf={"ca": False, "extensions": (*Device(PDI).specs()["leaf"].extensions, skid)},
            brom={"path_length": 0, "usage": ("key_cert_sign", "crl_sign")},
            family={"path_length": 2},
            root={"path_length": 9, "extensions": (skid,)},
        )
    )


# Who issued whom.


@each("pinned", frozenset({"ab" * 32}), frozenset())
def test_a_device_with_other_roots_is_another_device(pinned):
    refused(609, "is not pinned", chain(), "root", roots=pinned)


LEAF = Device(PDI).specs()["leaf"]
OTHER = key("other")
NAMES = {"leaf": "FMC", "brom": "BROM", "ica": "ICA", "family": "family", "root": "root"}
CONSTRAINED = (x509.NameConstraints(None, [x509.DNSName("a.b")]), True)
STRANGE = (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
P256, P521 = (
    ec.generate_private_key(curve()).public_key() for curve in (ec.SECP256R1, ec.SECP521R1)
)
ED25519 = ed25519.Ed25519PrivateKey.generate().public_key()
ANOTHER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "X")])
BAD = {
    "root-key-that-signed-nothing": ("root", "did not sign it", {"signer": OTHER}),
    "root-issued-by-another": ("root", "issued by 'CN=X'", {"issuer": ANOTHER}),
    "family-of-another-root": ("family", "did not sign it", {"signer": OTHER}),
    "ica-of-another-family": ("ica", "did not sign it", {"signer": OTHER}),
    "brom-of-another-ica": ("brom", "did not sign it", {"signer": OTHER}),
    "leaf-of-another-brom": ("leaf", "did not sign it", {"signer": OTHER}),
    "leaf-that-signed-itself": ("leaf", "did not sign it", {"signer": LEAF.private}),
    "leaf-names-another-issuer": ("leaf", "issued by", {"issuer": LEAF.name()}),
    "ica-names-another-issuer": ("ica", "issued by", {"issuer": LEAF.name()}),
    # What an issuer must be.
    "brom-is-no-ca": ("brom", "not a CA", {"ca": False}),
    "ica-is-no-ca": ("ica", "not a CA", {"ca": False}),
    "family-is-no-ca": ("family", "not a CA", {"ca": False}),
    "root-is-no-ca": ("root", "not a CA", {"ca": False}),
    "brom-without-constraints": ("brom", "basicConstraints", {"ca": None}),
    "ica-constraints-not-critical": ("ica", "basicConstraints", {"critical": False}),
    "ica-of-path-length-0": ("ica", "path length is 0, 1 CAs", {"path_length": 0}),
    "family-of-path-length-1": ("family", "path length", {"path_length": 1}),
    "root-of-path-length-2": ("root", "path length", {"path_length": 2}),
    "brom-without-cert-sign": ("brom", "keyCertSign", {"usage": ("digital_signature", "crl_sign")}),
    "ica-without-key-usage": ("ica", "no keyUsage", {"usage": None}),
    # What a leaf must be.
    "leaf-is-a-ca": ("leaf", "it is a CA", {"ca": True}),
    "leaf-may-sign-certificates": (
        *("leaf", "digitalSignature alone", {"usage": ("digital_signature", "key_cert_sign")}),
    ),
    "leaf-may-not-sign": ("leaf", "digitalSignature alone", {"usage": ("key_agreement",)}),
    "leaf-without-key-usage": ("leaf", "no keyUsage", {"usage": None}),
    "leaf-with-a-strange": ("leaf", "1.2.3.4", {"extensions": (*LEAF.extensions, STRANGE)}),
    "ica-with-name-constraints": ("ica", "2.5.29.30", {"extensions": (CONSTRAINED,)}),
    # Algorithms.
    "leaf-signed-with-sha256": ("leaf", "not ecdsa-with-SHA384", {"hash": hashes.SHA256()}),
    "root-signed-with-sha512": ("root", "not ecdsa-with-SHA384", {"hash": hashes.SHA512()}),
    "leaf-key-of-p256": ("leaf", "not one of P-384", {"public": P256}),
    "leaf-key-of-p521": ("leaf", "not one of P-384", {"public": P521}),
    "leaf-key-of-rsa": ("leaf", "not one of P-384", {"public": rsa_key(2048).public_key()}),
    "brom-key-of-ed25519": ("brom", "not one of P-384", {"public": ED25519}),
}
"""The certificate that is refused, what is said of it, and how it differs from the good one."""
IDENTITIES = {
    "brom-of-another-name": ("2.5.4.3", chain(brom={"common_name": "GH100 A01 GSP"})),
    **{
        f"brom-with-number-{number}": ("2.5.4.5", chain(brom={"number": number}))
        for number in (None, "41AB", "41" + "0" * 17, "41" + "a" * 16)
    },
    **{
        f"leaf-of-{device}": (says, chain(leaf={"extensions": (device_info(device),)}))
        for device, says in (
            ("NVIDIA:GB100:48B02DF44660DA06", "its issuer is a GH100"),
            ("ACME:GH100:48B02DF44660DA06", "ACME"),
            ("NVIDIA:GH100:48B02DF44660DA06:x", "names the device"),
        )
    },
    "leaf-names-no-device": ("0 DMTF device names", chain(leaf={"extensions": ()})),
}
FIRST, *REST = chain()
PEM = x509.load_der_x509_certificate(FIRST).public_bytes(Encoding.PEM)
FORGED = {
    **{name: (chain(**{at: how}), 606, what, NAMES[at]) for name, (at, what, how) in BAD.items()},
    **{name: (forged, 614, what, None) for name, (what, forged) in IDENTITIES.items()},
    "root-of-the-same-name": (chain(root={"private": OTHER}), 609, "not pinned", "root"),
    "leaf-and-brom-swapped": (reordered(1, 0, 2, 3, 4), 606, "issued by", "BROM"),
    "root-first": (chain()[::-1], 606, "issued by", "root"),
    "ica-twice": (reordered(0, 1, 2, 2, 4), 606, "issued by", "family"),
    "no-certificates": ((), 605, "0 certificates", None),
    "without-the-root": (chain()[:4], 605, "4 certificates", None),
    "one-too-many": ((*chain(), chain()[4]), 605, "6 certificates", None),
    "empty-leaf": ((b"", *REST), 605, "", "FMC"),
    "truncated-leaf": ((FIRST[:-1], *REST), 605, "", "FMC"),
    "leaf-with-a-trailing-byte": ((FIRST + b"\0", *REST), 605, "", "FMC"),
    "pem-in-place-of-der": ((PEM, *REST), 605, "", "FMC"),
    "oversized-leaf": ((bytes(CERTIFICATE_LIMIT + 1), *REST), 605, "limit is 4096", "FMC"),
}


@forgeries("id, forged, code, what, role", FORGED)
def test_forged_chain_is_refused(forged, code, what, role):
    refused(code, what, forged, role)


@pytest.mark.forgery
def test_unused_bits_in_a_signature_are_refused():
    """Bits that no signature covers: a certificate would have more than one spelling."""
    for number in range(100):
        der, *rest = Device(f"{number:016x}").chain()
        signature = x509.load_der_x509_certificate(der).signature
        if signature[-1] & 1 == 0:  # else the DER is malformed, too
            break
    start = len(der) - len(signature)
    altered = der[: start - 1] + b"\1" + signature
    assert x509.load_der_x509_certificate(altered).signature == signature
    refused(605, "whole bytes", (altered, *rest), "FMC")


@forgeries("kept", 1, 2, 3, 4)
def test_a_lower_part_of_another_device_is_refused(kept):
    own, other = Device(PDI), Device("ff" * 8, "LS_10")
    mixed = (*other.chain()[:kept], *own.chain()[kept:])
    if kept >= 3:
        assert verify(mixed).pdi == "ff" * 8, "switches and GPUs share the family's CA"
        return
    refused(606, "issued by", mixed, ("FMC", "BROM")[kept - 1])


@pytest.mark.forgery
def test_the_brom_of_a_gpu_cannot_make_itself_a_switch():
    """Everything in the leaf is the device's own word; NVIDIA signed the BROM certificate."""
    gpu, switch = Device(PDI), Device(PDI, "LS_10")
    leaf = dataclasses.replace(
        switch.specs()["leaf"], private=gpu.private("leaf"), extensions=gpu_extensions(switch)
    )
    forged = leaf.issued_by(gpu.specs()["brom"])
    refused(614, "its issuer is a GH100", (forged, *gpu.chain()[1:]))


def gpu_extensions(switch):
    return (switch.specs()["leaf"].extensions[0], Device(PDI).specs()["leaf"].extensions[1])


# Time.


@forgeries("role", *ROLES)
def test_every_certificate_has_its_time(role):
    times = {"not_before": NOW - SECOND, "not_after": NOW + SECOND}
    certificates = chain(**{role: times})
    assert verify(certificates).expires == NOW + SECOND
    verify(certificates, now=NOW + SECOND)
    verify(certificates, now=NOW - SECOND)
    refused(607, "expired 2026-06-01", certificates, NAMES[role], now=NOW + 2 * SECOND)
    refused(608, "valid from 2026-06-01", certificates, NAMES[role], now=NOW - 2 * SECOND)


# Status.


class Responder:
    """Answers good but for one common name."""

    def __init__(self, name="", status=CertificateStatus.REVOKED):
        self.name, self.status, self.asked = name, status, []

    def __call__(self, certificate, issuer):
        certificate.verify_directly_issued_by(issuer)
        name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        self.asked.append(name)
        return self.status if name == self.name else CertificateStatus.GOOD


def test_the_status_of_all_issued_by_nvidia_is_asked():
    responder = Responder()
    verify(chain(), status=responder)
    assert responder.asked == [
        "NVIDIA GH100 Identity",
        "NVIDIA GH100 Provisioner ICA 1",
        "GH100 A01 GSP BROM",
    ]


@forgeries(
    "name, role",
    ("NVIDIA GH100 Identity", "family"),
    ("NVIDIA GH100 Provisioner ICA 1", "ICA"),
    ("GH100 A01 GSP BROM", "BROM"),
)
@each(
    "status, code",
    (CertificateStatus.REVOKED, 610),
    (CertificateStatus.HOLD, 611),
    (CertificateStatus.UNKNOWN, 612),
)
def test_a_status_that_is_not_good_is_refused(name, role, status, code):
    cache = paths.Links()
    verify(chain(), status=Responder(), cache=cache)
    refused(code, f"status is {status}", chain(), role, status=Responder(name, status), cache=cache)


# Cache.


def counted(monkeypatch):
    """The positions of the certificates that are checked, in order."""
    calls = []

    original = paths._link

    def link(*arguments):
        calls.append(arguments[1])
        return original(*arguments)

    monkeypatch.setattr(paths, "_link", link)
    return calls


def test_the_second_time_costs_nothing(monkeypatch):
    calls, cache, certificates = counted(monkeypatch), paths.Links(), chain()
    first = verify(certificates, cache=cache)
    assert calls == [4, 3, 2, 1, 0]
    again = verify(certificates, cache=cache)
    assert calls == [4, 3, 2, 1, 0]
    assert dataclasses.replace(again, key=first.key) == first
    assert len(cache) == 5


def test_devices_share_what_they_share(monkeypatch):
    calls, cache = counted(monkeypatch), paths.Links()
    verify(chain(), cache=cache)
    del calls[:]
    verify(Device("bb" * 8).chain(), cache=cache)
    assert calls == [1, 0]


def test_without_a_cache_nothing_is_remembered(monkeypatch):
    calls, certificates = counted(monkeypatch), chain()
    verify(certificates)
    verify(certificates)
    assert calls == [4, 3, 2, 1, 0] * 2


@pytest.mark.forgery
def test_the_cache_remembers_neither_time_nor_roots_nor_failures():
    cache = paths.Links()
    certificates = chain(ica={"not_before": NOW - SECOND, "not_after": NOW})
    verify(certificates, cache=cache)
    refused(607, "expired", certificates, "ICA", now=NOW + SECOND, cache=cache)
    refused(608, "valid from", certificates, "ICA", now=NOW - 2 * SECOND, cache=cache)
    refused(609, "not pinned", certificates, "root", roots=frozenset(), cache=cache)
    for _ in range(2):
        refused(606, "not sign", chain(leaf={"signer": OTHER}), "FMC", cache=cache)
    verify(certificates, cache=cache)


@pytest.mark.forgery
def test_a_checked_certificate_does_not_stand_in_another_place():
    """A CA that is good in its own place is no leaf, and no leaf is a CA."""
    cache = paths.Links()
    own = chain()
    verify(own, cache=cache)
    refused(606, "issued by", (own[1], *own[1:]), "FMC", cache=cache)
    refused(606, "issued by", (own[0], own[0], *own[2:]), "BROM", cache=cache)
    refused(606, "issued by", (*own[:2], *own[3:], own[4]), "BROM", cache=cache)


def test_the_cache_is_bounded_and_keeps_what_is_used():
    cache = paths.Links(7)
    for number in range(20):
        verify(Device(f"{number:016x}").chain(), cache=cache)
        assert len(cache) <= 7


def test_shared_certificates_stay(monkeypatch):
    cache = paths.Links(7)
    for number in range(20):
        verify(Device(f"{number:016x}").chain(), cache=cache)
    calls = counted(monkeypatch)
    verify(Device(f"{99:016x}").chain(), cache=cache)
    assert calls == [1, 0]


def test_validity_starts_where_the_certificates_do():
    verify(chain(), now=START)
    refused(608, "valid from", chain(), "FMC", now=START - SECOND)
