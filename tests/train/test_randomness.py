# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import pytest
import torch

from securetrain.train.randomness import seed_step


def drawn(step: int, rows: int = 0, stage: int = 0) -> tuple[float, float, float]:
    seed_step(7, step, rows=rows, stage=stage)
    return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002


@pytest.fixture(autouse=True)
def _generators():
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    random.setstate(before[2])


def test_a_function_of_the_step_and_the_place():
    first = drawn(3)
    drawn(4)
    assert drawn(3) == first, "whatever was drawn in between"
    for other in (drawn(4), drawn(3, rows=1), drawn(3, stage=1)):
        assert all(a != b for a, b in zip(first, other, strict=True))
