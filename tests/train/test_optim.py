# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from securetrain.train.config import OptimizerJob, RateSchedule
from securetrain.train.optim import lr_at, make_optimizer, optimizer_state, set_lr

JOB = OptimizerJob(lr=1.0, warmup_steps=10)


def test_the_rate_warms_up_and_decays_to_a_tenth():
    rates = [lr_at(step, 100, JOB) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1.0
    assert max(rates) == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_a_run_shorter_than_its_warm_up_only_warms_up():
    assert lr_at(5, 5, JOB) == pytest.approx(0.5)
    assert lr_at(1, 1, OptimizerJob(lr=1.0, warmup_steps=0)) == pytest.approx(0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def make() -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer = make_optimizer(model, JOB)
    set_lr(optimizer, 0.01)
    return model, optimizer


def test_state_made_early_is_what_adamw_makes_itself():
    (early, early_opt), (late, late_opt) = make(), make()
    names = [name for name, _ in optimizer_state(early, early_opt)]
    for seed in (1, 2):
        step(early, early_opt, seed)
        step(late, late_opt, seed)
    assert all(
        torch.equal(a, b) for a, b in zip(early.parameters(), late.parameters(), strict=True)
    )
    want = dict(optimizer_state(late, late_opt))
    assert list(want) == names
    for name, tensor in optimizer_state(early, early_opt):
        assert torch.equal(tensor, want[name])
    assert want["0.weight.step"] == 2


def test_filling_the_tensors_restores_the_optimizer():
    model, optimizer = make()
    step(model, optimizer, 1)
    kept = {n: t.clone() for n, t in optimizer_state(model, optimizer)}
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    step(model, optimizer, 2)
    other, other_opt = make()
    with torch.no_grad():
        for name, tensor in optimizer_state(other, other_opt):
            tensor.copy_(kept[name])
        for name, parameter in other.named_parameters():
            parameter.copy_(weights[name])
    step(other, other_opt, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_norms_and_biases_do_not_decay():
    model, optimizer = make()
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert [decays[id(p)] for p in model.parameters()] == [JOB.weight_decay, 0.0, 0.0, 0.0]


def test_stable_until_the_decay_and_constant_for_good():
    job = OptimizerJob(lr=1.0, warmup_steps=10, schedule=RateSchedule.WSD, decay_steps=20)
    rates = [lr_at(step, 100, job) for step in range(1, 101)]
    assert rates[9:80] == [1.0] * 71
    assert rates[80:] == sorted(rates[80:], reverse=True)
    assert rates[89] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    auto = OptimizerJob(lr=1.0, warmup_steps=10, schedule=RateSchedule.WSD, floor=0.0)
    assert lr_at(80, 100, auto) == 1.0
    assert lr_at(100, 100, auto) == 0.0
    constant = OptimizerJob(lr=1.0, warmup_steps=10, schedule=RateSchedule.CONSTANT)
    assert lr_at(100, 100, constant) == lr_at(11, 100, constant) == 1.0
    # A decay longer than what the warm-up leaves begins at its end.
    long = OptimizerJob(lr=1.0, warmup_steps=10, schedule=RateSchedule.WSD, decay_steps=500)
    assert lr_at(10, 20, long) == 1.0
    assert lr_at(15, 20, long) == pytest.approx(0.55)
