# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from securetrain.parallel.gradients import are_finite, clip_grads, grad_norm
from tests.vocabulary import refused


def parameters(*grads: list[float] | None) -> list[nn.Parameter]:
    made = []
    for grad in grads:
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = None if grad is None else torch.tensor(grad)
        made.append(parameter)
    return made


def test_the_norm_is_over_all_gradients_together():
    assert float(grad_norm(parameters([3.0, 0.0], None, [0.0, 4.0]))) == pytest.approx(5.0)


def test_a_norm_of_nothing_is_an_error():
    refused(ValueError, "no parameter has a gradient", lambda: grad_norm(parameters(None)))


def test_clipping_scales_all_and_only_when_needed():
    large, small = parameters([3.0, 0.0], [0.0, 4.0]), parameters([0.3, 0.4])
    assert float(clip_grads(large, grad_norm(large), 1.0)) == pytest.approx(0.2, rel=1e-5)
    assert float(grad_norm(large)) == pytest.approx(1.0, rel=1e-5)
    assert float(clip_grads(small, grad_norm(small), 1.0)) == 1.0
    assert small[0].grad is not None
    assert torch.equal(small[0].grad, torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_odd_number_shows_in_the_norm(value):
    norm = grad_norm(parameters([1.0, 2.0], [value, 0.0]))
    assert not are_finite(torch.tensor(1.0), norm)
    assert are_finite(torch.tensor(1.0))
