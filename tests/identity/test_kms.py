# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys in key services, behind a fake of securesystemslib's own seam. No cloud is asked."""

import pickle

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse, open_signer, read_public
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.tables import each
from tests.vocabulary import refused

signer = pytest.importorskip(
    "securesystemslib.signer", reason="securesystemslib is not installed: no key services in tests"
)

URIS = {
    "awskms": "awskms:arn:aws:kms:eu-central-1:111122223333:key/1234abcd",
    "gcpkms": "gcpkms:projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
    "azurekms": "azurekms://vault1.vault.azure.net/keys/release/0123abcd",
}
KIND = "application/vnd.example+json"


def ask(what):
    pytest.fail(f"asked for {what}")


class Service:
    """What each of the library's signers offers, and one key behind it."""

    def __init__(self, uri, key=None):
        self.uri = uri
        self.key = key or PrivateKey.generate(KeyKind.P256).native
        self.shown = self.key.public_key()
        self.error = None
        self.calls = 0
        self.named = uri

    def import_(self, *_):
        if self.error is not None:
            raise self.error
        pem = self.shown.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ).decode()
        return self.named, signer.SSlibKey("id", "ecdsa", "ecdsa-sha2-nistp256", {"public": pem})

    def from_priv_key_uri(self, uri, public, secrets=None):
        assert uri == self.uri
        return self

    def sign(self, data):
        self.calls += 1
        if self.error is not None:
            raise self.error
        return signer.Signature("id", PrivateKey(self.key).sign(data).hex())


@pytest.fixture(params=sorted(URIS))
def service(request, monkeypatch):
    found = Service(URIS[request.param])
    monkeypatch.setitem(signer.SIGNER_FOR_URI_SCHEME, request.param, found)
    return found


def test_a_key_of_a_service_signs_whatever_a_file_signs(service):
    key = open_signer(service.uri, ask)
    assert key.public.kind is KeyKind.P256
    assert read_public(service.uri, ask) == key.public
    found = dsse.verify(dsse.sign(b"x", KIND, [key]), KIND, {key.key_id: key.public})
    assert found.key_ids == {key.key_id}
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_service_is_not_believed(service):
    """Its public half is not that of the key; later it signs with another one."""
    honest = service.key
    service.shown = PrivateKey.generate(KeyKind.P256).native.public_key()
    refused(IdentityError, "ST-IDEN-027", open_signer, service.uri, ask)
    service.shown = honest.public_key()
    key = open_signer(service.uri, ask)
    service.key = PrivateKey.generate(KeyKind.P256).native
    refused(IdentityError, "ST-IDEN-027", key.sign, b"x")


def test_a_service_that_refuses_or_is_gone(service):
    service.error = ConnectionError("no route")
    assert "no route" in refused(IdentityError, "ST-IDEN-027", open_signer, service.uri, ask).what
    service.error = None
    key = open_signer(service.uri, ask)
    service.error = PermissionError("kms:Sign is not allowed")
    refused(IdentityError, "ST-IDEN-027", key.sign, b"x")


def test_a_key_of_another_curve(service):
    service.key = ec.generate_private_key(ec.SECP384R1())
    service.shown = service.key.public_key()
    refused(IdentityError, "ST-IDEN-027", open_signer, service.uri, ask)


def test_a_vault_that_shows_another_version(monkeypatch):
    service = Service(URIS["azurekms"])
    service.named = service.uri.replace("0123abcd", "ffff")
    monkeypatch.setitem(signer.SIGNER_FOR_URI_SCHEME, "azurekms", service)
    refused(IdentityError, "ST-IDEN-027", open_signer, service.uri, ask)


@each(
    "uri",
    "awskms:",
    "awskms:a b",
    "awskms:a?secret=b",
    "gcpkms:projects/p",
    "gcpkms:projects/p/locations/l/keyRings/r/cryptoKeys/k",
    "azurekms://vault1.vault.azure.net/keys/release",
    "azurekms://evil.example/keys/release/1",
    "azurekms://u:p@vault1.vault.azure.net/keys/release/1",
    "awskms:" + "a" * 3000,
)
def test_uris_of_another_form(uri):
    refused(IdentityError, "ST-IDEN-027", open_signer, uri, ask)


def test_without_the_clouds_own_library(monkeypatch):
    """The stock signer says so, and what to install is named."""
    from securesystemslib.signer import _aws_signer

    monkeypatch.setattr(_aws_signer, "AWS_IMPORT_ERROR", "boto3 is not installed")
    error = refused(UsageError, "ST-USAG-004", open_signer, URIS["awskms"], ask)
    assert "aws-kms" in error.fix
