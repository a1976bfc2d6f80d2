# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from securetrain.parallel.initialization import seed_of
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.shape import ModelShape, flops_per_token, num_parameters
from tests.tables import each

SMALL = ModelShape(dim=32, layers=2, heads=2, ffn=48)


def model(seed: int = 0, shape: ModelShape = SMALL) -> Llama:
    made = Llama(shape)
    init_weights(made, seed, shape)
    return made


def test_weights_depend_on_seed_and_name_only():
    torch.manual_seed(1)
    first = dict(model().named_parameters())
    torch.manual_seed(2)
    second = dict(model().named_parameters())
    other = dict(model(seed=1).named_parameters())
    assert all(torch.equal(first[n], second[n]) for n in first)
    drawn = [n for n in first if "norm" not in n]
    assert all(not torch.equal(first[n], other[n]) for n in drawn)
    assert not torch.equal(
        first["layers.0.attention.wq.weight"], first["layers.1.attention.wq.weight"]
    )
    assert seed_of(0, "a") != seed_of(0, "b") != seed_of(1, "b")


def test_a_part_of_the_model_gets_the_same_weights_as_the_whole():
    whole = dict(model().named_parameters())
    part = Llama(SMALL)
    del part.layers["0"]
    part.tok_embeddings = None
    init_weights(part, 0, SMALL)
    kept = dict(part.named_parameters())
    assert "layers.1.feed_forward.w1.weight" in kept
    assert all(torch.equal(kept[n], whole[n]) for n in kept)


def test_no_byte_sees_a_later_one():
    net = model()
    positions = torch.arange(16)
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = net(tokens, positions), net(changed, positions)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_attention_sees_relative_positions():
    net = model()
    tokens = torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(0))
    near = net(tokens, torch.arange(12))
    torch.testing.assert_close(near, net(tokens, torch.arange(12) + 100), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(near, net(tokens, torch.arange(12) * 3), atol=1e-3)


def test_first_predictions_are_close_to_uniform():
    net = model(shape=ModelShape())
    tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    logits = net(tokens, torch.arange(32)).detach()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    assert float(loss) == pytest.approx(5.545, abs=1.0)


@each(
    "shape",
    SMALL,
    ModelShape(),
    ModelShape(dim=32, layers=2, heads=4, kv_heads=2, ffn=48),
    ModelShape(dim=32, layers=2, heads=4, head_size=16, ffn=48, tied=True),
)
def test_parameters_are_counted(shape):
    assert num_parameters(shape) == sum(p.numel() for p in Llama(shape).parameters())
    assert 1.8e6 < num_parameters(ModelShape()) < 2e6


def test_flops_of_a_known_model():
    # Llama 3 8B: 8.03e9 parameters of which 0.525e9 are the embedding; 5.79e10 FLOPs a token at
    # 8192 positions (torchtitan's figures of December 2024 follow from it).
    shape = ModelShape(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    assert num_parameters(shape) == 8_030_261_248
    assert flops_per_token(shape, 8192) == pytest.approx(5.79e10, rel=1e-3)


def test_grouped_queries_are_repeated_keys():
    shape = ModelShape(dim=32, layers=1, heads=4, kv_heads=2, ffn=48)
    grouped, full = model(shape=shape), model(shape=ModelShape(dim=32, layers=1, heads=4, ffn=48))
    state = grouped.state_dict()
    for name in ("wk", "wv"):
        key = f"layers.0.attention.{name}.weight"
        heads = state[key].unflatten(0, (2, 8)).repeat_interleave(2, dim=0)
        state[key] = heads.flatten(0, 1)
    full.load_state_dict(state)
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(16)
    torch.testing.assert_close(grouped(tokens, positions), full(tokens, positions))
