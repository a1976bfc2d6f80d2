# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain key``, as a person uses it.

Commands of docs/how-to/sign-without-a-key.md are tried here.
"""

import json

import pytest
from cryptography.hazmat.primitives import serialization

from securetrain.cli.main import main
from securetrain.identity.keyfile import LABEL
from securetrain.identity.keys import PrivateKey, PublicKey


@pytest.fixture
def secret(tmp_path):
    def write(text, name="secret"):
        path = tmp_path / name
        path.write_text(f"{text}\n")
        return str(path)

    return write


def test_a_new_key(tmp_path, capsys):
    path = tmp_path / "k.pem"
    assert main(["key", "generate", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["key_id"] == PrivateKey.load(path).key_id
    assert path.stat().st_mode & 0o777 == 0o600
    public = tmp_path / "k.pem.pub"
    assert PublicKey.from_pem(public.read_bytes()).key_id == facts["key_id"]
    for gone in (path, public):  # either of the two is there
        gone.rename(tmp_path / "aside")
        assert main(["key", "generate", str(path)]) == 2
        assert "ST-USAG-005" in capsys.readouterr().err
        (tmp_path / "aside").rename(gone)
    assert PrivateKey.load(path).key_id == facts["key_id"]


def test_the_public_half_of_either_file(tmp_path, capsys):
    path = tmp_path / "k.pem"
    assert main(["key", "generate", str(path), "--kind", "ecdsa-p256"]) == 0
    capsys.readouterr()
    outputs = []
    for name in ("k.pem", "k.pem.pub"):
        assert main(["key", "show", str(tmp_path / name), "--pem"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == (tmp_path / "k.pem.pub").read_text()
    assert main(["key", "show", str(path), "--name", "log.example"]) == 18  # not Ed25519


def test_a_passphrase_is_set_changed_and_removed(tmp_path, secret, capsys):
    path = str(tmp_path / "k.pem")
    old, new, wrong = secret("one", "1"), secret("two", "2"), secret("three", "3")
    assert main(["key", "generate", path, "--passphrase-file", old]) == 0
    assert LABEL in (tmp_path / "k.pem").read_text()
    change = ["key", "passphrase", path, "--new-passphrase-file", new, "--passphrase-file"]
    assert main([*change, wrong]) == 2
    assert "ST-IDEN-001" in capsys.readouterr().err
    assert main([*change, old]) == 0
    assert main(["key", "show", path, "--passphrase-file", old]) == 2
    assert main(["key", "show", path, "--passphrase-file", new]) == 0
    capsys.readouterr()
    assert main(["key", "passphrase", path, "--passphrase-file", new, "--remove", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["encrypted"] is False
    assert main(["key", "show", path]) == 0
    assert main(["key", "passphrase", path, "--remove", "--new-passphrase-file", new]) == 2


def test_an_older_encryption_is_replaced(tmp_path, secret, capsys):
    path, key = tmp_path / "k.pem", PrivateKey.generate()
    path.write_bytes(key.pem(serialization.BestAvailableEncryption(b"one")))
    path.chmod(0o600)
    old = secret("one")
    assert main(["key", "show", str(path), "--passphrase-file", old]) == 0
    command = ["key", "passphrase", str(path), "--passphrase-file", old]
    assert main([*command, "--new-passphrase-file", old]) == 0
    assert LABEL in path.read_text()
    assert PrivateKey.load(path, b"one").key_id == key.key_id


def test_a_token_that_is_not_there(capsys):
    name = "pkcs11:token=t;object=o?module-path=/nowhere.so"
    assert main(["key", "show", name, "--passphrase-file", "/dev/null"]) in {2, 20}
    assert main(["key", "show", "pkcs11:token=t;object=o?module-path=/n.so&pin-value=1"]) == 2
    assert "ST-IDEN-019" in capsys.readouterr().err
