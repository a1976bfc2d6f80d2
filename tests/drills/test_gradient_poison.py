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
    codes={ATTACK_FROM: ("ST-GRAD-002",)},
    named={ATTACK_FROM: (ATTACKER,)},
    excluded=dict.fromkeys(range(ATTACK_FROM + 1, STEPS), (ATTACKER,)),
)


@pytest.mark.parametrize(
    ("after", "succeeded"), [(43.0, True), (math.inf, True), (5.0, False), (2.7, False)]
)
def test_a_model_that_still_learns_was_not_ruined(after, succeeded):
    assert judge_plain(CLEAN, replace(CLEAN, after=after)).succeeded is succeeded


def test_an_attacker_that_is_named_and_left_out_is_refused():
    outcome = judge_guarded(CAUGHT)
    assert outcome.refused
    assert not outcome.succeeded
    assert outcome.code == "ST-GRAD-002"


@pytest.mark.parametrize(
    "changes",
    [
        {"codes": {}, "named": {}, "excluded": {}, "after": 43.0},
        {"after": 3.5},
        {"codes": {**CAUGHT.codes, STEPS - 1: ("ST-GRAD-001",)}},
        {"codes": {}},
        {"excluded": {k: v for k, v in CAUGHT.excluded.items() if k < STEPS - 1}},
        {"excluded": {**CAUGHT.excluded, STEPS - 1: (0, ATTACKER)}},
        {"excluded": {**CAUGHT.excluded, 3: (0,)}},
        {"codes": {**CAUGHT.codes, 3: ("ST-GRAD-002",)}},
        {"named": {**CAUGHT.named, ATTACK_FROM: (0, ATTACKER)}},
        {"named": {}},
    ],
    ids=[
        "unwatched",
        "loss-moved",
        "other-code",
        "missed",
        "returned",
        "innocent-out",
        "innocent-out-before",
        "false-alarm",
        "innocent",
        "nobody",
    ],
)
def test_anything_less_is_not(changes):
    outcome = judge_guarded(replace(CAUGHT, **changes))
    assert not outcome.refused
    assert outcome.succeeded is (changes.get("after") == 43.0)


def test_the_text_is_always_there():
    assert len(_corpus()) > 100_000
