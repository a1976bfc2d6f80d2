# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Weights in the format of Hugging Face: the same logits as the format's own formula."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from securetrain.artifacts import SaveContext, kinds, sign_safetensors
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signed_model import SignedModel, open_model
from securetrain.artifacts.model.signers import KeySigner, load_private
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.policy import load_policy
from securetrain.train.models import hf
from securetrain.train.models.hf_weights import load_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.shape import ModelShape, RopeScaling
from tests.tables import items
from tests.train.jobs import flip
from tests.train.models.hf_files import CONFIG, LLAMA3, logits, make, read_plainly, weights, write
from tests.vocabulary import changed, refused

NOW = datetime(2026, 5, 1, tzinfo=UTC)
KEY = PrivateKey.generate(KeyKind.P256)
ROOT = PrivateKey.generate()
TRUST = TrustRoot.parse(
    sign_root({TrustRole.CHECKPOINT: [KEY.public]}, ROOT, NOW, NOW + timedelta(days=9)), NOW
)
TOKENS = torch.arange(40).view(2, 20) * 7 % 300


def sign_ours(root: Path) -> None:
    context = SaveContext(run_id="", step=0, created=NOW, save_id="0" * 32)
    sign_safetensors(root, key=KEY, context=context, params=TreeParams(leaf_size=1024))


def sign_theirs(root: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    pem = KEY.pem(serialization.NoEncryption())
    sign_model(root, root / kinds.BUNDLE, KeySigner(key=load_private(pem, None, "")))


def opened(root: Path) -> SignedModel:
    return open_model(root, trust=TRUST, policy=None, now=NOW)


def loaded(root: Path) -> Llama:
    model = opened(root)
    shape = hf.shape_of(model.document(hf.CONFIG), str(root))
    hf.check_tensors(model, shape)
    llama = Llama(shape)
    load_weights(llama.named_parameters(), model)
    return llama


def forward(llama: Llama) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = llama(TOKENS, torch.arange(TOKENS.shape[1]))
        return found


@pytest.mark.parametrize("sign", [sign_ours, sign_theirs])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tie_word_embeddings": True},
        {"head_dim": 16},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"rope_theta": 500_000.0},
        {"shards": 3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {"rope_scaling": LLAMA3, "rope_theta": 50.0, "head_dim": 16},
    ],
    ids=str,
)
def test_logits_are_those_of_the_formats_formula(tmp_path, sign, config):
    root = make(tmp_path / "m", **config)
    sign(root)
    said = CONFIG | config
    wanted = logits(said, weights(said), TOKENS)
    found = forward(loaded(root))
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def test_the_stretch_of_positions_matters(tmp_path):
    """The negative control: without it, it is another model."""
    config: dict[str, Any] = {"rope_scaling": LLAMA3, "rope_theta": 50.0, "head_dim": 16}
    root = make(tmp_path / "m", **config)
    sign_ours(root)
    said = CONFIG | config
    plain = logits(said | {"rope_scaling": None}, weights(said), TOKENS)
    assert float((forward(loaded(root)) - plain).abs().max()) > 0.1


def test_the_rotation_matters(tmp_path):
    """The negative control: neighbours rotated, as in Meta's own files, is another model."""
    root = make(tmp_path / "m")
    sign_ours(root)
    llama = loaded(root)
    for layer in llama.layers.values():
        for name in ("wq", "wk"):
            parameter = layer.get_parameter(f"attention.{name}.weight")
            halves = parameter.detach().view(-1, 2, 4, 32)
            parameter.data = halves.transpose(1, 2).reshape(parameter.shape)
    wanted = logits(CONFIG, weights(CONFIG), TOKENS)
    assert float((forward(llama) - wanted).abs().max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_become_ours(tmp_path, dtype):
    root = make(tmp_path / "m", dtype=dtype)
    sign_ours(root)
    llama = loaded(root)
    wanted = weights(CONFIG, dtype)["model.layers.1.mlp.up_proj.weight"].float()
    assert torch.equal(llama.get_parameter("layers.1.feed_forward.w3.weight").detach(), wanted)


def attack_unsigned(root: Path) -> None:
    for path in (*root.glob("_securetrain*"), root / kinds.BUNDLE, root / "statement.json"):
        path.unlink(missing_ok=True)


def attack_weights(root: Path) -> None:
    flip(root / "model.safetensors", -5)


def test_a_plain_reader_takes_what_was_changed(tmp_path):
    """The positive control of the attacks below: the format itself notices nothing."""
    root = make(tmp_path / "m")
    sign_ours(root)
    attack_weights(root)
    found, true = read_plainly(root), weights(CONFIG)
    assert found.keys() == true.keys()
    changed = [name for name in true if not torch.equal(found[name], true[name])]
    assert len(changed) == 1
    attack_config(root)
    assert json.loads((root / "config.json").read_text())["rope_theta"] == 6000.0


def attack_config(root: Path) -> None:
    path = root / "config.json"
    path.write_text(path.read_text().replace("5000.0", "6000.0"))


def attack_extra(root: Path) -> None:
    (root / "tokenizer.json").write_text("{}")


def attack_pickle(root: Path) -> None:
    (root / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def attack_link(root: Path) -> None:
    path = root / "config.json"
    path.rename(root.parent / "elsewhere.json")
    path.symlink_to(root.parent / "elsewhere.json")


@items(
    "attack, ours, theirs",
    (attack_unsigned, "ST-CKPT-100", "ST-CKPT-100"),
    (attack_weights, "ST-CKPT-130", "ST-OMSB-130"),
    (attack_config, "ST-CKPT-132", "ST-OMSB-130"),
    (attack_extra, "ST-CKPT-141", "ST-OMSB-141"),
    (attack_pickle, "ST-CKPT-141", "ST-CKPT-190"),
    (attack_link, "ST-CKPT-142", "ST-CKPT-142"),
)
@pytest.mark.parametrize("signed_by", ["ours", "theirs"])
def test_what_is_not_what_was_signed_is_refused(tmp_path, attack, ours, theirs, signed_by):
    root = make(tmp_path / "m")
    (sign_ours if signed_by == "ours" else sign_theirs)(root)
    loaded(root)
    attack(root)
    refused(IntegrityError, ours if signed_by == "ours" else theirs, loaded, root)


@pytest.mark.parametrize(("sign", "code"), [(sign_ours, "CKPT"), (sign_theirs, "OMSB")])
def test_somebody_elses_key_is_refused(tmp_path, sign, code):
    root = make(tmp_path / "m")
    sign(root)
    other = PrivateKey.generate(KeyKind.P256)
    data = sign_root({TrustRole.CHECKPOINT: [other.public]}, ROOT, NOW, NOW + timedelta(days=9))
    with pytest.raises(IntegrityError) as caught:
        open_model(root, trust=TrustRoot.parse(data, NOW), policy=None, now=NOW)
    assert caught.value.code == f"ST-{code}-120"


def test_bytes_that_change_after_a_bundle_was_verified_are_found(tmp_path):
    """A second read is verified like the first."""
    root = make(tmp_path / "m")
    sign_theirs(root)
    model = opened(root)
    llama = Llama(hf.shape_of(model.document(hf.CONFIG), ""))
    attack_weights(root)
    refused(IntegrityError, "ST-CKPT-130", load_weights, llama.named_parameters(), model)
    attack_config(root)
    with pytest.raises(IntegrityError):
        model.document(hf.CONFIG)


def test_a_model_that_was_exchanged_for_another_signed_one_is_refused(tmp_path):
    root = make(tmp_path / "m")
    sign_ours(root)
    model = opened(root)
    llama = Llama(hf.shape_of(model.document(hf.CONFIG), ""))
    root.rename(tmp_path / "old")
    make(root, rms_norm_eps=1e-5)
    sign_ours(root)
    refused(IntegrityError, "ST-CKPT-130", load_weights, llama.named_parameters(), model)
    assert all(not parameter.any() for parameter in llama.parameters())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architecture MixtralForCausalLM"),
        ({"architectures": []}, "architecture none"),
        ({"attention_bias": True}, "attention_bias: True"),
        ({"mlp_bias": True}, "mlp_bias: True"),
        ({"hidden_act": "gelu"}, "hidden_act: gelu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_scaling of type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters of type 'yarn'"),
        ({"rope_parameters": {"rope_theta": 7.0}}, "two values of rope_theta"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, "factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor 1.0, low 1.0"),
        ({"num_key_value_heads": 3}, "4 heads over 3"),
        ({"head_dim": 15}, "heads of 15 elements"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_what_would_be_another_model_is_refused_by_name(change, what):
    with pytest.raises(UsageError) as caught:
        hf.shape_of(json.dumps(CONFIG | change).encode(), "m/config.json")
    assert caught.value.code == "ST-USAG-016"
    assert what in caught.value.what
    assert caught.value.where == "m/config.json"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"{}"])
def test_what_is_no_configuration_is_refused(data):
    refused(UsageError, "ST-USAG-016", hf.shape_of, data, "m")


def test_mutated_configurations_are_shapes_or_refused():
    random, said = Random(3), CONFIG | {"rope_scaling": LLAMA3, "rope_parameters": None}
    values: list[Any] = [
        None,
        -1,
        0,
        1,
        2,
        10**30,
        1e308,
        "",
        "x",
        [],
        {},
        {"rope_type": []},
        True,
        [1],
    ]
    shapes = 0
    for _ in range(3000):
        changed = said | {random.choice(list(said)): random.choice(values) for _ in range(2)}
        changed["rope_scaling"] = random.choice(
            [None, LLAMA3, LLAMA3 | {random.choice(list(LLAMA3)): random.choice(values)}]
        )
        try:
            shape = hf.shape_of(json.dumps(changed).encode(), "m")
        except UsageError:
            continue
        shapes += 1
        assert 0 < shape.dim <= 1 << 24
        assert 0 < shape.layers <= 1024
    assert shapes > 100


Change = Callable[[dict[str, torch.Tensor]], Any]


@items(
    "change, what",
    (lambda w: w.pop("model.norm.weight"), "there is no tensor model.norm.weight"),
    (lambda w: w.update({"model.extra": torch.ones(1)}), "model.extra has no place"),
    (lambda w: w.update({"lm_head.weight": torch.ones(299, 32)}), "shape [299, 32]"),
    (
        lambda w: w.update({"model.norm.weight": torch.ones(32, dtype=torch.int64)}),
        "of int64",
    ),
)
def test_tensors_are_those_of_the_configuration(tmp_path, change: Change, what):
    root = make(tmp_path / "m")
    tensors = weights(CONFIG)
    change(tensors)
    write(root / "model.safetensors", tensors)
    sign_ours(root)
    refused(UsageError, "ST-USAG-016", loaded, root, says=what)


def test_what_is_recomputed_or_unused_may_be_there(tmp_path):
    root = make(tmp_path / "m", tie_word_embeddings=True)
    tensors = weights(CONFIG | {"tie_word_embeddings": True})
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    write(root / "model.safetensors", tensors)
    sign_ours(root)
    loaded(root)


def test_a_shape_becomes_a_configuration_and_a_shape_again():
    shape = hf.shape_of(json.dumps(CONFIG).encode(), "")
    assert hf.shape_of(hf.config_of(shape), "") == shape
    stretched = json.dumps(CONFIG | {"rope_scaling": LLAMA3}).encode()
    scaled = hf.shape_of(stretched, "")
    assert scaled.rope_scaling == RopeScaling(factor=8.0, length=16)
    assert hf.shape_of(hf.config_of(scaled), "") == scaled
    own = ModelShape(dim=32, layers=1, heads=2, ffn=64, tied=True)
    back = hf.shape_of(hf.config_of(own), "")
    assert hf.sizes(back) == hf.sizes(own)


def test_the_names_are_those_of_the_model():
    for tied in (False, True):
        shape = ModelShape(dim=32, layers=2, heads=4, kv_heads=2, ffn=64, tied=tied)
        named = {name: tuple(one.shape) for name, one in Llama(shape).named_parameters()}
        assert hf.sizes(shape) == named


@pytest.mark.parametrize("name", ["dev", "baseline", "hardened"])
def test_shipped_policies_ask_of_other_peoples_weights_what_can_be_asked(tmp_path, name):
    """Nobody watched their gradients, and no run is named; their age and hash are asked for."""
    root = make(tmp_path / "m")
    sign_ours(root)
    policy = load_policy(name).policy
    model = open_model(root, trust=TRUST, policy=policy, now=NOW)
    llama = Llama(hf.shape_of(model.document(hf.CONFIG), ""))
    load_weights(llama.named_parameters(), model)
    aged = msgspec.structs.replace(policy.checkpoint, max_age_days=3)
    with pytest.raises(IntegrityError) as caught:
        open_model(
            root,
            trust=TRUST,
            policy=msgspec.structs.replace(policy, checkpoint=aged),
            now=NOW + timedelta(days=4),
        )
    assert caught.value.code == "ST-CKPT-150"


def test_a_bundle_says_no_time(tmp_path):
    root = make(tmp_path / "m")
    sign_theirs(root)
    policy = changed(load_policy("dev").policy, checkpoint={"max_age_days": None})
    open_model(root, trust=TRUST, policy=policy, now=NOW)
    aged = msgspec.structs.replace(policy.checkpoint, max_age_days=3)
    with pytest.raises(IntegrityError) as caught:
        open_model(
            root, trust=TRUST, policy=msgspec.structs.replace(policy, checkpoint=aged), now=NOW
        )
    assert caught.value.code == "ST-OMSB-150"
