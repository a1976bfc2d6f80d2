# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One rank alone, the policy's responses, and the state."""

import json
import math
import subprocess
import sys

import msgspec
import pytest
import torch
from torch import nn

from securetrain.core.errors import GuardError, UsageError
from securetrain.guard import GradientGuard, StepRecord, Totals
from securetrain.guard.own_past import EARLY
from securetrain.guard.response import Findings
from securetrain.policy.schema import Gradients, GuardMode, GuardResponse
from tests.tables import items
from tests.vocabulary import refused

SETTINGS = Gradients(warmup_steps=8)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def run(guard, net, steps=30, poison=(), scale=()):
    verdicts = []
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        loss = net(x).square().mean()
        (loss * (1000.0 if step in scale else 1.0)).backward()
        if step in poison:
            net[0].weight.grad[3, 4] = poison[step]
        verdicts.append(guard.judge(step))
        optimizer.step()
        optimizer.zero_grad()
    return verdicts


def test_clean_training_alone_is_fine():
    records: list[StepRecord] = []
    guard = GradientGuard(None, SETTINGS, on_record=records.append)
    net = model()
    guard.attach(net)
    verdicts = run(guard, net, 60)
    assert all(v.ok and v.proceed and not v.codes for v in verdicts)
    assert [v.calibrating for v in verdicts] == [True] * EARLY + [False] * (60 - EARLY)
    assert guard.totals == Totals(judged=60, calibrating=EARLY)
    assert records[-1].world_size == 1
    again = msgspec.json.decode(msgspec.json.encode(records[-1]), type=StepRecord)
    assert again == records[-1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_coordinate_alone(value):
    net = model()
    guard = GradientGuard(None, SETTINGS)
    guard.attach(net)
    verdicts = run(guard, net, 12, poison={10: value})
    assert verdicts[10].codes == ("ST-GRAD-001",)
    assert verdicts[10].outliers == (0,)
    assert verdicts[10].response is GuardResponse.SKIP_STEP
    assert all(torch.isfinite(p).all() for p in net.parameters()), "the gradient was dropped"
    assert verdicts[11].ok


def test_huge_but_finite_alone():
    net = model()
    guard = GradientGuard(None, SETTINGS)
    guard.attach(net)
    verdict = run(guard, net, 12, poison={10: 3e38})[10]
    assert verdict.codes == ("ST-GRAD-002",)
    assert verdict.table[0].finite
    assert verdict.table[0].norm == pytest.approx(3e38)


def test_a_spike_is_clipped_tensor_by_tensor_where_the_policy_says_so():
    net = model()
    guard = GradientGuard(None, msgspec.structs.replace(SETTINGS, response=GuardResponse.CLIP))
    guard.attach(net)
    seen = []
    for step in range(16):
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        scale = math.nan if step == 15 else 1000.0 if step in {12, 13} else 1.0
        (net(x).square().mean() * scale).backward()
        verdict = guard.judge(step)
        norms = [p.grad.norm().item() for p in net.parameters() if p.grad is not None]
        seen.append((verdict, norms))
        net.zero_grad()
    usual = seen[11][1]
    for verdict, norms in seen[12:14]:
        assert verdict.response is GuardResponse.CLIP
        assert verdict.proceed
        assert not verdict.ok
        assert all(n <= 3 * u for n, u in zip(norms, usual, strict=True))
    assert seen[14][0].ok
    assert seen[15][0].response is GuardResponse.SKIP_STEP, "NaN cannot be clipped"
    assert seen[15][1] == []


def test_a_spike_alone_is_refused_and_the_rest_goes_on():
    net = model()
    guard = GradientGuard(None, SETTINGS)
    guard.attach(net)
    verdicts = run(guard, net, 20, scale=(12,))
    assert [v.step for v in verdicts if not v.ok] == [12]
    assert "left its own past" in verdicts[12].reason


@items(
    "response, limit, expected",
    (GuardResponse.OBSERVE, 2, ["observe"] * 3),
    (GuardResponse.SKIP_STEP, 2, ["skip-step", "halt", "halt"]),
    (GuardResponse.SKIP_STEP, 9, ["skip-step"] * 3),
    (GuardResponse.HALT, 9, ["halt"] * 3),
)
def test_the_policy_decides_the_response(response, limit, expected):
    settings = Gradients(warmup_steps=1, response=response, max_refused_steps=limit)
    guard = GradientGuard(None, settings)
    net = model()
    guard.attach(net)
    nan = float("nan")
    verdicts = run(guard, net, 5, poison={2: nan, 3: nan, 4: nan})
    assert [v.response.value for v in verdicts[2:]] == expected
    applied = not all(torch.isfinite(p).all() for p in net.parameters())
    assert applied == (response is GuardResponse.OBSERVE)
    for verdict in verdicts[2:]:
        assert not verdict.ok
        assert ("ST-GRAD-005" in verdict.codes) == (verdict.response is GuardResponse.HALT)
        if verdict.response is GuardResponse.HALT:
            with pytest.raises(GuardError) as error:
                verdict.raise_if_halted()
            assert error.value.code == "ST-GRAD-005"
            assert "rank 0's gradient is not finite" in error.value.what
        else:
            verdict.raise_if_halted()


def test_an_accepted_step_ends_the_row():
    settings = Gradients(warmup_steps=1, max_refused_steps=2)
    guard = GradientGuard(None, settings)
    net = model()
    guard.attach(net)
    nan = float("nan")
    verdicts = run(guard, net, 6, poison={1: nan, 3: nan, 5: nan})
    assert {v.response for v in verdicts} == {GuardResponse.OBSERVE, GuardResponse.SKIP_STEP}
    assert guard.totals.refused == 3


def test_misuse_is_refused():
    guard = GradientGuard(None, SETTINGS)
    refused(GuardError, "ST-GRAD-006", guard.judge, 0)
    net = model()
    guard.attach(net)
    refused(GuardError, "no parameter has a gradient", guard.judge, 0)
    refused(GuardError, "attached already", guard.attach, net)
    refused(ValueError, "turns the guard off", GradientGuard, None, Gradients(mode=GuardMode.OFF))


def test_state_survives_a_restart():
    guard = GradientGuard(None, SETTINGS)
    net = model()
    guard.attach(net)
    run(guard, net, 20, poison={15: float("nan")})
    state = json.loads(json.dumps(guard.state_dict(), allow_nan=False))
    other = GradientGuard(None, SETTINGS)
    other.load_state_dict(state)
    other.attach(net)
    assert other.totals == guard.totals
    assert other.state_dict() == guard.state_dict()
    assert not run(other, net, 1)[0].calibrating


def piece(detector):
    return {"ranks": [0], "piece": "", "detector": detector}


def test_what_was_learned_of_one_piece_is_not_used_for_another():
    guard = GradientGuard(None, SETTINGS)
    net = model()
    guard.attach(net)
    run(guard, net, 12)
    other = GradientGuard(None, SETTINGS)
    other.attach(nn.Linear(3, 3))
    other.load_state_dict(guard.state_dict())
    assert other.totals == guard.totals
    assert other.state_dict()["pieces"][0]["detector"]["steps"] == 0


@items(
    "change",
    {"version": 1},
    {"extra": 1},
    {"totals": {"judged": "many"}},
    {"pieces": [piece({"ranks": 1, "scales": {"norm": [[None]]}})]},
    {"pieces": [piece({})]},
    {"pieces": [{"ranks": [0]}]},
)
def test_a_foreign_state_is_refused(change):
    guard = GradientGuard(None, SETTINGS)
    refused(UsageError, "ST-USAG-008", guard.load_state_dict, guard.state_dict() | change)
    assert guard.totals == Totals()


def test_who_does_not_open_its_commitment_is_named_by_its_number_in_the_job():
    findings = Findings()
    findings.add_unopened([2], [4, 5, 6, 7])
    assert findings.outliers == {6}
    assert findings.attributed
    assert findings.codes == ["ST-GRAD-004"]
    findings = Findings()
    findings.add_unopened([], [4, 5, 6, 7])
    assert findings.codes == []


def test_reading_records_does_not_import_torch():
    code = (
        "import sys; from securetrain.guard import StepRecord, Verdict;"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
