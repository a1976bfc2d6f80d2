# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the gradient drill takes for a success and for a refusal."""

import math
from dataclasses import replace

import pytest

from securetrain.drills.gradient_poison import (
    ATTACK_FROM,
    ATTACKER,
    STEPS,
    Curve,
    _corpus,
    judge_guarded,
    judge_plain,
)

CLEAN = Curve(before=5.5, at_attack=3.0, after=2.7)
CAUGHT = Curve(
    before=5.5,
    at_attack=3.0,
    after=3.0,
    codes=dict.fromkeys(range(ATTACK_FROM, STEPS), ("ST-GRAD-002",)),
    named=dict.fromkeys(range(ATTACK_FROM, STEPS), (ATTACKER,)),
)


@pytest.mark.parametrize(
    ("after", "succeeded"), [(43.0, True), (math.inf, True), (5.0, False), (2.7, False)]
)
def test_a_model_that_still_learns_was_not_ruined(after, succeeded):
    assert judge_plain(CLEAN, replace(CLEAN, after=after)).succeeded is succeeded


def test_every_attacked_step_refused_by_name_is_a_refusal():
    outcome = judge_guarded(CAUGHT)
    assert outcome.refused
    assert not outcome.succeeded
    assert outcome.code == "ST-GRAD-002"


@pytest.mark.parametrize(
    "changes",
    [
        {"codes": {}, "named": {}, "after": 43.0},
        {"after": 3.5},
        {"codes": {**CAUGHT.codes, STEPS - 1: ("ST-GRAD-001",)}},
        {"codes": {k: v for k, v in CAUGHT.codes.items() if k != ATTACK_FROM}},
        {"codes": {**CAUGHT.codes, 3: ("ST-GRAD-002",)}},
        {"named": {**CAUGHT.named, ATTACK_FROM: (0, ATTACKER)}},
        {"named": {}},
    ],
    ids=["unwatched", "loss-moved", "other-code", "missed", "false-alarm", "innocent", "nobody"],
)
def test_anything_less_is_not(changes):
    outcome = judge_guarded(replace(CAUGHT, **changes))
    assert not outcome.refused
    assert outcome.succeeded is (changes.get("after") == 43.0)


def test_the_text_is_always_there():
    assert len(_corpus()) > 100_000
