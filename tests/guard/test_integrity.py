# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from securetrain.guard.integrity import IntegrityResult, check
from securetrain.guard.roundoff import near_zero, unit_roundoff
from securetrain.guard.sketch import SketchShape, derive, shape_for, sketch, sketch_part
from tests.vocabulary import refused

D = 4096


def gradients(kind, ranks, generator):
    noise = torch.randn(ranks, D, generator=generator)
    match kind:
        case "dense":
            return noise + 0.3 * torch.randn(D, generator=generator)
        case "one coordinate":
            x = noise * 1e-6
            x[:, 77] = 1000 + noise[:, 77]
            return x
        case "heavy":
            return noise * torch.exp(3 * torch.randn(D, generator=generator))
        case "rows":  # an embedding: most rows untouched
            x = noise.view(ranks, 64, -1)
            x[:, torch.randperm(64, generator=generator)[:58]] = 0
            return x.reshape(ranks, D)
        case "one rank":
            noise[0] *= 1e4
            return noise
    raise AssertionError(kind)


def reduce(x, dtype):
    """A reduction that rounds at every addition, in the dtype of the collective."""
    total = x[0].to(dtype)
    for row in x[1:]:
        total = (total.float() + row.float()).to(dtype)
    return (total.float() / len(x)).to(dtype)


def tables(x, y, parts, seed, shape):
    ranks = len(x)
    p = derive(seed, "c", numel=D // parts, parts=parts, shape=shape)
    sent = torch.stack([sketch(row, p) for row in x]).float().double()
    pieces = y.view(parts, -1)
    received = torch.stack(
        [sketch_part(pieces[r if parts > 1 else 0], p, r if parts > 1 else 0) for r in range(ranks)]
    )
    return sent.numpy(), received.float().double().numpy()[:, None]


KINDS = ["dense", "one coordinate", "heavy", "rows", "one rank"]


@pytest.mark.slow
def test_thousand_clean_reductions_raise_no_alarm():
    generator = torch.Generator().manual_seed(3)
    worst, checks = 0.0, 0
    for round_ in range(70):
        for kind in KINDS:
            for ranks, sharded in ((2, True), (4, True), (8, False)):
                dtype = torch.bfloat16 if round_ % 7 == 0 else torch.float32
                x = gradients(kind, ranks, generator).to(dtype)
                shape = shape_for(ranks)
                sent, received = tables(
                    x, reduce(x, dtype), ranks if sharded else 1, bytes([round_]) * 32, shape
                )
                result = check(sent, received, roundoff=unit_roundoff(dtype))
                assert result.ok, (kind, ranks, dtype, result)
                worst = max(worst, result.ratio)
                checks += 1
    assert checks >= 1000
    assert worst < 0.9, "a margin is left"


@pytest.mark.parametrize("sharded", [True, False])
def test_a_single_element_in_fp32_is_found_and_located(sharded):
    generator = torch.Generator().manual_seed(4)
    shape, ranks = shape_for(4), 4
    for trial in range(40):
        x = gradients("dense", ranks, generator)
        y = reduce(x, torch.float32)
        index = int(torch.randint(0, D, (), generator=generator))
        y[index] += 5e-6 * y.norm()
        sent, received = tables(x, y, ranks if sharded else 1, bytes([trial]) * 32, shape)
        result = check(sent, received, roundoff=unit_roundoff(torch.float32))
        expected = (index // (D // ranks),) if sharded else (0, 1, 2, 3)
        assert result.holders == expected
        assert result.ratio > 1


def test_smallest_single_element_that_is_always_found():
    # The docstring's number: 1.8e-6 of the norm when ranks agree (signal above noise).
    generator = torch.Generator().manual_seed(5)
    shape, found = shape_for(4), 0
    for trial in range(50):
        base = torch.randn(D, generator=generator)
        x = base + 0.1 * torch.randn(4, D, generator=generator)
        y = reduce(x, torch.float32)
        y[trial * 13] += 1.8e-6 * y.norm()
        sent, received = tables(x, y, 4, bytes([trial]) * 32, shape)
        found += not check(sent, received, roundoff=2.0**-24).ok
    assert found == 50


def test_bit_flips_that_matter_are_found():
    generator = torch.Generator().manual_seed(6)
    shape = shape_for(4)
    for bit in range(20, 31):
        x = gradients("dense", 4, generator)
        y = reduce(x, torch.float32)
        wrong = y.clone()
        wrong.view(torch.int32)[1234] ^= 1 << bit
        change = float((wrong - y).double().norm() / y.double().norm())
        sent, received = tables(x, wrong, 4, bytes([bit]) * 32, shape)
        result = check(sent, received, roundoff=2.0**-24)
        assert (not result.ok) or change < 5e-6, (bit, change)


def test_the_limit_does_not_depend_on_the_size_of_the_gradient():
    # One element carries the norm and many small ones are added to it: the worst rounding.
    shape, numel = SketchShape(), 1_500_000
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        x = 1e-3 * torch.randn(2, numel, generator=generator)
        x[:, 12_345] = 1000 + torch.randn(2, generator=generator)
        y = reduce(x, torch.float32)
        p = derive(bytes([seed]) * 32, "c", numel=numel, parts=1, shape=shape)
        sent = torch.stack([sketch(row, p) for row in x]).float().double().numpy()
        received = sketch(y, p).expand(2, -1).float().double().numpy()[:, None]
        result = check(sent, received, roundoff=2.0**-24)
        assert result.ratio < 0.8


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_more_keys_have_a_limit_as_tight_for_each_number(keys):
    shape = shape_for(4, keys=keys)
    sent = np.zeros((4, 1, shape.size))
    sent[..., 0] = 1.0
    received = sent.copy()
    limit = (2.0**-23 * 3.5 + 2.0**-20) / keys**0.5
    received[2, 0, 5] = 0.99 * limit
    assert check(sent, received, roundoff=2.0**-24, keys=keys).ok
    received[2, 0, 5] = 1.01 * limit
    assert check(sent, received, roundoff=2.0**-24, keys=keys).holders == (2,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_result_that_is_not_finite_fails(bad):
    x = gradients("dense", 4, torch.Generator().manual_seed(7))
    y = reduce(x, torch.float32)
    y[5] = bad
    sent, received = tables(x, y, 4, b"s" * 32, shape_for(4))
    result = check(sent, received, roundoff=2.0**-24)
    assert result.holders == (0,)
    assert result.ratio == float("inf")


def test_all_zero_gradients_are_fine_and_a_number_out_of_nothing_is_not():
    shape = SketchShape()
    sent = np.zeros((4, 4, shape.size))
    received = np.zeros((4, 1, shape.size))
    assert check(sent, received, roundoff=2.0**-24).ok
    received[2, 0, 0] = 1e-30
    assert check(sent, received, roundoff=2.0**-24).holders == (2,)


def test_every_replicas_copy_of_a_shard_is_checked():
    """Two replicas of two shards: ranks 0 and 2 own the first, 1 and 3 the second."""
    x = gradients("dense", 4, torch.Generator().manual_seed(9))
    y = reduce(x, torch.float32)
    shape, owners = shape_for(4), (0, 1, 0, 1)
    parts = derive(b"s" * 32, "c", numel=D // 2, parts=2, shape=shape)
    whole = torch.stack([sketch(row, parts) for row in x]).numpy()
    received = torch.stack(
        [sketch_part(y.view(2, -1)[part].contiguous(), parts, part) for part in owners]
    ).numpy()[:, None]
    assert check(whole, received, roundoff=2.0**-24, owners=owners).ok
    received[2] *= 1.001  # what reached the second replica is another sum
    result = check(whole, received, roundoff=2.0**-24, owners=owners)
    assert result.holders == (2,)
    for wrong in ((0, 0, 0, 0), (0, 1, 0), (0, 1, 0, 1, 1)):
        refused(ValueError, "owned", check, whole, received, roundoff=2.0**-24, owners=wrong)


def test_a_group_whose_parts_do_not_add_up_is_not_fine_either():
    assert IntegrityResult(ratio=0.5).ok
    assert not IntegrityResult(ratio=2.0, groups=(1,)).ok
    assert not IntegrityResult(ratio=2.0, holders=(1,)).ok


def test_shards_may_be_owned_in_another_order_than_the_ranks():
    x = gradients("dense", 4, torch.Generator().manual_seed(9))
    y = reduce(x, torch.float32)
    shape, owners = shape_for(4), (2, 0, 3, 1)
    parts = derive(b"s" * 32, "c", numel=D // 4, parts=4, shape=shape)
    whole = torch.stack([sketch(row, parts) for row in x]).numpy()
    received = torch.stack(
        [sketch_part(y.view(4, -1)[part].contiguous(), parts, part) for part in owners]
    ).numpy()[:, None]
    assert check(whole, received, roundoff=2.0**-24, owners=owners).ok
    assert check(whole, received, roundoff=2.0**-24).holders == (0, 1, 2, 3)


def test_what_cannot_be_checked_is_refused():
    refused(ValueError, "cannot be checked", unit_roundoff, torch.int8)
    shape = SketchShape()
    with pytest.raises(ValueError, match="3 parts for 4 ranks"):
        check(np.zeros((4, 3, shape.size)), np.zeros((4, 1, shape.size)), roundoff=1e-7)


def test_an_owner_that_lies_twice_about_its_own_shard_is_the_stated_limit():
    x = gradients("dense", 4, torch.Generator().manual_seed(8))
    y = reduce(x, torch.float32)
    sent, received = tables(x, y, 4, b"s" * 32, shape_for(4))
    sent[1, 1] += 400.0
    received[1] += 100.0
    assert check(sent, received, roundoff=2.0**-24).ok  # documented
    sent[1, 2] += 400.0  # any other owner's shard: found
    assert check(sent, received, roundoff=2.0**-24).holders == (2,)


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7, 1e-9])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_numbers_that_fp16_rounds_to_zero_raise_no_alarm(ranks, size):
    half, generator = torch.float16, torch.Generator().manual_seed(6)
    for seed in range(8):
        x = torch.randn(ranks, D, generator=generator) * size
        # As torch's compression hook does: to fp16, divided, added up.
        mean = sum((row.to(half).div(ranks) for row in x), torch.zeros(D, dtype=half))
        sent, received = tables(x, mean.float(), 1, bytes([seed]) * 32, shape_for(ranks))
        coarse = unit_roundoff(half)
        assert check(sent, received, roundoff=coarse, rounding=near_zero(half, D)).ratio < 0.9
        if size < 1e-6:
            assert not check(sent, received, roundoff=coarse).ok, "the control"


def test_what_fp16_can_hold_is_checked_as_before():
    half, ranks = torch.float16, 4
    x = torch.randn(ranks, D, generator=torch.Generator().manual_seed(7)).to(half)
    lie = reduce(x, half)
    lie[5] += 2.0
    sent, received = tables(x, lie, 1, bytes(32), shape_for(ranks))
    rounding = near_zero(half, D)
    assert not check(sent, received, roundoff=unit_roundoff(half), rounding=rounding).ok
    assert near_zero(torch.float32, D) == near_zero(torch.bfloat16, D) == 0.0
