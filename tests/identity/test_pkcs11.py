# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys in a token, on SoftHSM2; without it, the tests that need it skip themselves.

Commands of docs/how-to/sign-without-a-key.md are tried here.
"""

import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.pkcs11 import Pkcs11Key, parse_uri
from securetrain.identity.signers import open_signer, read_public
from tests import vocabulary
from tests.tables import each

PIN = "1234"
MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/softhsm/libsofthsm.so")
MODULE = next((path for path in MODULES if Path(path).exists()), "")
P256, ED25519 = "secp256r1", b"\x13\x0cedwards25519"
KIND = "application/example"


def uri(key="object=p256", token="token=release", query=""):
    return f"pkcs11:{token};{key}?module-path={MODULE}{query}"


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    """A token with a P-256 key, an Ed25519 key, a P-384 key, and two of one name."""
    tool = shutil.which("softhsm2-util")
    if not (tool and MODULE):
        pytest.skip("SoftHSM2 is not installed: no test signs with a key in a PKCS#11 token")
    pkcs11 = pytest.importorskip(
        "pkcs11", reason="python-pkcs11 is not installed: keys in tokens are not tested"
    )
    folder = tmp_path_factory.mktemp("hsm")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(
        f"directories.tokendir = {folder}/tokens\nlog.level = ERROR\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        for label in ("release", "twice", "twice"):
            command = [tool, "--init-token", "--free", "--label", label, "--pin", PIN]
            subprocess.run([*command, "--so-pin", "5678"], check=True, capture_output=True)
        library = pkcs11.lib(MODULE)
        with library.get_token(token_label="release").open(user_pin=PIN, rw=True) as session:
            _fill(pkcs11, session)
        yield folder
        pkcs11.unload(MODULE)


def _fill(pkcs11, session):
    from pkcs11.util.ec import encode_named_curve_parameters

    def make(label, number, curve):
        if curve == ED25519:
            kind, parameters = pkcs11.KeyType.EC_EDWARDS, curve
            mechanism = pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN
        else:
            kind, parameters = pkcs11.KeyType.EC, encode_named_curve_parameters(curve)
            mechanism = pkcs11.Mechanism.EC_KEY_PAIR_GEN
        domain = session.create_domain_parameters(
            kind, {pkcs11.Attribute.EC_PARAMS: parameters}, local=True
        )
        return domain.generate_keypair(
            mechanism=mechanism, store=True, label=label, id=bytes([number])
        )

    make("p256", 1, P256)
    make("ed", 2, ED25519)
    make("p384", 3, "secp384r1")
    make("pair", 4, P256)
    make("pair", 5, P256)
    # A public key that belongs to another private key.
    public, _ = make("mixed", 6, P256)
    _, private = make("other", 7, P256)
    public.copy({pkcs11.Attribute.LABEL: "wrong", pkcs11.Attribute.ID: b"\x08"})
    private.copy({pkcs11.Attribute.LABEL: "wrong", pkcs11.Attribute.ID: b"\x08"})


def refused(function, *arguments, match="."):
    caught = vocabulary.refused(IdentityError, match, function, *arguments)
    assert caught.code == "ST-IDEN-019"
    assert PIN not in str(caught)


@each("key, kind", ("p256", KeyKind.P256), ("ed", KeyKind.ED25519))
def test_an_envelope_signed_in_a_token(key, kind, token):
    signer = Pkcs11Key.open(uri(f"object={key}"), PIN.encode())
    assert signer.public.kind is kind
    for number in range(20):  # signatures whose numbers are short are encoded too
        payload = b"%d" % number
        envelope = dsse.sign(payload, KIND, [signer, PrivateKey.generate()])
        assert dsse.verify(envelope, KIND, {signer.key_id: signer.public}).data == payload
    signer.close()


def test_by_id_and_by_serial(token):
    by_name = Pkcs11Key.open(uri(), PIN.encode())
    for key in ("id=%01", "object=p256;id=%01;type=private"):
        found = Pkcs11Key.open(uri(key), PIN.encode())  # beside the first, on one login
        assert found.key_id == by_name.key_id
        assert found.sign(b"x")
        found.close()
    by_name.close()


def test_the_one_way_to_open_a_signer(token, tmp_path):
    asked = []

    def ask(what):
        asked.append(what)
        return PIN.encode()

    public = read_public(uri(), ask)
    signer = open_signer(uri(), ask)
    assert isinstance(signer, Pkcs11Key)
    assert signer.key_id == public.key_id
    signer.close()
    assert asked == ["PIN of the token"] * 2
    pin = tmp_path / "pin"
    pin.write_text(f"{PIN}\n")
    pin.chmod(0o600)
    assert read_public(uri(query=f"&pin-source=file:{pin}"), ask) == public
    assert len(asked) == 2
    pin.chmod(0o644)
    with pytest.raises(IdentityError, match="ST-IDEN-010"):
        read_public(uri(query=f"&pin-source=file:{pin}"), ask)


@each(
    "key, match",
    ("object=none", "0 keys"),
    ("object=pair", "2 keys"),
    ("object=p384", "neither Ed25519 nor"),
    ("object=wrong", "does not verify"),
)
def test_keys_that_cannot_be_used(key, match, token):
    refused(Pkcs11Key.open, uri(key), PIN.encode(), match=match)


def test_tokens_that_cannot_be_used(token):
    refused(Pkcs11Key.open, uri(token="token=none"), PIN.encode(), match="0 tokens")
    refused(Pkcs11Key.open, uri(token="token=twice"), PIN.encode(), match="2 tokens")
    refused(Pkcs11Key.open, uri(), b"9999", match="PinIncorrect")
    refused(Pkcs11Key.open, uri(), b"\xff", match="UTF-8")
    refused(Pkcs11Key.open, uri(), None)


def test_modules_that_are_none(token, tmp_path):
    (tmp_path / "text.so").write_text("not a library")
    for path in (tmp_path / "none.so", tmp_path, tmp_path / "text.so"):
        refused(Pkcs11Key.open, f"pkcs11:token=t;object=o?module-path={path}", b"1")


def test_a_key_stays_in_its_process(token):
    signer = Pkcs11Key.open(uri(), PIN.encode())
    vocabulary.refused(TypeError, "URI", pickle.dumps, signer)
    signer._process = os.getpid() + 1  # as after a fork
    refused(signer.sign, b"x", match="fork")
    signer.close()


def test_without_the_package(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with pytest.raises(UsageError, match="ST-USAG-004"):
        Pkcs11Key.open("pkcs11:token=t;object=o?module-path=/x.so", b"1")


@each(
    "text",
    "",
    "file:/x",
    "pkcs11:",
    "pkcs11:token=t?module-path=/x.so",
    "pkcs11:object=o?module-path=/x.so",
    "pkcs11:token=t;object=o",
    "pkcs11:token=t;object=o?module-path=x.so",
    "pkcs11:token=t;object=o?module-path=/x.so&pin-value=1234",
    "pkcs11:token=t;object=o?module-path=/x.so&pin-source=pin",
    "pkcs11:token=t;object=o;slot-id=1?module-path=/x.so",
    "pkcs11:token=t;token=u;object=o?module-path=/x.so",
    "pkcs11:token=t;object=o;type=public?module-path=/x.so",
    "pkcs11:token=t;object=%zz?module-path=/x.so",
    "pkcs11:token=t;object=%ff?module-path=/x.so",
    "pkcs11:token=t;object?module-path=/x.so",
    "pkcs11:token=t;object=\u00e9?module-path=/x.so",
    "pkcs11:token=t;object=o?module-path=/x%00.so",
    "pkcs11:token=t;object=" + "o" * 2048 + "?module-path=/x.so",
)
def test_malformed_names(text):
    refused(parse_uri, text)


def test_a_name():
    found = parse_uri("pkcs11:token=my%20token;id=%01%ff?module-path=/x.so&pin-source=file:/pin")
    assert (found.token, found.id, found.object) == ("my token", b"\x01\xff", "")
    assert (found.module, found.pin_file) == (Path("/x.so"), Path("/pin"))


def test_public_keys_that_tokens_may_show():
    from securetrain.identity.pkcs11 import _public_key

    numbers = ec.generate_private_key(ec.SECP256R1()).public_key()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = numbers.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    oid = bytes.fromhex("06082a8648ce3d030107")
    assert _public_key(raw, oid).key_id == _public_key(b"\x04\x41" + raw, oid).key_id
    edwards = bytes(PrivateKey.generate().public.spki[-32:])
    known = (b"\x13\x0cedwards25519", bytes.fromhex("06032b6570"))
    ids = {
        _public_key(point, p).key_id for p in known for point in (edwards, b"\x04\x20" + edwards)
    }
    assert len(ids) == 1
    for point, parameters in ((b"", oid), (raw[:-1], oid), (edwards[:-1], known[0]), (raw, b"")):
        refused(_public_key, point, parameters)
