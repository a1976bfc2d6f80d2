# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The mixture of experts: equal to the formula, and evened out without touching any weight."""

import pytest
import torch
import torch.nn.functional as F

from securetrain.parallel.build import Description, move_buffers, parallelize
from securetrain.parallel.degrees import Degrees
from securetrain.parallel.mesh import make_mesh
from securetrain.parallel.plan import Settings
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.moe import (
    MoE,
    balance_experts,
    busiest_expert,
    pop_expert_loads,
)
from securetrain.train.models.shape import (
    ModelShape,
    active_parameters,
    flops_per_token,
    num_parameters,
)

pytestmark = pytest.mark.usefixtures("one_rank")

SHAPE = ModelShape(
    dim=16, layers=2, heads=2, ffn=24, vocab=32, experts=4, experts_per_token=2, expert_balance=0.25
)


def mixture() -> MoE:
    moe = MoE(SHAPE)
    torch.manual_seed(3)
    for parameter in moe.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return moe


def by_the_formula(moe: MoE, x: torch.Tensor) -> torch.Tensor:
    """One token after the other."""
    out = torch.zeros_like(x)
    experts = moe.experts
    for row in range(x.shape[0]):
        for position in range(x.shape[1]):
            token = x[row, position]
            scores = (moe.router.weight @ token).softmax(0)
            chosen = (scores + moe.expert_bias).topk(2).indices.tolist()
            for e in chosen:
                inside = F.silu(experts.w1[e] @ token) * (experts.w3[e] @ token)
                part = scores[e] / scores[chosen].sum()
                out[row, position] += part * (experts.w2[e] @ inside)
    return out


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_it_is_the_formula_forward_and_backward(bias):
    moe = mixture()
    moe.expert_bias[1] = bias
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(4))
    got = []
    for compute in (moe, lambda x: by_the_formula(moe, x)):
        moe.zero_grad()
        inputs = x.clone().requires_grad_()
        out = compute(inputs)
        out.square().sum().backward()
        got.append([out.detach(), inputs.grad, *(p.grad for p in moe.parameters())])
    torch.testing.assert_close(got[0], got[1], rtol=1e-4, atol=1e-5)


def test_experts_without_tokens_have_gradients_of_zero():
    moe = mixture()
    moe.expert_bias += torch.tensor([9.0, 9.0, 0.0, 0.0])
    moe(torch.randn(1, 6, 16)).sum().backward()
    for parameter in moe.experts.parameters():
        assert parameter.grad is not None
        assert parameter.grad[:2].abs().sum() > 0
        assert not parameter.grad[2:].any()
    load = moe.pop_expert_load()
    assert load is not None
    assert load.tolist() == [6, 6, 0, 0]
    assert moe.pop_expert_load() is None


def test_a_rank_to_which_nobody_sends_a_row():
    experts = mixture().experts
    rows, none = torch.randn(0, 16, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    out = experts(rows, none)[torch.empty(0, dtype=torch.int64)]
    assert out.shape == (0, 16)
    out.sum().backward()
    for parameter in experts.parameters():
        assert parameter.grad is not None, "the other ranks wait for its part of the sum"
        assert not parameter.grad.any()


def test_evaluation_does_not_count():
    moe = mixture().eval()
    moe(torch.randn(1, 6, 16))
    assert moe.pop_expert_load() is None


def test_biases_move_towards_an_even_load_when_a_step_was_taken():
    mesh = make_mesh(Degrees(), "cpu")
    description = Description(
        build=lambda: Llama(SHAPE),
        materialize=lambda part: init_weights(part, 0, SHAPE),
        plan=LlamaPlan(),
    )
    model = parallelize(description, mesh, Settings(), torch.device("cpu"))
    (llama,) = model.parts
    moe = llama.get_submodule("layers.1.moe")
    assert isinstance(moe, MoE)
    assert moe.expert_bias.tolist() == [0.0] * 4
    tokens = torch.randint(32, (4, 16), generator=torch.Generator().manual_seed(5))
    names = {name for name, _ in model.named_buffers()}
    assert names == {"layers.0.moe.expert_bias", "layers.1.moe.expert_bias"}

    model.forward_backward(tokens, tokens, 64.0)
    loads = pop_expert_loads(model, SHAPE)
    assert loads is not None
    assert loads.sum(1).tolist() == [128.0, 128.0]
    assert moe.expert_bias.tolist() == [0.0] * 4, "a refused step changes nothing"

    model.forward_backward(tokens, tokens, 64.0)
    moe._load = torch.tensor([40, 32, 32, 24])
    loads = pop_expert_loads(model, SHAPE)
    assert loads is not None
    balance_experts(model, SHAPE, loads)
    assert moe.expert_bias.tolist() == [-0.25, 0.0, 0.0, 0.25]
    assert float(busiest_expert(loads)) >= 40 / 32
    again = pop_expert_loads(model, SHAPE)
    assert again is not None
    assert not again.any(), "each step counts anew"
    dense = ModelShape(dim=16, heads=2)
    assert pop_expert_loads(model, dense) is None


def test_biases_of_an_offloaded_model_are_where_it_computes():
    with torch.device("cpu"):
        moe = MoE(SHAPE)
    move_buffers(moe, torch.device("meta"))
    assert moe.expert_bias.device.type == "meta"
    assert "expert_bias" in moe.state_dict()
    assert {p.device.type for p in moe.parameters()} == {"cpu"}


def test_what_is_counted_is_what_there_is():
    with torch.device("meta"):
        model = Llama(SHAPE)
    assert num_parameters(SHAPE) == sum(p.numel() for p in model.parameters())
    unused = 2 * 2 * 3 * 16 * 24 + 32 * 16
    assert active_parameters(SHAPE) == num_parameters(SHAPE) - unused
    assert flops_per_token(SHAPE, 8) == 6 * active_parameters(SHAPE) + 12 * 2 * 16 * 8
