# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lies about rows: what a rank says is bound to what it delivered, and names nobody else."""

import numpy as np
import pytest
import torch

from securetrain.guard.integrity import check, copies, leaning, middle, unequal
from securetrain.guard.statements import DIGEST, Table, decode
from securetrain.guard.statements import first_moment as _first_moment
from tests.guard.tables import ROUNDOFF, gradients, say


def integrity(rows, **options):
    return check(
        rows.parts,
        rows.received,
        groups=rows.groups,
        roundoff=ROUNDOFF,
        **options,
    )


def first_moment(*args):
    """A moment of zeros where there is none."""
    moment, odd = _first_moment(*args)
    return (np.zeros(1) if moment is None else moment), odd


def table(rows, **changes):
    return Table(
        digests=changes.get("digests", (b"d",) * len(rows.parts)),
        parts=rows.parts,
        groups=rows.groups,
        received=rows.received,
        moments=rows.moments,
    )


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize(("ranks", "keys"), [(2, 1), (4, 1), (8, 1), (4, 2)])
def test_honest_rows_are_bound_and_no_rank_contradicts_itself(ranks, keys, sharded):
    for seed in range(10):
        name = bytes([seed]) * 32
        rows = say(gradients(ranks, seed=seed), sharded=sharded, seed=name, keys=keys)
        result = integrity(rows, keys=keys)
        assert result.ok
        assert result.ratio < 0.5
        assert unequal(rows.parts, rows.groups) == ()
        assert not leaning(rows.parts).any()
        assert not leaning(rows.groups).any()


@pytest.mark.parametrize("ranks", [3, 4])
def test_small_layers_that_meet_in_a_sketch_accuse_nobody(ranks):
    """Rows of so few numbers overlap in one of sixteen places: their cosine alone accused some."""
    for seed in range(400):
        sent = gradients(ranks, numel=(12 * ranks, 7 * ranks, 4 * ranks), seed=seed)
        rows = say(sent, sharded=True, seed=seed.to_bytes(32, "big"))
        assert not leaning(rows.parts).any()
        assert not leaning(rows.groups).any()


@pytest.mark.parametrize("sharded", [True, False])
def test_a_lie_about_any_row_shows(sharded):
    sent = gradients(4)
    told = [g.clone() for g in sent]
    told[1][2] *= -0.2  # what it sends is -5 times what it says
    assert not integrity(say(sent, told=told, sharded=sharded)).ok
    rows = say(sent, sharded=sharded)
    rows.groups[2] *= 1.01
    rows.parts[2] *= 1.01
    result = integrity(rows)
    assert not result.ok
    rows = say(sent, sharded=sharded)
    rows.groups[2, 0] += rows.groups[2, 1]  # one group's row is said to be another's
    rows.groups[2, 1] = 0
    assert integrity(rows).groups == (0, 1)


def test_two_ranks_that_shift_their_parts_cannot_widen_the_limit():
    """Of six FSDP2 ranks two shift part rows by +V and -V while a third sends -5 times its own."""
    sent = gradients(6)
    told = [g.clone() for g in sent]
    for group in sent:
        group[5] *= -5
    for size in (1.0, 1e3, 1.5e7):
        rows = say(sent, told=told, sharded=True)
        shift = size * np.random.default_rng(1).standard_normal(rows.parts.shape[2])
        for part in (2, 3):
            sign = 1 if part == 2 else -1
            rows.parts[0, part] += sign * shift
            rows.parts[1, part] -= sign * shift
        assert np.allclose(rows.parts.sum(axis=(0, 1)), rows.groups.sum(axis=(0, 1)), atol=size)
        result = integrity(rows)
        assert not result.ok
        assert result.ratio > 100
        if size > 1:
            found = set(np.flatnonzero(leaning(rows.parts).any(axis=1)))
            assert found == {0, 1}, "and they are the ones who contradict themselves"


@pytest.mark.parametrize("ranks", [4, 8])
def test_what_an_owner_invents_for_its_own_shard_cannot_hide_the_rest(ranks):
    """A sign flip whose global row is made honest by the part that only the liar receives."""
    liar = 1
    found = 0
    for seed in range(20):
        honest = gradients(ranks, seed=seed)
        sent = [g.clone() for g in honest]
        for group in sent:
            group[liar] *= -1
        name = bytes([seed]) * 32
        rows, wanted = say(sent, sharded=True, seed=name), say(honest, sharded=True, seed=name)
        true = rows.groups[liar].copy()
        invented = wanted.parts[liar].sum(axis=0) - rows.parts[liar].sum(axis=0)
        rows.parts[liar, liar] += invented
        rows.groups[liar] = wanted.groups[liar]
        rows.received[liar] += (wanted.groups[liar] - true) / ranks
        assert integrity(rows).ok, "sums and means are right: the former check saw nothing"
        assert unequal(rows.parts, rows.groups) == ()
        odd = set(np.flatnonzero(leaning(rows.parts).any(axis=1)))
        assert odd <= {liar}
        found += odd == {liar}
    assert found == 20


def test_part_rows_and_group_rows_are_of_one_gradient():
    rows = say(gradients(4), sharded=True)
    rows.groups[3] *= -1
    assert unequal(rows.parts, rows.groups) == (3,)


def test_an_excluded_rank_has_no_part_in_the_sum_and_no_say_about_it():
    sent = gradients(4)
    live = [g * 4 / 3 for g in sent]
    for group in live:
        group[2] = 0
    weights = (4 / 3, 4 / 3, 0.0, 4 / 3)
    rows = say(live, told=sent, sharded=True)
    assert integrity(rows, weights=weights).ok
    rows.received[2] += 100
    rows.parts[2] += 100
    assert integrity(rows, weights=weights).ok
    rows.received[1] += 1
    assert integrity(rows, weights=weights).holders == (1,)
    # Its gradient is in the sum after all.
    assert not integrity(say(sent, sharded=True), weights=weights).ok


def test_the_transcript_that_most_hold_counts_and_without_one_none_does():
    rows = say(gradients(4), sharded=False)
    assert table(rows).apart == ()
    assert table(rows, digests=(b"a", b"a", b"b", b"a")).apart == (2,)
    assert table(rows, digests=(b"a", b"a", b"b", b"b")).apart == (0, 1, 2, 3)


def test_a_copy_of_the_moment_that_differs_names_its_rank_and_is_not_used():
    moment = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (1680, 2400, 840)]
    rows = say(gradients(4), sharded=False, moment=moment)
    honest, odd = first_moment(table(rows), (0,) * 4)
    assert odd == ()
    for lie in (-1.0, 0.0, 1e9, np.nan):
        rows = say(gradients(4), sharded=False, moment=moment)
        rows.moments[3] *= lie
        said, odd = first_moment(table(rows), (0,) * 4)
        assert odd == (3,)
        assert np.allclose(said, honest)
    rows.moments[1] += 1  # two against two: nobody knows
    rows.moments[3] = 7
    said, odd = first_moment(table(rows), (0,) * 4)
    assert odd == ()
    assert not said.any()


def test_there_is_no_moment_before_the_optimizer_has_one():
    assert _first_moment(table(say(gradients(4), sharded=True)), range(4)) == (None, ())


def test_an_owner_cannot_make_up_a_moment_that_hides_what_the_others_hold():
    moment = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (1680, 2400, 840)]
    rows = say(gradients(4), sharded=True, moment=moment)
    honest, _ = first_moment(table(rows), range(4))
    rest = honest - rows.moments[2]
    rows.moments[2] = -rest
    said, _ = first_moment(table(rows), range(4))
    assert np.allclose(said, rest), "it is left out"
    rows = say(gradients(4), sharded=True, moment=moment)
    rows.moments[2] *= 1e6
    said, _ = first_moment(table(rows), range(4))
    assert np.linalg.norm(said) < 4 * np.linalg.norm(honest)


def test_copies_need_a_majority():
    rows = np.ones((5, 2, 8))
    rows[0] = 3
    assert copies(rows)[1] == (0,)


def test_rows_survive_the_wire():
    rows = say(gradients(3), sharded=False)
    numbers = [(rows.parts[r], rows.groups[r], rows.received[r], rows.moments[r]) for r in range(3)]
    said = [bytes(32) + np.concatenate(row).astype("<f4").tobytes() for row in numbers]
    found = decode(said, 1, 3, rows.parts.shape[2])
    assert np.array_equal(found.groups, rows.groups)
    assert np.array_equal(found.received, rows.received)
    assert np.array_equal(found.moments, rows.moments)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_the_middle_is_the_median_to_the_bit(ranks):
    rows = np.random.default_rng(ranks).standard_normal((ranks, 3, 4))
    assert np.array_equal(middle(rows), np.median(rows, axis=0))
    rows[ranks // 2, 1, 2] = np.nan
    assert np.array_equal(middle(rows), np.median(rows, axis=0), equal_nan=True)
    assert np.isnan(middle(rows)).sum() == 1


def test_signalling_numbers_are_read_without_a_word():
    """A liar's bytes may be such ones, and warnings may be errors."""
    liar = bytes(DIGEST) + b"\x01\x00\x80\x7f" * (4 * 16)
    honest = bytes(DIGEST + 4 * 4 * 16)
    read = decode([honest, liar], 1, 1, 16)
    assert read.finite.tolist() == [True, False]
