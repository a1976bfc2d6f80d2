# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Randomly drawn lies on every message of the protocol.

Whatever one rank says, no honest rank is named in any field or sentence, nobody hangs, and all
honest ranks who were told the same find the same.
"""

import dataclasses
import random

import numpy as np
import pytest

from securetrain.core.errors import GuardError
from tests.guard.drawn import LIAR, REVEAL, SIZE, lie
from tests.guard.meeting import Group, floats, words
from tests.guard.tables import gradients


def campaign(count, seed, monkeypatch):
    """Lies, each in a group of its own for a few steps."""
    source = random.Random(seed)
    kinds = set()
    for trial in range(count):
        sharded = source.random() < 0.5
        kind, tamper = lie(source)
        kinds.add(kind)
        where = (seed, trial, kind, sharded)
        confirm = source.random() < 0.3
        group = Group(
            SIZE, monkeypatch, sharded=sharded, tamper={LIAR: tamper}, confirm_tables=confirm
        )
        for step in range(4):
            rows = gradients(SIZE, numel=(64, 128), seed=1000 * trial + step)
            seen = group.step(rows)
            honest = [found for rank, found in enumerate(seen) if rank != LIAR]
            if any(isinstance(found, Exception) for found in seen):
                assert kind == "silence", (where, seen)
                break
            for found in honest:
                assert words(found) <= {LIAR}, (where, found.reasons)
            if kind != "equivocate":
                assert len({tuple(found.reasons) for found in honest}) == 1, where
    return kinds


def test_a_sample_of_lies_names_no_honest_rank(monkeypatch):
    campaign(60, 1, monkeypatch)


@pytest.mark.many
@pytest.mark.timeout(3000)
def test_two_thousand_lies_name_no_honest_rank(monkeypatch):
    assert len(campaign(2000, 2, monkeypatch)) > 10


@pytest.mark.parametrize("sharded", [True, False])
def test_honest_ranks_find_nothing(monkeypatch, sharded):
    group = Group(SIZE, monkeypatch, sharded=sharded)
    for step in range(12):
        for found in group.step(gradients(SIZE, numel=(64, 128), seed=step)):
            assert not isinstance(found, GuardError)
            assert found.codes == []
    rows = group.watches[0].rows
    assert rows is not None
    assert rows.momentum is not None
    assert rows.groups == ("block.0", "block.1")
    assert rows.gradients.shape == (2, SIZE, group.watches[0].shape.size)
    assert rows.momentum.shape == (2, group.watches[0].shape.size)


def test_rows_stand_for_each_rank_and_group(monkeypatch):
    """The lengths of rows are the norms of what each rank has in each group, in order."""
    sent = gradients(SIZE, numel=(4000, 8000))
    for rank in range(SIZE):
        sent[0][rank] *= 4.0**rank
        sent[1][rank] *= 8.0**-rank
    for sharded in (True, False):
        group = Group(SIZE, monkeypatch, sharded=sharded)
        group.step(sent)
        rows = group.watches[0].rows
        assert rows is not None
        assert rows.momentum is not None
        norms = np.linalg.norm(rows.gradients, axis=2)
        real = np.stack([np.linalg.norm(g.numpy(), axis=1) for g in sent])
        assert np.allclose(norms, real, rtol=0.4)
        mean = np.linalg.norm(sent[1].mean(dim=0).numpy())
        assert np.isclose(np.linalg.norm(rows.momentum[1]), mean, rtol=0.4)


def test_what_contradicts_itself_is_named_with_the_code_of_its_own(monkeypatch):
    def bent(count, data):
        if len(data) <= REVEAL or count < 3:
            return data
        numbers = floats(data)
        numbers[256 * SIZE : 256 * (SIZE + 1)] *= -1  # a group row; the parts' rows are true
        return data[:32] + numbers.tobytes()

    group = Group(SIZE, monkeypatch, sharded=True, tamper={LIAR: bent})
    group.step(gradients(SIZE))
    found = group.step(gradients(SIZE, seed=1))[0]
    assert "ST-GRAD-011" in found.codes
    assert found.outliers == {LIAR}


def test_a_replica_whose_optimizer_differs_is_named_with_the_code_of_its_own(monkeypatch):
    group = Group(SIZE, monkeypatch, sharded=False)
    sent = gradients(SIZE)
    collector = group.watches[LIAR].collector
    deliver = collector.add

    def other(piece):
        moment = piece.result * -1
        deliver(dataclasses.replace(piece, moment=lambda: [(0, moment)]))

    collector.add = other  # type: ignore[method-assign]
    found = group.step(sent)[0]
    assert found.codes == ["ST-GRAD-012"]
    assert found.outliers == {LIAR}
