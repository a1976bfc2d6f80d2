# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A linear sketch of a flat gradient: one pass over memory, a few hundred numbers out.

A count sketch with signs of its own for every number. Numbers are seen in groups of 16; a group is
negated by 16 secret bits and added to one of 16 secret accumulators of 16 lanes. After each row of
8,192 numbers the lanes of the accumulators are turned by a secret amount and added to the result:
256 numbers. It

- is **linear**: `sketch(a + b) = sketch(a) + sketch(b)` under the same parameters, so sketches of
  the ranks average to the sketch of the reduced gradient, and parts and slices of them add up;
- keeps **norms and angles**: the Euclidean length of a sketch estimates that of the vector, and is
  off by about `sqrt(1 / (2 * 256))` of it for a generic vector;
- **never hides a non-finite number**: every coefficient is +1 or -1.

Rules:

1. 20 bits belong to a group (16 signs, one accumulator). They come two groups at a time from words
   `T0[a] ^ T1[b] ^ T2[a + b]` for column `a` of row `b`, three tables that SHAKE-256 expands from
   the seed and the chunk's name: **exactly 4-wise independent** (Thorup and Zhang, "Tabulation
   based 4-universal hashing with applications to second moment estimation"). So for every vector
   `v` that was fixed before the seed was drawn, whoever chose it, `E |Sv|^2 = |v|^2`, and
   `Var |Sv|^2 <= 2 |v|^4 / 256`, or `/ 16` where all of it is in one lane of one row. No cipher is
   trusted for that, and there is no stride to be guessed;
2. one set of tables serves all parts: each part begins with a row of its own, so all their signs
   differ and nothing cancels between them;
3. two numbers that cancel in a sketch vanish: equal lanes of one row in 2.8 % of draws, others of
   one lane in 0.25 % (the tests measure it). Where that is too much a sketch has several `keys`,
   drawn apart from one another, and all of them are computed in the same pass;
4. a number's signs depend on where it is, not on its dtype: a bf16 gradient and its fp32 momentum
   have comparable sketches;
5. fp32 and bf16 in main memory are summed by a compiled kernel (kernel.py): few numbers in fp32 (8
   on average, 32 for bf16), the rest in fp64, so that rounding does not grow with the gradient.
   fp16, fp64, other devices and installations without the kernel are summed by torch, in fp64
   throughout. Signs and accumulators are the same: the two differ by rounding only, at most by
   `10 * 2**-24` of the vector's norm (measured, over vectors made for it; 0.4 for a dense one).

A sketch whose seed was known **before** the gradient was chosen can be evaded completely: there
is a vector of any size whose sketch is zero (the tests build one). See beacon.py for when seeds
are drawn. Ancestors: AMS (Alon, Matias, Szegedy 1996) and count sketch (Charikar, Chen,
Farach-Colton 2002).
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securetrain.guard.kernel import load

_LANES: Final = 16
_BUCKETS: Final = 16
_MOST: Final = _LANES * _BUCKETS
_GROUPS: Final = 512
"""Groups in a row."""
_COLUMNS: Final = _GROUPS // 2
"""Words in a row: one for two groups."""
_ROW: Final = _GROUPS * _LANES
_MAX_KEYS: Final = 4
_BITS: Final = 20
"""Bits of a word that belong to a group."""
_TILE: Final = {"cpu": 32}
"""Rows that torch takes at a time; elsewhere 256, for few and large operations."""
_KINDS: Final = {torch.float32: 0, torch.bfloat16: 1}
_WIDTHS: Final = (4, 2)
"""Bytes of one number, by kind."""
_PLAIN: Final = (Tensor, torch.nn.Parameter)
_FEW: Final = 16
"""Ranks above which 64 numbers must do: the tables of all ranks grow with n * n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchShape:
    """The shape of a sketch."""

    numbers: int = _MOST
    """Of one key: 16, 32, 64, 128 or 256."""
    keys: int = 1
    """Sketches under signs of their own, one behind the other."""

    def __post_init__(self) -> None:
        if self.numbers not in {16, 32, 64, 128, 256}:
            raise ValueError(f"numbers {self.numbers} must be 16, 32, 64, 128 or 256")
        if not 1 <= self.keys <= _MAX_KEYS:
            raise ValueError(f"keys {self.keys} must be 1..{_MAX_KEYS}")

    @property
    def size(self) -> int:
        """Numbers in one sketch."""
        return self.keys * self.numbers


def shape_for(world_size: int, *, keys: int = 1) -> SketchShape:
    """The shape for a group of ranks.

    256 numbers for each key, 64 above 16 ranks: 1,024 detect no more than 256, and 64 name a rank
    that hides behind honest-looking norms after 22 steps instead of 15.
    """
    return SketchShape(numbers=_MOST if world_size <= _FEW else 64, keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchParameters:
    """The random bits for one chunk of `parts` equal parts."""

    numel: int
    """Elements of one part."""
    parts: int
    shape: SketchShape
    tables: Tensor
    """(keys, columns + rows + columns + rows) words: T0, T1 and T2 of each key."""

    @property
    def rows(self) -> int:
        """Rows of one part."""
        return -(-self.numel // _ROW)

    @property
    def columns(self) -> int:
        """Words of a row that are in use."""
        return min(_COLUMNS, -(-self.numel // (2 * _LANES)))

    def first_of(self, part: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of the first number of each part among those of all, rows being whole."""
        return part * (self.rows * _ROW)

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three tables, each (keys, words)."""
        rows = self.parts * self.rows
        t0, t1, t2 = self.tables.split((self.columns, rows, self.columns + rows), dim=1)
        return t0, t1, t2


@dataclass(frozen=True, slots=True)
class Run:
    """Numbers that follow each other inside a part, such as one parameter's gradient."""

    numbers: Tensor
    part: int
    offset: int
    """Where the first one is in its part."""
    row: int
    """The sketch that they are added to."""


def derive(
    seed: bytes,
    chunk: str,
    *,
    numel: int,
    parts: int,
    shape: SketchShape,
    device: torch.device | str = "cpu",
) -> SketchParameters:
    """Expand `seed` into the parameters of one chunk.

    Args:
        seed: 32 bytes.
        chunk: the chunk's name, the same on every rank.
        numel: elements of one part.
        parts: how many parts the flat tensor has (ranks for FSDP, 1 for DDP).
        shape: numbers and keys.
        device: where the gradient lives.
    """
    if numel < 1 or parts < 1:
        raise ValueError(f"a chunk needs elements: numel {numel}, parts {parts}")
    bare = SketchParameters(numel=numel, parts=parts, shape=shape, tables=torch.empty(0))
    words = 2 * (bare.columns + parts * bare.rows)
    head = f"securetrain-sketch-v2|{chunk}|{numel}|{parts}|{shape.keys}|"
    root = hashlib.sha256(head.encode() + seed).digest()
    bits = bytearray(hashlib.shake_256(root).digest(8 * words * shape.keys))
    tables = torch.frombuffer(bits, dtype=torch.int64).view(shape.keys, words)
    return SketchParameters(numel=numel, parts=parts, shape=shape, tables=tables.to(device))


def sketch(flat: Tensor, parameters: SketchParameters) -> Tensor:
    """Sketch every part of `flat`.

    Args:
        flat: `parts * numel` numbers (fp32, bf16, fp16 or fp64).
        parameters: from `derive`.

    Returns:
        (parts, size) fp64, on the device of `flat`.
    """
    p = parameters
    if flat.numel() != p.parts * p.numel:
        raise ValueError(f"expected {p.parts} parts of {p.numel} elements, got {flat.numel()}")
    parts = flat.detach().reshape(p.parts, p.numel)
    return sketch_runs((Run(part, i, 0, i) for i, part in enumerate(parts)), p, rows=p.parts)


def sketch_part(flat: Tensor, parameters: SketchParameters, part: int) -> Tensor:
    """Sketch one part alone, with the signs that it has inside the whole: (size,)."""
    if flat.numel() != parameters.numel:
        raise ValueError(f"expected {parameters.numel} elements, got {flat.numel()}")
    return sketch_runs([Run(flat, part, 0, 0)], parameters, rows=1)[0]


def sketch_runs(runs: Iterable[Run], parameters: SketchParameters, *, rows: int) -> Tensor:
    """Sketch slices of parts, with the signs that they have inside the whole.

    The sketches of slices that make up a whole add up to its sketch. So one row for each group of
    parameters in a bucket, or the optimizer's state of one shard tensor by tensor, takes one call.

    Args:
        runs: slices; several may be added to one row.
        parameters: from `derive`.
        rows: sketches that come out.

    Returns:
        (rows, size) fp64, on the device of the parameters.

    Raises:
        ValueError: a slice is outside of its part, on another device or of another kind.
    """
    p = parameters
    device = p.tables.device
    out = torch.zeros(rows, p.shape.keys, _MOST, dtype=torch.float64, device=device)
    kernel = load().kernel if device.type == "cpu" else None
    compiled: list[tuple[int, int, int, int, int]] = []
    alive: list[Tensor] = []
    for run in runs:
        numbers = _check(run, p, rows)
        first = run.part * p.rows * _ROW + run.offset
        kind = _KINDS.get(numbers.dtype) if kernel is not None else None
        if kind is None:
            _add_by_torch(numbers, first, p, out[run.row])
        elif numbers.numel():
            alive.append(numbers)
            compiled.append((numbers.data_ptr(), kind, first, numbers.numel(), run.row))
    if kernel is not None and compiled:
        kernel.add(np.array(compiled, dtype=np.int64), _addresses(p), out.numpy())
    return _fold(out, p.shape)


def addressed(sources: Sequence[Tensor], p: SketchParameters) -> NDArray[np.int64] | None:
    """The places of numbers, as the kernel takes them: address, kind and bytes of one, by source;
    None where there is no kernel or it cannot take all of them.
    """
    if p.tables.device.type != "cpu" or load().kernel is None:
        return None
    found: list[tuple[int, int, int]] = []
    for one in sources:
        kind = _KINDS.get(one.dtype)
        if kind is None or type(one) not in _PLAIN or not one.is_cpu or not one.is_contiguous():
            return None
        found.append((one.data_ptr(), kind, _WIDTHS[kind]))
    return np.array(found, dtype=np.int64)


def sketch_addressed(runs: NDArray[np.int64], p: SketchParameters, *, rows: int) -> Tensor:
    """`sketch_runs` for a table that layout.py has checked.

    Args:
        runs: (runs, 5): address, kind, first number, count and row of each.
        p: from `derive`.
        rows: sketches that come out.
    """
    kernel = load().kernel
    assert kernel is not None, "asked by addressed"
    out = np.zeros((rows, p.shape.keys, _MOST))
    kernel.add(runs, _addresses(p), out)
    return _fold(torch.from_numpy(out), p.shape)


def _check(run: Run, p: SketchParameters, rows: int) -> Tensor:
    """The numbers of a run, flat and contiguous; all that the kernel relies on."""
    numbers = run.numbers.detach()
    if type(numbers) is not Tensor or not numbers.is_floating_point():
        raise ValueError(f"a {type(numbers).__name__} of {numbers.dtype} cannot be sketched")
    if numbers.device != p.tables.device:
        raise ValueError(f"numbers on {numbers.device}, signs on {p.tables.device}")
    inside = 0 <= run.offset <= p.numel - numbers.numel()
    if not (inside and 0 <= run.part < p.parts and 0 <= run.row < rows):
        raise ValueError(
            f"{numbers.numel()} numbers at {run.offset} of part {run.part}, row {run.row}, are "
            f"outside of {p.parts} parts of {p.numel} and {rows} rows"
        )
    return numbers.contiguous().view(-1)


def _addresses(p: SketchParameters) -> NDArray[np.int64]:
    """The three tables of each key, as the kernel takes them."""
    assert p.tables.is_contiguous(), "made by derive"
    first, second = p.columns, p.columns + p.parts * p.rows
    assert p.tables.shape == (p.shape.keys, 2 * second), "made by derive"
    begin = p.tables.data_ptr() + 8 * 2 * second * np.arange(p.shape.keys)[:, None]
    addresses: NDArray[np.int64] = begin + 8 * np.array([0, first, second])
    return addresses


def _fold(out: Tensor, shape: SketchShape) -> Tensor:
    """(rows, keys, 256) -> (rows, size), of the vectors' lengths on average."""
    if shape.numbers < _MOST:  # fewer accumulators: those that are equal in their lower bits
        out = out.unflatten(-1, (-1, shape.numbers)).sum(dim=-2)
    flat = out.flatten(1)
    return flat if shape.keys == 1 else flat / math.sqrt(shape.keys)


def _add_by_torch(numbers: Tensor, first: int, p: SketchParameters, out: Tensor) -> None:
    """Add the sketch of `numbers`, of which the first is the `first` of the whole; (keys, 256)."""
    tile = _TILE.get(numbers.device.type, 256)
    wide = torch.promote_types(numbers.dtype, torch.float32)
    at, end = first, first + numbers.numel()
    while at < end:
        row = at // _ROW
        rows = min(tile, -(-end // _ROW) - row)
        stop = min(end, (row + rows) * _ROW)
        padded = torch.zeros(rows * _ROW, dtype=wide, device=numbers.device)
        padded[at - row * _ROW : stop - row * _ROW] = numbers[at - first : stop - first]
        for key, (t0, t1, t2) in enumerate(zip(*p.split(), strict=True)):
            out[key] += _add_rows(padded.view(rows, _GROUPS, _LANES), row, t0, t1, t2)
        at = stop


def _add_rows(x: Tensor, row: int, t0: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
    """The sketch of whole rows under one key: (256,) fp64."""
    rows, device = x.shape[0], x.device
    column = torch.arange(len(t0), device=device)
    index = torch.arange(row, row + rows, device=device).unsqueeze(1)
    words = torch.zeros(rows, _COLUMNS, dtype=torch.int64, device=device)  # the rest is padding
    words[:, : len(t0)] = t0 ^ t1[index] ^ t2[index + column]
    bits = torch.stack([words, words >> _BITS], dim=-1).view(rows, _GROUPS).int()
    shift = torch.arange(31, 15, -1, dtype=torch.int32, device=device)
    signs = (bits.unsqueeze(-1) << shift) >> 31  # -1 where the bit is set, otherwise 0
    signed = (x * (1 + 2 * signs)).double()
    buckets = ((bits >> _LANES) & (_BUCKETS - 1)).long()
    sums = _into_buckets(signed, buckets)
    lane = torch.arange(_LANES, device=device)
    turn = (t1[row : row + rows] >> 60).unsqueeze(1)
    source = ((lane - turn) & (_LANES - 1)).unsqueeze(1).expand(-1, _BUCKETS, -1)
    return sums.gather(2, source).sum(dim=0).flatten()


def _into_buckets(signed: Tensor, buckets: Tensor) -> Tensor:
    """Add the groups of each row that share an accumulator: (rows, 16, 16) fp64."""
    rows = signed.shape[0]
    if signed.device.type == "cpu":
        index = torch.arange(rows).unsqueeze(1) * _BUCKETS + buckets
        sums = torch.zeros(rows * _BUCKETS, _LANES, dtype=torch.float64)
        sums.index_add_(0, index.flatten(), signed.flatten(0, 1))
        return sums.view(rows, _BUCKETS, _LANES)
    return _by_product(signed, buckets)


def _by_product(signed: Tensor, buckets: Tensor) -> Tensor:
    """The same where atomic additions to so few accumulators would wait for each other."""
    rows = signed.shape[0]
    one_hot = torch.zeros(rows, _BUCKETS, _GROUPS, dtype=torch.float64, device=signed.device)
    one_hot.scatter_(1, buckets.unsqueeze(1), 1.0)
    return one_hot @ signed
