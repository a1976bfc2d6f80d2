# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keyless bundles of an instance of our own, and what is not quite one.

Without the package sigstore, the tests that verify skip themselves.
"""

import base64
import copy
import json
import socket
import sys

import pytest
from cryptography import x509

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import sigstore
from securetrain.identity.sigstore import (
    BUNDLE_LIMIT,
    KeylessPolicy,
    _utf8,
    verify_bytes,
    verify_dsse,
)
from tests import vocabulary
from tests.identity.private_sigstore import ISSUER, KIND, SPIFFE, Instance, new_key
from tests.tables import each, items

POLICY = KeylessPolicy(identity=SPIFFE, issuer=ISSUER)
PAYLOAD = b'{"statement":1}'


@pytest.fixture(scope="module")
def instance():
    return Instance()


@pytest.fixture
def root(instance, tmp_path, monkeypatch):
    """The trusted root's file. Nothing may be fetched."""
    pytest.importorskip(
        "sigstore", reason="sigstore is not installed: keyless bundles are not verified in tests"
    )

    def no(*_):
        pytest.fail("something wanted the network")

    monkeypatch.setattr(socket.socket, "connect", no)
    path = tmp_path / "trusted_root.json"
    path.write_bytes(instance.trusted_root())
    return path


def data(bundle) -> bytes:
    return json.dumps(bundle).encode()


def refused(code, bundle, root, policy=POLICY, kind=KIND):
    return vocabulary.refused(
        IdentityError, code, verify_dsse, bundle, kind, policy, root, "bundle"
    )


def test_a_statement_without_a_key_to_keep(instance, root):
    found = verify_dsse(data(instance.sign(PAYLOAD)), KIND, POLICY, root)
    assert found.payload.data == PAYLOAD
    assert (found.identity, found.issuer) == (SPIFFE, ISSUER)


@pytest.mark.forgery
@items(
    "identity, issuer",
    (SPIFFE[:-1], ISSUER),
    (f"{SPIFFE}0", ISSUER),
    ("spiffe://cluster.example/job/run-7/member/*", ISSUER),
    ("spiffe://cluster.example/.*", ISSUER),
    (SPIFFE.upper(), ISSUER),
    (SPIFFE, f"{ISSUER}/"),
    (SPIFFE, "https://attest"),
    (SPIFFE, "*"),
)
def test_identity_and_issuer_are_compared_whole(identity, issuer, instance, root):
    """T28."""
    policy = KeylessPolicy(identity=identity, issuer=issuer)
    error = refused("ST-IDEN-022", data(instance.sign(PAYLOAD)), root, policy)
    assert error.exit_code == 12


@pytest.mark.forgery
def test_a_second_name_or_a_second_issuer(instance, root):
    """Stock policies accept any of several names; exactly one is accepted here."""
    key = new_key()
    names = [x509.UniformResourceIdentifier(SPIFFE), x509.RFC822Name("other@example.org")]
    certificate = instance.certificate(key, names)
    bundle = data(instance.sign(PAYLOAD, certificate=certificate, key=key))
    from sigstore.models import Bundle, TrustedRoot
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    stock = Verifier(trusted_root=TrustedRoot.from_file(str(root)))
    stock.verify_dsse(Bundle.from_json(bundle), Identity(identity=SPIFFE, issuer=ISSUER))
    assert "2 names" in refused("ST-IDEN-022", bundle, root).what
    certificate = instance.certificate(key, newer_issuer="https://other.example")
    bundle = data(instance.sign(PAYLOAD, certificate=certificate, key=key))
    stock.verify_dsse(Bundle.from_json(bundle), Identity(identity=SPIFFE, issuer=ISSUER))
    assert "another issuer" in refused("ST-IDEN-022", bundle, root).what


@pytest.mark.forgery
def test_another_instance(instance, root):
    stranger = Instance()
    refused("ST-IDEN-021", data(stranger.sign(PAYLOAD)), root)
    assert refused("ST-IDEN-021", data(instance.sign(PAYLOAD)), None).exit_code == 11
    # Each of its three keys is needed: with one of another instance, nothing verifies.
    for part in ("ca_key", "ct_key", "log_key"):
        mixed = copy.copy(instance)
        setattr(mixed, part, getattr(stranger, part))
        if part == "ca_key":
            mixed.ca = stranger.ca
        refused("ST-IDEN-021", data(mixed.sign(PAYLOAD)), root)


def bent(bundle, change):
    bundle = copy.deepcopy(bundle)
    change(bundle, bundle["verificationMaterial"]["tlogEntries"][0])
    return data(bundle)


@pytest.mark.forgery
@items(
    "id, code, change",
    (
        "another payload",
        "ST-IDEN-021",
        lambda b, e: b["dsseEnvelope"].update(payload=base64.b64encode(b"x").decode()),
    ),
    (
        "another type",
        "ST-IDEN-021",
        lambda b, e: b["dsseEnvelope"].update(payloadType="text/plain"),
    ),
    ("none", "ST-IDEN-021", lambda b, e: b["dsseEnvelope"].update(signatures=[])),
    ("no envelope", "ST-IDEN-020", lambda b, e: b.pop("dsseEnvelope")),
    ("not logged", "ST-IDEN-020", lambda b, e: b["verificationMaterial"].update(tlogEntries=[])),
    ("no proof", "ST-IDEN-020", lambda b, e: e.pop("inclusionProof")),
    ("no time", "ST-IDEN-020", lambda b, e: e.pop("inclusionPromise")),
    ("another time", "ST-IDEN-021", lambda b, e: e.update(integratedTime="1")),
    (
        "another root",
        "ST-IDEN-021",
        lambda b, e: e["inclusionProof"].update(rootHash=base64.b64encode(bytes(32)).decode()),
    ),
    ("media type", "ST-IDEN-020", lambda b, e: b.update(mediaType="x")),
    (
        "a key instead of a certificate",
        "ST-IDEN-020",
        lambda b, e: b["verificationMaterial"].update(publicKey={"hint": "x"}, certificate=None),
    ),
)
def test_what_is_bent(code, change, instance, root):
    good = instance.sign(PAYLOAD)
    verify_dsse(data(good), KIND, POLICY, root)  # the control
    refused(code, bent(good, change), root)


def test_another_payload_type_than_was_asked_for(instance, root):
    refused("ST-IDEN-004", data(instance.sign(PAYLOAD)), root, kind="application/other")


def test_a_statement_is_not_a_signature_over_bytes(instance, root):
    with pytest.raises(IdentityError, match="ST-IDEN-021"):
        verify_bytes(data(instance.sign(PAYLOAD)), PAYLOAD, POLICY, root)


@pytest.mark.parametrize("bundle", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 5000])
def test_malformed(bundle, root):
    assert refused("ST-IDEN-020", bundle, root).exit_code == 10


def test_a_trusted_root_that_is_none(instance, root, tmp_path):
    root.write_bytes(b"{}")
    refused("ST-IDEN-021", data(instance.sign(PAYLOAD)), root)
    with pytest.raises(UsageError, match="ST-USAG-002"):
        verify_dsse(b"{}", KIND, POLICY, tmp_path / "none.json")


def test_a_bundle_that_is_too_large():
    refused("ST-IDEN-020", b" " * (BUNDLE_LIMIT + 1), None)


@each("identity, issuer", ("", ISSUER), (SPIFFE, ""), ("a\nb", ISSUER), ("a" * 2049, ISSUER))
def test_nobody_and_anybody_cannot_be_asked_for(identity, issuer):
    vocabulary.refused(UsageError, "ST-USAG-001", KeylessPolicy, identity=identity, issuer=issuer)


def test_without_the_package(monkeypatch):
    for name in ("sigstore", "sigstore.models", "sigstore.verify"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install '\.\[sigstore\]'"):
        verify_dsse(b"{}", KIND, POLICY)


def test_the_refusal_of_a_signer_of_bytes_is_told_with_the_place(monkeypatch):
    """Whose certificate it is, is judged within the library: what it raises there must come out."""

    class Refusing:
        def verify_artifact(self, *_: object) -> None:
            raise IdentityError("ST-IDEN-022", "somebody else")

    monkeypatch.setattr(sigstore, "_prepare", lambda *_: (Refusing(), None))
    with pytest.raises(IdentityError) as error:
        verify_bytes(b"{}", PAYLOAD, POLICY, None, "model.sig")
    assert (error.value.code, error.value.where) == ("ST-IDEN-022", "model.sig")


@each(
    "der, text",
    (b"\x0c\x03abc", b"abc"),
    (b"\x0c\x02abc", b""),
    (b"\x0c\x05abc", b""),
    (b"\x13\x03abc", b""),
    (b"\x0c", b""),
    (b"", b""),
    (b"\x0c\x80" + b"a" * 128, b""),
    (b"\x0c\x81\x80" + b"a" * 128, b"a" * 128),
    (b"\x0c\x81\x81" + b"a" * 128, b""),
    (b"\x0c\x82\x80" + b"a" * 128, b""),
)
def test_an_issuer_is_one_text_of_exactly_its_length(der, text):
    extension = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8"), der)
    assert _utf8(extension) == text
