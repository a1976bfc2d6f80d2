# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nothing starts from what memory held before, and a user's loss may view what it is given."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.parallel import (
    Degrees,
    ParallelModel,
    Recompute,
    Schedule,
    Settings,
    check_schedule,
    initialize,
    restore_buffers,
)
from securetrain.parallel.values import fill_values
from tests.parallel.foreign import GPT2, QWEN3, Foreign, draw


class Odd(nn.Module):
    """Buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        for name, dtype in (
            ("floats", torch.float32),
            ("halves", torch.bfloat16),
            ("numbers", torch.int64),
            ("bytes", torch.uint8),
            ("truths", torch.bool),
        ):
            self.register_buffer(name, torch.arange(3).to(dtype))


def left_out(fill):
    model = Odd()
    with pytest.raises(RuntimeRefusal) as caught:
        fill_values(model, fill)
    assert caught.value.code == "ST-RUNT-011"
    return caught.value.what


def test_what_nobody_fills_is_named():
    text = left_out(lambda _: None)
    assert text == (
        "materialize left weight, floats, halves, numbers, bytes and 1 more without a value"
    )


def test_one_element_of_many_is_enough():
    def most(model):
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
        model.numbers[1] = torch.iinfo(torch.int64).min
        model.weight[2] = float("nan")

    assert left_out(most) == "materialize left weight, numbers without a value"


def test_written_or_exchanged_is_filled():
    def fill(model):
        nn.init.zeros_(model.weight)
        model.floats = torch.zeros(3)
        model.bytes = torch.zeros(3, dtype=torch.uint8)
        for name in ("halves", "numbers", "truths"):
            model.get_buffer(name).zero_()

    fill_values(Odd(), fill)


def test_buffers_get_what_the_constructor_computes():
    for variant in (GPT2, QWEN3):
        with torch.device("meta"):
            part = Foreign(variant)
        del part.layers["0"]  # a stage
        part.to_empty(device="cpu")
        before = torch.get_rng_state()

        def fill(part, variant=variant):
            initialize(part, 0, draw)
            restore_buffers(part, lambda: Foreign(variant))

        fill_values(part, fill)
        assert torch.equal(torch.get_rng_state(), before)
        whole = dict(Foreign(variant).named_buffers())
        assert dict(part.named_buffers()).keys() < whole.keys()
        for name, buffer in part.named_buffers():
            assert torch.equal(buffer, whole[name])
    assert Foreign(QWEN3).get_parameter("embed.weight").device.type == "cpu", (
        "constructors work as before"
    )


def test_inputs_and_targets_come_without_gaps(monkeypatch):
    class Viewing:
        def forward_backward(self, inputs, targets, positions, divisor):
            return inputs.view(-1).sum() + targets.view(-1).sum()

    mesh = type("Mesh", (), {"degrees": Degrees()})()
    model = ParallelModel(parts=(), mesh=mesh, device=torch.device("cpu"), engine=Viewing())  # type: ignore[arg-type]
    rows = torch.arange(10).view(2, 5)
    assert model.forward_backward(rows[:, :-1], rows[:, 1:], 8.0) == 32 + 40


@pytest.mark.parametrize("schedule", Schedule)
def test_selective_recomputing_with_two_backward_passes_is_refused(schedule):
    settings = Settings(recompute=Recompute.SELECTIVE, schedule=schedule)
    splits = "ZeroBubble" in schedule or schedule is Schedule.DUAL_PIPE_V
    for degrees in (Degrees(), Degrees(pp=2)):
        check_schedule(degrees, replace(settings, recompute=Recompute.FULL))
        if splits and degrees.pp > 1:
            with pytest.raises(UsageError, match="goes back twice") as caught:
                check_schedule(degrees, settings)
            assert caught.value.code == "ST-USAG-007"
        else:
            check_schedule(degrees, settings)
