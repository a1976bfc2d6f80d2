# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from securetrain.guard.sketch import (
    SketchShape,
    derive,
    norms,
    product_roundoff,
    shape_for,
    sketch,
    sketch_part,
)

SHAPE = SketchShape()
SIZE = 50_003  # not a multiple of anything


def parameters(seed=b"s" * 32, *, numel=SIZE, parts=1, shape=SHAPE):
    return derive(seed, "chunk", numel=numel, parts=parts, shape=shape)


def gradient(numel=SIZE, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("numel", [1, 7, 255, 256, 257, 5000, SIZE])
def test_is_linear(numel):
    p = parameters(numel=numel)
    a, b = gradient(numel, 1), gradient(numel, 2)
    together = sketch(2 * a + b, p)
    apart = 2 * sketch(a, p) + sketch(b, p)
    assert torch.allclose(together, apart, atol=1e-5 * float(a.norm() + b.norm()))


def test_equals_the_matrix_it_stands_for():
    p = parameters(numel=300, shape=SketchShape(rows=2, buckets=4))
    matrix = torch.stack([sketch(row, p)[0] for row in torch.eye(300)])
    assert set(matrix.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert (matrix != 0).sum(dim=1).eq(2).all(), "one bucket of each row for every element"
    x = gradient(300)
    assert torch.allclose(x.double() @ matrix, sketch(x, p)[0], atol=1e-4)


def test_parts_are_sketched_apart_and_owners_agree():
    p = parameters(numel=1000, parts=4)
    x = gradient(4000)
    whole = sketch(x, p)
    assert whole.shape == (4, SHAPE.size)
    for part in range(4):
        own = sketch_part(x[part * 1000 : (part + 1) * 1000], p, part)
        assert torch.allclose(own, whole[part], atol=1e-4)
    assert not torch.allclose(p.block_signs[0], p.block_signs[1])


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("normal", 0.85, 1.15), ("sparse", 0.7, 1.4), ("constant", 0.4, 1.8), ("period", 0.4, 1.8)],
)
def test_keeps_norms(name, low, high):
    x = {
        "normal": gradient(),
        "sparse": torch.zeros(SIZE).index_fill_(0, torch.arange(0, SIZE, 5001), 3.0),
        "constant": torch.full((SIZE,), 0.1),
        "period": torch.arange(SIZE).remainder(2).float() - 0.5,
    }[name]
    for seed in range(40):
        ratio = float(norms(sketch(x, parameters(bytes([seed]) * 32)), SHAPE)[0] / x.norm())
        assert low < ratio < high, (seed, ratio)


def test_keeps_distances_on_average():
    a, b = gradient(seed=1), gradient(seed=2)
    ratios = [
        float(norms(sketch(a, p) - sketch(b, p), SHAPE)[0] / (a - b).norm())
        for p in (parameters(bytes([seed]) * 32) for seed in range(60))
    ]
    assert abs(sum(ratios) / len(ratios) - 1) < 0.02


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_never_hides_a_bad_number(bad, dtype):
    x = gradient(3001).to(dtype)
    for index in (0, 1500, 3000):
        y = x.clone()
        y[index] = bad
        assert not torch.isfinite(sketch(y, parameters(numel=3001))).all()
    y = x.clone()
    y[:] = bad
    assert not torch.isfinite(sketch(y, parameters(numel=3001))).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_not_rounded_again(dtype):
    x = gradient().to(dtype)
    p = parameters(numel=SIZE)
    exact = sketch(x.double(), p)
    assert torch.allclose(sketch(x, p), exact, atol=1e-5 * float(exact.norm()))


def test_wide_tensors_are_widened_in_blocks():
    numel = 300_000
    p = parameters(numel=numel, parts=8)
    x = gradient(numel * 8).bfloat16()
    exact = sketch(x.double(), p)
    assert torch.allclose(sketch(x, p), exact, atol=1e-5 * float(exact.norm()))


def test_seed_chunk_and_size_change_everything():
    base = parameters()
    for other in (
        parameters(b"t" * 32),
        derive(b"s" * 32, "other", numel=SIZE, parts=1, shape=SHAPE),
    ):
        assert other.stride != base.stride or not torch.equal(other.tile, base.tile)
    strides = {parameters(bytes([s]) * 32).stride for s in range(20)}
    assert len(strides) > 10, "the stride is part of the secret"
    again = parameters()
    assert torch.equal(again.left, base.left)
    assert torch.equal(again.tile, base.tile)


def evasive_vector(p, length):
    """Two elements of one column, with the same or opposite signs in every row: they vanish."""
    rows = p.left.T.tolist()
    for first in range(40):
        for second in range(first):
            for sign in (1.0, -1.0):
                if rows[first] == [sign * x for x in rows[second]]:
                    x = torch.zeros(p.numel)
                    x[first * p.stride + 3] = length / 2**0.5
                    x[second * p.stride + 3] = -sign * length / 2**0.5
                    return x
    raise AssertionError("780 pairs of rows, each alike with probability 1/128")


def test_a_known_seed_is_evaded_and_a_fresh_one_is_not():
    known = derive(b"k" * 32, "chunk", numel=400_000, parts=1, shape=SHAPE)
    honest = gradient(400_000)
    evil = honest + evasive_vector(known, 5 * float(honest.norm()))
    # The attack works when the seed is known: five times the norm, and the same sketch.
    assert torch.allclose(sketch(evil, known), sketch(honest, known), atol=0.5)
    for seed in range(50):
        fresh = derive(bytes([seed]) * 32, "chunk", numel=400_000, parts=1, shape=SHAPE)
        ratio = norms(sketch(evil, fresh), SHAPE)[0] / norms(sketch(honest, fresh), SHAPE)[0]
        assert ratio > 2.0, seed


@pytest.mark.parametrize(
    ("dtype", "kept", "expected"),
    [(torch.float32, 24, 2.0**-24), (torch.float32, 11, 2.0**-11), (torch.bfloat16, 8, 2.0**-8)],
)
def test_coarse_products_are_noticed(monkeypatch, dtype, kept, expected):
    real = torch.bmm

    def coarse(a, b):
        scale = 2.0 ** (kept - 1)
        return real(a, torch.round(b.to(dtype).float() * scale) / scale)

    monkeypatch.setattr(torch, "bmm", coarse)
    assert product_roundoff("cpu") == expected


def test_shapes_shrink_with_the_group():
    assert shape_for(2).size == 256
    assert [shape_for(n).size for n in (4, 8, 16, 64, 1024)] == [256, 128, 64, 64, 64]
    with pytest.raises(ValueError, match="buckets"):
        SketchShape(buckets=0)
    with pytest.raises(ValueError, match="elements"):
        parameters(numel=0)
    with pytest.raises(ValueError, match="expected 1 parts"):
        sketch(gradient(10), parameters())
