# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Models of others: who signed them, in either way, and what is asked. Loading: train/models."""

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from securetrain.artifacts.kinds import BUNDLE
from securetrain.artifacts.model import bundle
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signed_model import Overlay, SignedModel, open_model
from securetrain.artifacts.model.signers import KeySigner, load_private
from securetrain.artifacts.tree.layout import INDEX, STATEMENT
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.train.models.hf_files import make
from tests.train.models.test_hf import KEY, NOW, TRUST, sign_ours, sign_theirs
from tests.vocabulary import refused


def opened(root: Path) -> SignedModel:
    return open_model(root, trust=TRUST, policy=None, now=NOW)


def refusal(root: Path) -> str:
    with pytest.raises(IntegrityError) as caught:
        opened(root)
    return caught.value.code


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = make(tmp_path / "m")
    (root / "tokenizer.json").write_text("{}")
    return root


@pytest.mark.parametrize("sign", [sign_ours, sign_theirs])
def test_documents_and_tensors_are_named_whoever_signed(model, sign):
    sign(model)
    found = opened(model)
    assert found.document("tokenizer.json") == b"{}"
    assert found.signer == f"key {KEY.key_id[:16]}"
    assert "model.norm.weight" in {tensor.fqn for tensor in found.index.tensors}
    error = refused(UsageError, "ST-USAG-002", found.document, "model.safetensors")
    assert "config.json, tokenizer.json" in error.what


def test_a_bundle_leaves_the_directory_as_it_is(model):
    sign_theirs(model)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    found = opened(model)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert found.digest == opened(model).digest, "ranks compare it"


def test_nobody_signed(model):
    assert refusal(model) == "ST-CKPT-100"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_bundle_covers_every_file(model, name):
    sign_theirs(model)
    good = (model / name).read_bytes()
    (model / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert refusal(model) == "ST-OMSB-130"
    (model / name).write_bytes(good)
    opened(model)
    (model / "more.json").write_text("{}")
    assert refusal(model) == "ST-OMSB-141"
    (model / "more.json").unlink()
    (model / name).unlink()
    assert refusal(model) == ("ST-CKPT-100" if name == "model.safetensors" else "ST-OMSB-140")


def test_a_bundle_of_an_unknown_key(model):
    pem = PrivateKey.generate(KeyKind.P256).pem(serialization.NoEncryption())
    sign_model(model, model / BUNDLE, KeySigner(key=load_private(pem, None, "")))
    assert refusal(model) == "ST-OMSB-120"


def test_a_bundle_whose_signature_was_made_over_something_else(model, tmp_path):
    sign_theirs(model)
    other = make(tmp_path / "other", rms_norm_eps=1e-3)
    sign_theirs(other)
    mine, theirs = (bundle.parse((root / BUNDLE).read_bytes(), "") for root in (model, other))
    forged = bundle.write(theirs.payload, mine.signature, hint=mine.hint)
    (model / BUNDLE).write_bytes(forged)
    assert refusal(model) == "ST-OMSB-110"


def test_a_bundle_with_certificates_is_for_people_to_judge(model):
    sign_theirs(model)
    mine = bundle.parse((model / BUNDLE).read_bytes(), "")
    (model / BUNDLE).write_bytes(
        bundle.write(mine.payload, mine.signature, chain=(b"certificate",))
    )
    error = refused(IntegrityError, "ST-OMSB-120", opened, model)
    assert "verify --bundle" in error.fix


def test_a_bundle_that_is_a_link_or_nonsense(model, tmp_path):
    sign_theirs(model)
    shutil.move(model / BUNDLE, tmp_path / "elsewhere")
    (model / BUNDLE).symlink_to(tmp_path / "elsewhere")
    assert refusal(model) == "ST-OMSB-142"
    (model / BUNDLE).unlink()
    (model / BUNDLE).write_bytes(b"{}")
    assert refusal(model) == "ST-OMSB-101"


def test_where_both_signed_ours_counts_and_names_the_bundle(model):
    sign_theirs(model)
    sign_ours(model)
    assert opened(model).signer.startswith("key ")
    (model / BUNDLE).write_bytes(b"x")
    assert refusal(model) == "ST-CKPT-131"


def test_a_forged_statement_beside_a_bundle_is_not_skipped(model):
    """Whoever adds a statement of their own does not get the bundle believed instead."""
    sign_theirs(model)
    (model / STATEMENT).write_bytes(b"{}")
    assert refusal(model) == "ST-CKPT-101"


def test_an_overlay_shows_memory_hides_files_and_writes_nothing(tmp_path):
    for name in ("a", "b", "secret"):
        (tmp_path / name).write_bytes(name.encode() * 3)
    watched: dict[str, object] = {}
    seen = Overlay(
        folder=LocalStorage(tmp_path),
        memory={"b": b"new", INDEX: b"xyz"},
        hidden=frozenset({"secret"}),
        watched=watched,
    )
    assert sorted(file.name for file in seen.survey()[0]) == sorted(["a", "b", INDEX])
    assert [seen.has(name) for name in ("a", "b", INDEX, "secret")] == [True, True, True, False]
    assert seen.read("b", 9) == b"new"
    assert seen.read("a", 9) == b"aaa"
    assert set(watched) == {"a"}
    with pytest.raises(FileNotFoundError):
        seen.open("secret")
    view = bytearray(2)
    seen.open(INDEX).read_into(memoryview(view), 1)
    assert view == b"yz"
    with pytest.raises(EOFError):
        seen.open(INDEX).read_into(memoryview(view), 2)
    for write in (lambda: seen.exchange("a", b"", None), lambda: seen.staging("x")):
        with pytest.raises(NotImplementedError):
            write()
