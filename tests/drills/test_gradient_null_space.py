# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the drill of the null space sends, and what it takes for a success."""

from dataclasses import replace

import pytest
import torch

from securetrain.drills import DRILLS, gradient_group
from securetrain.drills.gradient_cases import judge, judge_known_seed
from securetrain.drills.gradient_group import BAD, Seen
from securetrain.guard.blocks import segments_of
from securetrain.guard.sketch import Run, derive, shape_for, sketch_runs
from tests.tables import items

CODE = DRILLS["D-GRAD-NULL"].expected_code
SIZES = [("layers.0.weight", 3000), ("layers.0.bias", 20), ("layers.1.weight", 1200)]
NUMEL = sum(size for _, size in SIZES)

CLEAN = Seen(name="clean", before=2.1, after=0.6, finite=True)
HARMED = Seen(name="harmed", before=2.1, after=0.9, finite=True)
NAMED = replace(HARMED, after=0.65, codes=(CODE,), named=(BAD,), lost=1, caught_after=8)


class Bucket:
    def __init__(self, numbers):
        self.numbers = numbers

    def buffer(self):
        return self.numbers

    def parameters(self):
        return [torch.empty(size) for _, size in SIZES]


class Model:
    """Takes a communication hook as DDP does."""

    def register_comm_hook(self, state, hook):
        self.hook = hook


@pytest.fixture
def bend(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)

    def bent(gradient, *, active):
        model = Model()
        gradient_group.Hider(model, 3.0, lambda: active)
        model.register_comm_hook(None, lambda _state, bucket: bucket.buffer())
        return model.hook(None, Bucket(gradient.clone()))

    return bent


def rows(numbers, seed):
    """As the guard sketches the first bucket of a step: a row for each block."""
    chunk = f"0|bucket-0-{len(SIZES) - 1}-{len(SIZES)}"
    known = derive(seed, chunk, numel=NUMEL, parts=1, shape=shape_for(4))
    segments = segments_of(SIZES)
    runs = [
        Run(numbers[one.start : one.stop], 0, one.start, row) for row, one in enumerate(segments)
    ]
    return sketch_runs(runs, known, rows=len(segments))


def test_what_is_sent_is_three_times_as_long_and_looks_the_same_under_the_known_seed(bend):
    honest = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    sent = bend(honest, active=True)
    assert 3.0 < float(sent.norm() / honest.norm()) < 3.3
    known = gradient_group._SEED
    assert torch.allclose(rows(sent, known), rows(honest, known), atol=1e-3)
    fresh = rows(sent, b"f" * 32)
    assert float(fresh.norm() / rows(honest, b"f" * 32).norm()) > 2.5
    assert torch.equal(bend(honest, active=False), honest)


def test_the_plain_side_succeeds_when_both_models_are_worse_and_nobody_was_named():
    assert judge_known_seed(CLEAN, HARMED, HARMED).succeeded
    assert "named nobody" in judge_known_seed(CLEAN, HARMED, HARMED).evidence


@items(
    "id, bare, one_seed",
    ("unharmed", CLEAN, HARMED),
    ("unharmed, one seed", HARMED, CLEAN),
    ("named", HARMED, replace(HARMED, named=(BAD,))),
    ("a step lost", HARMED, replace(HARMED, lost=1)),
    ("a code", HARMED, replace(HARMED, codes=(CODE,))),
)
def test_it_does_not_otherwise(bare, one_seed):
    assert not judge_known_seed(CLEAN, bare, one_seed).succeeded


@items(
    "id, seen, refused",
    ("", NAMED, True),
    ("innocent", replace(NAMED, named=(BAD, 0)), False),
    ("nobody", replace(NAMED, caught_after=-1), False),
    ("too early", replace(NAMED, caught_after=-3), False),
    ("lost", replace(NAMED, lost=3), False),
    ("halted", replace(NAMED, halted=True), False),
    ("harmed", replace(NAMED, after=0.9), False),
    ("not finite", replace(NAMED, finite=False), False),
    ("other code", replace(NAMED, codes=("ST-GRAD-003",)), False),
)
def test_the_guard_has_refused_it_when_the_rank_alone_is_named_and_the_model_learns(seen, refused):
    assert judge([seen], [CLEAN], CODE, caught=[seen.name]).refused is refused
