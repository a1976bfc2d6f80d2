# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Model Signing: ours verifies, and every altered model, bundle and signer is refused."""

import base64
import datetime as dt
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.artifacts.model import signers
from securetrain.artifacts.model.oms import Scope, sign_model
from securetrain.artifacts.model.signers import (
    CertificateSigner,
    KeySigner,
    TrustedKey,
    TrustedRoots,
)
from securetrain.artifacts.report import Report
from securetrain.core.codes import ExitCode
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.dsse import IN_TOTO, pae
from tests.artifacts.worlds import verify_model
from tests.identity.worlds import private_pem
from tests.tables import items
from tests.vocabulary import refused

from .conftest import NOW, Authority

pytestmark = pytest.mark.forgery

Key = ec.EllipticCurvePrivateKey


@pytest.fixture
def bundle(model: Path, key: Key) -> Path:
    path = model / "model.sig"
    sign_model(model, path, KeySigner(key=key))
    return path


def verify(model: Path, bundle: Path, key: Key) -> Report:
    return verify_model(model, bundle, TrustedKey(key=key.public_key()), NOW)


def codes(result: Report) -> set[str]:
    return {problem.code for problem in result.problems}


def resign(bundle: Path, key: Key, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the statement and sign it again with the right key."""
    document = json.loads(bundle.read_bytes())
    envelope = document["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"][0]["sig"] = base64.b64encode(
        signers.sign(key, pae(IN_TOTO, payload))
    ).decode()
    bundle.write_text(json.dumps(document))


def rooted(statement: dict[str, Any]) -> None:
    """Make the subject's digest fit the resources."""
    state = hashlib.sha256()
    for resource in statement["predicate"]["resources"]:
        state.update(bytes.fromhex(resource["digest"]))
    statement["subject"][0]["digest"]["sha256"] = state.hexdigest()


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_what_was_signed_verifies(curve: ec.EllipticCurve, model: Path) -> None:
    key = ec.generate_private_key(curve)
    predicate = sign_model(model, model / "model.sig", KeySigner(key=key))
    assert [one.name for one in predicate.resources] == ["config.json", "sub/weights.bin"]
    result = verify(model, model / "model.sig", key)
    assert result.ok
    assert result.num_files == 2
    assert result.bundled.signer.startswith("key ")


def test_a_bundle_beside_the_model(model: Path, key: Key, tmp_path: Path) -> None:
    sign_model(model, tmp_path / "beside.sig", KeySigner(key=key))
    assert verify(model, tmp_path / "beside.sig", key).ok


def test_nothing_is_overwritten(model: Path, key: Key, bundle: Path) -> None:
    refused(UsageError, "ST-USAG-005", sign_model, model, bundle, KeySigner(key=key))


def test_an_empty_model_is_not_signed(tmp_path: Path, key: Key) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(IntegrityError) as error:
        sign_model(tmp_path / "empty", tmp_path / "b.sig", KeySigner(key=key))
    assert error.value.code == "ST-OMSB-101"


# The files.


def _changed(model: Path) -> None:
    (model / "config.json").write_text("[]")


def _missing(model: Path) -> None:
    (model / "config.json").unlink()


def _extra(model: Path) -> None:
    (model / "extra.py").write_text("x")


def _in_git(model: Path) -> None:
    (model / ".git").mkdir()
    (model / ".git" / "hook").write_text("x")


def _in_github(model: Path) -> None:
    (model / ".github").mkdir()
    (model / ".github" / "payload.py").write_text("x")


def _attributes(model: Path) -> None:
    (model / ".gitattributes").write_text("x")


def _folder_as_bundle(model: Path) -> None:
    data = (model / "model.sig").read_bytes()
    (model / "model.sig").unlink()
    (model / "model.sig").mkdir()
    (model / "model.sig" / "payload.py").write_bytes(data)


def _link(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/etc/hostname")


def _fifo(model: Path) -> None:
    os.mkfifo(model / "pipe")


def _empty_folder(model: Path) -> None:
    (model / "new").mkdir()


def _linked_bundle(model: Path) -> None:
    (model / "model.sig").rename(model.parent / "real.sig")
    (model / "model.sig").symlink_to(model.parent / "real.sig")


def _no_bundle(model: Path) -> None:
    (model / "model.sig").unlink()


@items(
    "change, code",
    (_changed, "ST-OMSB-130"),
    (_missing, "ST-OMSB-140"),
    (_extra, "ST-OMSB-141"),
    (_folder_as_bundle, "ST-OMSB-142"),
    (_link, "ST-OMSB-142"),
    (_fifo, "ST-OMSB-142"),
    (_empty_folder, "ST-OMSB-142"),
    (_linked_bundle, "ST-OMSB-142"),
    (_no_bundle, "ST-OMSB-100"),
)
def test_a_changed_model_is_refused(change, code, model, bundle, key):
    assert verify(model, bundle, key).ok
    change(model)
    result = verify(model, bundle, key)
    assert code in codes(result)
    assert not result.ok
    assert result.exit_code != 0


@items(
    "change, name",
    (_in_git, ".git/hook"),
    (_in_github, ".github/payload.py"),
    (_attributes, ".gitattributes"),
)
def test_what_git_keeps_is_left_out_and_said_or_refused(change, name, model, bundle, key):
    change(model)
    result = verify(model, bundle, key)
    assert result.ok
    assert result.bundled.left_out == [name.partition("/")[0]]
    strict = Scope(ignore_git=False)
    result = verify_model(model, bundle, TrustedKey(key=key.public_key()), NOW, scope=strict)
    assert [(one.code, one.file) for one in result.problems] == [("ST-OMSB-141", name)]


def test_a_file_that_cannot_be_read(model, bundle, key, monkeypatch):
    broken = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(os, "preadv", Mock(side_effect=broken))
    result = verify(model, bundle, key)
    assert codes(result) == {"ST-OMSB-200"}
    assert result.exit_code is ExitCode.IO


# The statement, signed by the right key.


def _rename_resource(name: str) -> Callable[[dict[str, Any]], None]:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["resources"][0]["name"] = name

    return change


def _no_resources(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"] = []
    rooted(statement)


def _unsorted(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"].reverse()
    rooted(statement)


def _twice(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"].insert(0, statement["predicate"]["resources"][0])
    rooted(statement)


def _other_root(statement: dict[str, Any]) -> None:
    statement["subject"][0]["digest"]["sha256"] = "0" * 64


def _two_subjects(statement: dict[str, Any]) -> None:
    statement["subject"] *= 2


def _type(statement: dict[str, Any]) -> None:
    statement["_type"] = "https://in-toto.io/Statement/v0.1"


def _predicate_type(statement: dict[str, Any]) -> None:
    statement["predicateType"] += "1"


def _more(statement: dict[str, Any]) -> None:
    statement["predicate"]["more"] = 1


def _weak(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"][0]["algorithm"] = "md5"


def _shards(statement: dict[str, Any]) -> None:
    statement["predicate"]["serialization"]["method"] = "shards"


@items(
    "change",
    _rename_resource("../config.json"),
    _rename_resource("/etc/passwd"),
    _rename_resource("a\\b"),
    _rename_resource("a//b"),
    _rename_resource("a\x00b"),
    _rename_resource(""),
    _no_resources,
    _unsorted,
    _twice,
    _other_root,
    _two_subjects,
    _type,
    _predicate_type,
    _more,
    _weak,
    _shards,
)
def test_an_unsound_statement_is_refused_though_signed(change, model, bundle, key):
    resign(bundle, key, change)
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-101"}


def test_further_fields_of_a_resource_mean_nothing(model: Path, bundle: Path, key: Key) -> None:
    resign(bundle, key, lambda s: s["predicate"]["resources"][0].update(size=2, root="ff"))
    assert verify(model, bundle, key).ok


def test_a_bundle_that_names_itself_is_refused(model: Path, bundle: Path, key: Key) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["resources"].insert(
            1, {"name": "model.sig", "algorithm": "sha256", "digest": "0" * 64}
        )
        rooted(statement)

    resign(bundle, key, change)
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-101"}


# The bundle.


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def _flip(document: dict[str, Any]) -> None:
    raw = bytearray(base64.b64decode(document["dsseEnvelope"]["payload"]))
    raw[20] ^= 1
    document["dsseEnvelope"]["payload"] = base64.b64encode(raw).decode()


def _no_signature(document: dict[str, Any]) -> None:
    document["dsseEnvelope"]["signatures"] = []


def _two_signatures(document: dict[str, Any]) -> None:
    document["dsseEnvelope"]["signatures"] *= 2


def _payload_type(document: dict[str, Any]) -> None:
    document["dsseEnvelope"]["payloadType"] = "text/plain"


def _media_type(document: dict[str, Any]) -> None:
    document["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"


def _two_materials(document: dict[str, Any]) -> None:
    document["verificationMaterial"]["x509CertificateChain"] = {"certificates": [{"rawBytes": ""}]}


def _no_material(document: dict[str, Any]) -> None:
    del document["verificationMaterial"]["publicKey"]


def _hint(document: dict[str, Any]) -> None:
    document["verificationMaterial"]["publicKey"]["hint"] = "0" * 64


@items(
    "change, code",
    (_flip, "ST-OMSB-110"),
    (_no_signature, "ST-OMSB-101"),
    (_two_signatures, "ST-OMSB-101"),
    (_payload_type, "ST-OMSB-101"),
    (_media_type, "ST-OMSB-101"),
    (_two_materials, "ST-OMSB-101"),
    (_no_material, "ST-OMSB-101"),
    (_hint, "ST-OMSB-120"),
)
def test_a_changed_bundle_is_refused(change, code, model, bundle, key):
    _edit(bundle, change)
    assert codes(verify(model, bundle, key)) == {code}


def test_a_duplicate_key_is_refused(model: Path, bundle: Path, key: Key) -> None:
    text = bundle.read_text()
    bundle.write_text('{"mediaType":"x",' + text[1:])
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-101"}


def test_another_key_is_refused(model: Path, bundle: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    assert codes(verify(model, bundle, other)) == {"ST-OMSB-120"}
    _edit(bundle, lambda d: d["verificationMaterial"]["publicKey"].update(hint=""))
    assert codes(verify(model, bundle, other)) == {"ST-OMSB-110"}


def test_a_signature_over_the_encoding_from_before_1_0_is_refused(model, bundle, key):
    document = json.loads(bundle.read_bytes())
    payload = base64.b64decode(document["dsseEnvelope"]["payload"])
    # What the reference signed before it was corrected: bytes spelled as Python text.
    old = f"DSSEV1 {len(IN_TOTO)} {IN_TOTO} {len(payload)} {payload!r}".encode()
    signature = base64.b64encode(signers.sign(key, old)).decode()
    document["dsseEnvelope"]["signatures"][0]["sig"] = signature
    bundle.write_text(json.dumps(document))
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-110"}


# The certificate.


def certified(
    model: Path, authority: Authority, key: Key, **options: Any
) -> tuple[Path, TrustedRoots]:
    leaf = authority.issue(key.public_key(), **options)
    bundle = model / "model.sig"
    sign_model(model, bundle, CertificateSigner(key=key, chain=(leaf,)))
    return bundle, TrustedRoots(roots=(authority.certificate,))


def test_a_certificate_that_leads_to_the_root_verifies(model, authority, key):
    bundle, trust = certified(model, authority, key)
    result = verify_model(model, bundle, trust, NOW)
    assert result.ok
    assert result.bundled.signer == "certificate CN=maker"


@items(
    "options, code",
    ({"ends": dt.timedelta(days=-700), "begins": dt.timedelta(days=-800)}, "ST-OMSB-150"),
    ({"begins": dt.timedelta(hours=1)}, "ST-OMSB-150"),
    ({"usage": False}, "ST-OMSB-120"),
    ({"usage": None}, "ST-OMSB-120"),
    ({"purpose": ExtendedKeyUsageOID.SERVER_AUTH}, "ST-OMSB-120"),
    ({"is_ca": True}, "ST-OMSB-120"),
)
def test_a_certificate_that_is_not_for_this_is_refused(options, code, model, authority, key):
    bundle, trust = certified(model, authority, key, **options)
    assert codes(verify_model(model, bundle, trust, NOW)) == {code}


def test_another_authority_is_refused(model: Path, authority: Authority, key: Key) -> None:
    bundle, _ = certified(model, authority, key)
    other = TrustedRoots(roots=(Authority.create().certificate,))
    assert codes(verify_model(model, bundle, other, NOW)) == {"ST-OMSB-120"}


def test_a_certificate_that_signed_itself_is_refused(model: Path, key: Key) -> None:
    itself = Authority(key, Authority.create("maker").certificate)
    bundle, _ = certified(model, itself, key)
    other = TrustedRoots(roots=(Authority.create().certificate,))
    assert codes(verify_model(model, bundle, other, NOW)) == {"ST-OMSB-120"}


def test_a_key_never_verifies_certificates_nor_the_other_way_round(model, authority, key, tmp_path):
    bundle, trust = certified(model, authority, key)
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-120"}
    bundle.unlink()
    sign_model(model, tmp_path / "k.sig", KeySigner(key=key))
    assert codes(verify_model(model, tmp_path / "k.sig", trust, NOW)) == {"ST-OMSB-120"}


def test_a_foreign_certificate_is_not_put_into_a_bundle(model, authority, key):
    leaf = authority.issue(ec.generate_private_key(ec.SECP256R1()).public_key())
    with pytest.raises(IntegrityError) as error:
        sign_model(model, model / "model.sig", CertificateSigner(key=key, chain=(leaf,)))
    assert error.value.code == "ST-OMSB-120"
    assert not (model / "model.sig").exists()


def test_other_kinds_of_keys_are_refused() -> None:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    edwards = ed25519.Ed25519PrivateKey.generate()
    pem = private_pem(edwards)
    refused(IntegrityError, "ST-OMSB-120", signers.load_private, pem, None, "k")
