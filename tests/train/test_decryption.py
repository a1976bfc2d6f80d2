# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where the key of encrypted checkpoints may lie."""

import os

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from securetrain.artifacts.tree.encryption import DecryptionKey
from securetrain.core import hold_secret, secret_variable
from securetrain.core.errors import IdentityError, RuntimeRefusal
from securetrain.train.decryption import decryption_keys
from tests.vocabulary import refused


def pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_file_a_secret_or_none(tmp_path, monkeypatch):
    owner = DecryptionKey.generate()
    path = tmp_path / "storage.key"
    path.write_bytes(pem(owner.native))
    path.chmod(0o600)
    assert decryption_keys("") == []
    assert decryption_keys(str(path))[0].recipient == owner.recipient
    refused(RuntimeRefusal, "ST-RUNT-036", decryption_keys, "secret:storage-key")
    fd = hold_secret("storage-key", pem(owner.native))
    monkeypatch.setenv(secret_variable("storage-key"), str(fd))
    assert decryption_keys("secret:storage-key")[0].recipient == owner.recipient
    os.close(fd)
    for wrong in (b"CANARY-NO-KEY", pem(Ed25519PrivateKey.generate())):
        fd = hold_secret("storage-key", wrong)
        monkeypatch.setenv(secret_variable("storage-key"), str(fd))
        error = refused(IdentityError, "ST-IDEN-001", decryption_keys, "secret:storage-key")
        assert "CANARY" not in str(error)
        os.close(fd)
