# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A linear sketch of a flat gradient: one pass over memory, a few hundred numbers out.

A part of the gradient, `numel` numbers, is seen as blocks of 64 rows and `L` columns. ``T``,
`rows` times 64 random signs, multiplies each block from the left (one matrix product with a thin
matrix: the single pass); the product is multiplied by random signs, each of its rows is folded to
`buckets` numbers, and these, with signs of the block's own, are summed over the blocks. The
result has `rows * buckets` numbers and

- is **linear**: `sketch(a + b) = sketch(a) + sketch(b)` under the same parameters, so sketches of
  the ranks average to the sketch of the reduced gradient, and chunks and parts add up;
- keeps **norms and angles** (Johnson-Lindenstrauss): `norms()` is off by about `sqrt(1 / (2 *
  rows * buckets))` of the norm for a generic vector;
- **never hides a non-finite number**: every coefficient is +1 or -1.

Rules:

1. signs and the stride `L` come from SHAKE-256 of a seed and the chunk's name: every chunk, part,
   block and row has signs of its own, so that nothing cancels between them;
2. the stride is secret too and drawn with the signs. With a known stride a vector of pairs that
   are `L` apart evades fresh signs in 57 % of draws of a one-row sketch, with a secret one the
   norm ratio stays in 0.95..1.07 (measured on the design that this one follows);
3. `rows` is 8: a constant vector through one row can shrink to 1 % of its norm, through eight
   rows to no less than half (same measurement);
4. 64 numbers at a time are summed in fp32, the rest in fp64, so that rounding does not grow with
   the gradient; bf16 and fp16 input is widened block by block;
5. a training may allow its fp32 products to be made in TF32 or bf16 ("high", "medium"). Nothing
   here changes that setting of the process; `product_roundoff` measures what the products have,
   and the reduction is checked as coarsely as that.

A sketch whose seed was known **before** the gradient was chosen can be evaded completely: there
is a vector of any size whose sketch is zero (the tests build one). See beacon.py for when seeds
are drawn. Idea of the folding: count sketch (Charikar, Chen, Farach-Colton 2002) with
tensor-product signs; of comparing gradients across steps: Allen-Zhu et al., "Byzantine-Resilient
Non-Convex SGD" (ICLR 2021).
"""

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

ROWS: Final = 8
_FOLD: Final = 16
_TOGETHER: Final = 32
"""Blocks whose products are folded together."""
_MAX_STRIDE: Final = 2048
"""Longer rows of the view do not make the product faster."""
_BLOCK_ROWS: Final = 64
"""Numbers that are summed in fp32; all further sums are fp64 (rule 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchShape:
    """The shape of a sketch."""

    rows: int = ROWS
    buckets: int = 32

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= 64 and 1 <= self.buckets <= 4096):
            raise ValueError(f"rows {self.rows} must be 1..64 and buckets {self.buckets} 1..4096")

    @property
    def size(self) -> int:
        """Numbers in one sketch."""
        return self.rows * self.buckets


def shape_for(world_size: int) -> SketchShape:
    """The shape for a group: `world_size` part sketches of a rank stay below 8 KiB up to 32 ranks.

    64 numbers detect nearly as well as 1024 (reference measurement: 0.96 against 1.00 of
    single-block corruptions, the rest the same).
    """
    return SketchShape(buckets=min(32, max(8, 128 // world_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchParameters:
    """The random signs for one chunk of `parts` equal parts."""

    numel: int
    """Elements of one part."""
    parts: int
    stride: int
    left: Tensor
    """(rows, 64) signs."""
    tile: Tensor
    """(rows, stride) signs."""
    block_signs: Tensor
    """(parts, blocks, rows, buckets) signs."""
    shape: SketchShape


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
        shape: rows and buckets.
        device: where the gradient lives.
    """
    if numel < 1 or parts < 1:
        raise ValueError(f"a chunk needs elements: numel {numel}, parts {parts}")
    head = f"securetrain-sketch-v1|{chunk}|{numel}|{parts}|{shape.rows}|{shape.buckets}|"
    root = hashlib.sha256(head.encode() + seed).digest()
    base = min(max(-(-numel // _BLOCK_ROWS), shape.buckets), _MAX_STRIDE)
    draw = int.from_bytes(hashlib.sha256(b"stride" + root).digest()[:8], "big")
    stride = base + draw % base
    blocks = -(-numel // (_BLOCK_ROWS * stride))
    counts = (
        shape.rows * _BLOCK_ROWS,
        shape.rows * stride,
        parts * blocks * shape.size,
    )
    left, tile, block_signs = _signs(root, sum(counts)).split(counts)
    return SketchParameters(
        numel=numel,
        parts=parts,
        stride=stride,
        left=left.view(shape.rows, _BLOCK_ROWS).to(device),
        tile=tile.view(shape.rows, stride).to(device),
        block_signs=block_signs.view(parts, blocks, shape.rows, shape.buckets).to(device),
        shape=shape,
    )


def sketch(flat: Tensor, parameters: SketchParameters) -> Tensor:
    """Sketch every part of `flat`.

    Args:
        flat: `parts * numel` numbers (fp32, bf16, fp16 or fp64), contiguous.
        parameters: from `derive`.

    Returns:
        (parts, rows * buckets) fp64, on the device of `flat`.
    """
    p = parameters
    if flat.numel() != p.parts * p.numel:
        raise ValueError(f"expected {p.parts} parts of {p.numel} elements, got {flat.numel()}")
    flat = flat.detach().reshape(p.parts, p.numel)
    total = torch.zeros(p.parts, *p.block_signs.shape[2:], dtype=torch.float64, device=flat.device)
    together = max(1, _TOGETHER // p.parts)
    for first in range(0, p.block_signs.shape[1], together):
        signs = p.block_signs[:, first : first + together]
        product = _products(flat, p, first, signs.shape[1])
        total += (_fold(product, p).transpose(0, 1) * signs).sum(dim=1)
    return total.flatten(1)


def sketch_part(flat: Tensor, parameters: SketchParameters, part: int) -> Tensor:
    """Sketch one part alone, with the signs that it has inside the whole: (rows * buckets,)."""
    signs = parameters.block_signs[part : part + 1]
    return sketch(flat, dataclasses.replace(parameters, parts=1, block_signs=signs))[0]


def norms(sketches: Tensor, shape: SketchShape) -> Tensor:
    """Estimated norms of the sketched vectors: (..., rows * buckets) -> (...)."""
    lengths: Tensor = torch.linalg.vector_norm(sketches.double(), dim=-1)
    return lengths / math.sqrt(shape.rows)


def product_roundoff(device: torch.device | str) -> float:
    """Unit roundoff of fp32 matrix products on `device`, as this process has set them up."""
    signs = torch.ones(1, ROWS, 64, device=device)
    for bits, roundoff in ((13, 2.0**-24), (9, 2.0**-11)):
        value = 1 + 2.0**-bits  # 13 bits survive in fp32 only, 9 in TF32 too, neither in bf16
        product = torch.bmm(signs, torch.full((1, 64, 64), value, device=device))
        if bool((product == 64 * value).all()):
            return roundoff
    return 2.0**-8


def _products(flat: Tensor, p: SketchParameters, first: int, count: int) -> Tensor:
    """The left product of some blocks of all parts: (blocks, parts, rows, stride)."""
    wide = torch.promote_types(flat.dtype, torch.float32)
    left = p.left.to(wide).expand(p.parts, -1, -1)
    product = torch.empty(count, p.parts, p.shape.rows, p.stride, dtype=wide, device=flat.device)
    size = _BLOCK_ROWS * p.stride
    for block in range(first, first + count):
        out = product[block - first]
        piece = flat[:, block * size : (block + 1) * size].to(wide)
        rows = piece.shape[1] // p.stride
        whole = piece[:, : rows * p.stride].unflatten(1, (rows, p.stride))
        torch.bmm(left[:, :, :rows], whole, out=out)
        tail = piece[:, rows * p.stride :]
        if tail.shape[1]:  # the very last row is not complete
            out[:, :, : tail.shape[1]] += left[:, :, rows, None] * tail.unsqueeze(1)
    return product


def _fold(product: Tensor, p: SketchParameters) -> Tensor:
    """Sign the product, in place, and fold its rows: (..., stride) -> (..., buckets) fp64.

    Few numbers are summed in fp32 first: a sum that widens as it goes is many times slower.
    """
    product *= p.tile
    buckets = p.shape.buckets
    grouped = p.stride - p.stride % (_FOLD * buckets)
    even = p.stride - p.stride % buckets
    folded: Tensor = product[..., grouped:even].unflatten(-1, (-1, buckets)).sum(dim=-2).double()
    if grouped:
        groups = product[..., :grouped].unflatten(-1, (-1, _FOLD, buckets))
        folded += groups.sum(dim=-2).sum(dim=-2, dtype=torch.float64)
    if even < p.stride:
        folded[..., : p.stride - even] += product[..., even:]
    return folded


def _signs(root: bytes, count: int) -> Tensor:
    """`count` signs, +1.0 or -1.0, from SHAKE-256."""
    packed = np.frombuffer(hashlib.shake_256(root).digest(-(-count // 8)), dtype=np.uint8)
    return torch.from_numpy(np.unpackbits(packed, count=count)).float().mul_(2).sub_(1)
