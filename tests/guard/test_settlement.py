# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The majority's outcome as bytes, and who is set apart for whose word. No processes."""

from typing import Any

import numpy as np
import pytest

from securetrain.guard.dispute import OpenTable, Ruling
from securetrain.guard.exclusion import Ground
from securetrain.guard.settlement import _GROUNDS, _apart, _Outcome

RANKS = 4


def outcome(**changes: Any) -> _Outcome:
    given: dict[str, Any] = {
        "ok": False,
        "grounds": {1: Ground.PROOF, 3: Ground.NOT_FINITE},
        "apart": {(0, 2), (3, 3)},
    }
    return _Outcome(**given | changes)


def test_an_outcome_survives_the_wire():
    for one in (outcome(), outcome(ok=True, grounds={}, apart=set())):
        assert _Outcome.decode(one.encode(RANKS), RANKS) == one


@pytest.mark.parametrize("code", [0, len(_GROUNDS) + 1, 255])
def test_a_ground_that_does_not_exist_is_none(code):
    """A majority may lie, but it cannot end a rank by a number that means nothing."""
    data = bytearray(outcome().encode(RANKS))
    data[1 + 1] = code
    assert _Outcome.decode(bytes(data), RANKS).grounds == {3: Ground.NOT_FINITE}


def table(*, shared: bool) -> OpenTable:
    nothing = np.zeros((RANKS, RANKS, 4))
    return OpenTable(
        owners=tuple(range(RANKS)),
        sent=nothing,
        heard=nothing,
        got=nothing,
        included=np.ones((RANKS, RANKS), dtype=bool),
        shared=shared,
        roundoff=2.0**-24,
    )


@pytest.mark.parametrize("shared", [True, False])
def test_who_contradict_each_other_are_set_apart(shared):
    ruling = Ruling(apart=((0, 2), (1, 3)), complaints=((1, 2),))
    assert _apart(ruling, table(shared=shared), gone=()) == {(0, 2), (1, 3), (2, 2)}


@pytest.mark.parametrize("shared", [True, False])
def test_a_sender_who_is_out_is_set_apart_from_nobody(shared):
    ruling = Ruling(apart=((0, 2), (1, 3)))
    assert _apart(ruling, table(shared=shared), gone={0}) == {(1, 3)}


def test_an_owner_who_is_out_still_holds_its_shard_unless_all_get_every_part():
    ruling = Ruling(apart=((0, 2), (1, 3)))
    assert _apart(ruling, table(shared=True), gone={2}) == {(1, 3)}
    assert _apart(ruling, table(shared=False), gone={2}) == {(0, 2), (1, 3)}


def test_the_complaint_of_who_is_out_disowns_nobody():
    ruling = Ruling(complaints=((1, 2), (3, 0)))
    assert _apart(ruling, table(shared=False), gone={1}) == {(0, 0)}
