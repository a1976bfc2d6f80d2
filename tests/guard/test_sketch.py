# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
import torch

from securetrain.guard import kernel
from securetrain.guard import sketch as sketches
from securetrain.guard.sketch import (
    Run,
    SketchShape,
    derive,
    shape_for,
    sketch,
    sketch_part,
    sketch_runs,
)
from tests.guard.reference_sketch import cancelling_pair, places, sketch_by_definition
from tests.vocabulary import refused

SHAPE = SketchShape()
TWO = SketchShape(keys=2)
SIZE = 50_003  # not a multiple of anything


def parameters(seed=b"s" * 32, *, numel=SIZE, parts=1, shape=SHAPE):
    return derive(seed, "chunk", numel=numel, parts=parts, shape=shape)


def gradient(numel=SIZE, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def seeds(count):
    return [b"seed" + number.to_bytes(28, "big") for number in range(count)]


def _native(path):
    if (loaded := kernel.load()).kernel is None:
        pytest.skip(loaded.reason)
    if path > loaded.kernel.path:
        pytest.skip("the processor has no such instructions")
    return kernel.Loaded(kernel.Kernel(loaded.kernel.library, path), "")


@pytest.fixture(params=["torch", *kernel.PATHS])
def path(request, monkeypatch):
    """Each way to sketch in turn."""
    if request.param == "torch":
        found = kernel.Loaded(None, "taken away")
    else:
        found = _native(kernel.PATHS.index(request.param))
    monkeypatch.setattr(sketches, "load", lambda: found)
    return request.param


SIZES = [1, 15, 16, 17, 31, 32, 33, 255, 2047, 2049, 8191, 8192, 8193, 8224, 20_011]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "shape", [SHAPE, SketchShape(numbers=64, keys=3)], ids=["256", "three of 64"]
)
def test_every_path_is_the_definition(path, dtype, shape):
    for numel in SIZES if shape is SHAPE else SIZES[-3:]:
        p = parameters(numel=numel, shape=shape)
        x = gradient(numel).to(dtype)
        expected = sketch_by_definition(x, p)
        assert np.allclose(sketch(x, p), expected, rtol=0, atol=2e-6 * float(x.double().norm()))


def test_parts_are_rows_of_their_own(path):
    for numel, parts in ((1000, 4), (8192, 2), (9000, 3), (5, 7)):
        p = parameters(numel=numel, parts=parts)
        x = gradient(numel * parts)
        whole = sketch(x, p)
        assert whole.shape == (parts, 256)
        assert np.allclose(whole, sketch_by_definition(x, p), atol=1e-4)
        for part, piece in enumerate(x.view(parts, -1)):
            assert torch.allclose(sketch_part(piece, p, part), whole[part], atol=1e-4)


def test_tiles_of_the_fallback_make_no_difference(monkeypatch):
    p, x = parameters(), gradient().double()
    whole = sketch(x, p)
    monkeypatch.setattr(sketches, "_TILE", {"cpu": 2})
    assert torch.allclose(sketch(x, p), whole, atol=1e-12)


def test_the_way_of_other_devices_is_the_same():
    generator = torch.Generator().manual_seed(3)
    signed = torch.randn(5, 512, 16, generator=generator, dtype=torch.float64)
    buckets = torch.randint(0, 16, (5, 512), generator=generator)
    here = sketches._into_buckets(signed, buckets)
    assert torch.allclose(here, sketches._by_product(signed, buckets), atol=1e-12)


def test_slices_add_up_to_the_whole(path):
    """Groups of a bucket, and the optimizer's state of one shard, tensor by tensor."""
    p = parameters(numel=20_000, parts=2, shape=TWO)
    x = gradient(40_000)
    whole = sketch(x, p)
    cuts = [0, 7, 8192, 8200, 8232, 19_990, 20_000]
    runs = [
        Run(x[part * 20_000 + a : part * 20_000 + b], part, a, row=3 * part + i % 3)
        for part in (0, 1)
        for i, (a, b) in enumerate(itertools.pairwise(cuts))
    ]
    rows = sketch_runs(runs, p, rows=6)
    assert torch.allclose(rows.view(2, 3, -1).sum(dim=1), whole, atol=1e-4)
    alone = torch.zeros_like(x)
    alone[8192:8200] = x[8192:8200]
    alone[19_990:20_000] = x[19_990:20_000]
    row = sketch_runs(
        [Run(x[8192:8200], 0, 8192, 0), Run(x[19_990:20_000], 0, 19_990, 0)], p, rows=1
    )
    assert torch.allclose(row[0], sketch(alone, p)[0], atol=1e-4)


def test_a_gradient_and_its_momentum_share_signs_whatever_their_dtypes(path):
    x = gradient().bfloat16()
    p = parameters()
    exact = sketch(x.double(), p)
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.allclose(sketch(x.to(dtype), p), exact, atol=1e-5 * float(exact.norm()))


@pytest.mark.parametrize("numel", [1, 7, 255, 256, 257, 5000, SIZE])
def test_is_linear(path, numel):
    p = parameters(numel=numel)
    a, b = gradient(numel, 1), gradient(numel, 2)
    together = sketch(2 * a + b, p)
    apart = 2 * sketch(a, p) + sketch(b, p)
    assert torch.allclose(together, apart, atol=1e-5 * float(a.norm() + b.norm()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_never_hides_a_bad_number(path, bad, dtype):
    x = gradient(8301).to(dtype)
    for index in (0, 1500, 8192, 8300):
        y = x.clone()
        y[index] = bad
        assert not torch.isfinite(sketch(y, parameters(numel=8301))).all()
    y = x.clone()
    y[:] = bad
    assert not torch.isfinite(sketch(y, parameters(numel=8301))).all()


def test_what_stands_beside_the_numbers_is_not_read(path):
    p = parameters(numel=101)
    x = torch.full((300,), float("nan"))
    x[100:201] = gradient(101)
    assert torch.equal(sketch(x[100:201], p), sketch(x[100:201].clone(), p))
    strided = torch.full((202,), float("nan"))
    strided[::2] = x[100:201]
    assert torch.equal(sketch(strided[::2], p), sketch(x[100:201], p))


# -- its guarantees --------------------------------------------------------------------------------


def test_words_are_exactly_4_wise_independent():
    """No four words, and no three or two, have tables that cancel: then every four of them are
    independent and uniform, as the tables are (Thorup and Zhang)."""
    columns, rows = 6, 5
    words = [
        (1 << a) | (1 << columns + b) | (1 << columns + rows + a + b)
        for b in range(rows)
        for a in range(columns)
    ]
    for size in (1, 2, 3, 4):
        for some in itertools.combinations(words, size):
            assert np.bitwise_xor.reduce(some) != 0
    # The check can see: with sums that wrap, and without the third table, words do cancel.
    for third in (lambda a, b: (a + b) % 2, lambda a, b: 0):
        weak = [
            (1 << a) | (1 << columns + b) | (1 << columns + rows + third(a, b))
            for b in range(rows)
            for a in range(columns)
        ]
        assert any(np.bitwise_xor.reduce(s) == 0 for s in itertools.combinations(weak, 4))


def test_signs_and_places_are_even():
    index, sign = places(parameters(numel=20_000))
    assert abs(sign.mean()) < 0.03
    counts = np.bincount(index.flatten(), minlength=256)
    assert 40 < counts.min() < counts.max() < 130
    neighbours = (sign[0, 1:] * sign[0, :-1]).mean(), (sign[0, 16:] * sign[0, :-16]).mean()
    assert max(map(abs, neighbours)) < 0.03
    lanes = index[0].reshape(-1, 16) % 16
    assert (np.sort(lanes, axis=1) == np.arange(16)).all(), "a group has one number in each lane"
    assert len(set((index[0, ::8192] % 16).tolist())) > 1, "rows are turned"


def test_every_part_row_group_and_key_has_signs_of_its_own():
    p = parameters(numel=9000, parts=2, shape=TWO)
    signs = [places(p, key)[1].reshape(-1) for key in (0, 1)]
    slices = [s[start : start + 512] for s in signs for start in (0, 512, 8192, 9000)]
    for a, b in itertools.combinations(slices, 2):
        assert abs(float((a * b).mean())) < 0.2


VECTORS = {
    "normal": (gradient(), 0.85, 1.15),
    "sparse": (
        torch.zeros(SIZE).index_fill_(0, torch.arange(0, SIZE, 5001), 3.0),
        *(0.6, 1.45),
    ),
    "constant": (torch.full((SIZE,), 0.1), 0.8, 1.2),
    "alternating": (torch.arange(SIZE).remainder(2).float() - 0.5, 0.8, 1.2),
    "every sixteenth": ((torch.arange(SIZE) % 16 == 0).float(), 0.75, 1.25),
    "every 8,192nd": ((torch.arange(SIZE * 8) % 8192 == 0).float(), 0.5, 1.5),
}


@pytest.mark.parametrize("name", VECTORS)
def test_keeps_norms(name):
    x, low, high = VECTORS[name]
    for seed in seeds(150):
        p = parameters(seed, numel=x.numel())
        assert low < float(sketch(x, p).norm() / x.norm()) < high, seed


def test_squared_norms_are_right_on_average_and_spread_as_stated():
    for x, numbers in ((gradient(3000), 256), (VECTORS["every sixteenth"][0][:3000], 16)):
        ratios = torch.tensor(
            [
                float((sketch(x, parameters(s, numel=3000)).norm() / x.norm()) ** 2)
                for s in seeds(800)
            ]
        )
        assert abs(float(ratios.mean()) - 1) < 4 * math.sqrt(2 / numbers / 800)
        assert float(ratios.var()) < 1.25 * 2 / numbers


def test_several_keys_average_and_keep_norms():
    x = gradient(5000)
    p = parameters(numel=5000, shape=SketchShape(keys=4))
    both = sketch(x, p)
    assert both.shape == (1, 1024)
    assert 0.93 < float(both.norm() / x.norm()) < 1.07
    a, b, *_ = both.view(4, 256)
    assert not torch.allclose(a, b)


@pytest.mark.parametrize(
    ("apart", "share"),
    [pytest.param(16, 1 / 32, id="one row"), pytest.param(16_384, 1 / 512, id="rows")],
)
def test_two_numbers_that_cancel_vanish_as_seldom_as_stated_and_a_second_key_sees_them(
    apart, share
):
    x = torch.zeros(16_400)
    x[3], x[3 + apart] = 1.0, -1.0
    one, two, draws = 0, 0, 4000
    for seed in seeds(draws):
        rows = sketch(x, parameters(seed, numel=16_400, shape=TWO)).view(2, 256)
        gone = rows.norm(dim=1) == 0
        one += int(gone[0])
        two += bool(gone.all())
    assert abs(one / draws - share) < 4 * math.sqrt(share / draws)
    assert two <= 4 * share * share * draws + 4


def test_keeps_distances_on_average():
    a, b = gradient(seed=1), gradient(seed=2)
    ratios = [
        float((sketch(a, p) - sketch(b, p)).norm() / (a - b).norm())
        for p in (parameters(seed) for seed in seeds(60))
    ]
    assert abs(sum(ratios) / len(ratios) - 1) < 0.02


def test_seed_chunk_and_size_change_everything():
    base = parameters().tables
    for other in (
        parameters(b"t" * 32),
        derive(b"s" * 32, "other", numel=SIZE, parts=1, shape=SHAPE),
        parameters(numel=SIZE - 1),
    ):
        assert not (other.tables == base).any()
    assert torch.equal(parameters().tables, base)
    words = base.flatten().tolist()
    assert len(set(words)) == len(words)


def null_space(p, honest, length):
    """A vector of any length whose sketch is zero under `p`, at random places."""
    index, sign = (torch.from_numpy(a[0]) for a in places(p))
    x = torch.randn(p.numel, generator=torch.Generator().manual_seed(9)).double()
    for _ in range(3):  # take from each number its share of what its place sums to
        sums = torch.zeros(256, dtype=torch.float64).index_add_(0, index, sign * x)
        x -= sign * (sums / torch.bincount(index, minlength=256).clamp_min(1))[index]
    return honest + (x / x.norm() * length).float()


def test_a_known_seed_is_evaded_and_a_fresh_one_is_not():
    """Security (9): the previous seed and the code gain less than 10 % of the norm."""
    numel = 20_000
    known = derive(b"k" * 32, "chunk", numel=numel, parts=1, shape=SHAPE)
    honest = gradient(numel)
    evil = null_space(known, honest, 5 * float(honest.norm()))
    # The attack works when the seed is known: five times the norm, and the same sketch.
    assert torch.allclose(sketch(evil, known), sketch(honest, known), atol=0.01)
    ratios = [
        float(sketch(evil, fresh).norm() / evil.norm())
        for fresh in (derive(s, "chunk", numel=numel, parts=1, shape=SHAPE) for s in seeds(200))
    ]
    assert sum(ratios) / len(ratios) > 0.98
    assert sum(r < 0.9 for r in ratios) <= 6, "as often as for a vector nobody chose"
    assert min(ratios) > 0.8
    first, second, s, t = cancelling_pair(known)
    pair = torch.zeros(numel)
    pair[first], pair[second] = s, t
    assert float(sketch(pair, known).norm()) == 0
    assert float(sketch(pair, parameters(numel=numel, shape=TWO)).norm()) > 0.5


# -- what it refuses -------------------------------------------------------------------------------


def test_shapes():
    assert [shape_for(n).size for n in (2, 8, 16, 17, 1024)] == [256, 256, 256, 64, 64]
    assert shape_for(8, keys=2).size == 512
    refused(ValueError, "numbers 100", SketchShape, numbers=100)
    for keys in (0, 5):
        refused(ValueError, "keys", SketchShape, keys=keys)
    refused(ValueError, "elements", parameters, numel=0)
    refused(ValueError, "expected 1 parts", lambda: sketch(gradient(10), parameters()))
    refused(ValueError, "expected", lambda: sketch_part(gradient(10), parameters(numel=11), 0))


@pytest.mark.parametrize(
    ("part", "offset", "count", "row"),
    [
        *((0, 0, 101, 0), (0, 1, 100, 0), (0, -1, 5, 0), (2, 0, 5, 0), (-1, 0, 5, 0)),
        *((0, 0, 5, 2), (0, 0, 5, -1), (0, 101, 0, 0), (0, 2**62, 5, 0)),
    ],
)
def test_nothing_outside_is_read_or_written(path, part, offset, count, row):
    p = parameters(numel=100, parts=2)
    with pytest.raises(ValueError, match="outside"):
        sketch_runs([Run(gradient(count), part, offset, row)], p, rows=2)


def test_only_plain_tensors_of_fractions_are_read():
    p = parameters(numel=4)
    for wrong in (torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.complex64)):
        refused(ValueError, "cannot be sketched", sketch_part, wrong, p, 0)
    refused(ValueError, "meta", lambda: sketch_part(torch.zeros(4, device="meta"), p, 0))

    class Odd(torch.Tensor):
        """Its memory may be somewhere else, as a distributed tensor's is."""

    refused(ValueError, "Odd", lambda: sketch_part(torch.zeros(4).as_subclass(Odd), p, 0))
    assert sketch_part(torch.nn.Parameter(torch.ones(4)), p, 0).norm() == 2
    assert sketch_runs([Run(torch.zeros(0), 0, 4, 0)], p, rows=1).norm() == 0
