# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A linear sketch of a flat gradient: one pass over memory, a few hundred numbers out.

A part of the gradient, `numel` numbers, is seen as a matrix of `m` rows and `L` columns. ``T``,
`rows` times `m` random signs, multiplies it from the left (one matrix product with a thin matrix,
the single pass); the product is multiplied by random signs and each of its rows is folded to
`buckets` numbers. The result has `rows * buckets` numbers and

- is **linear**: `sketch(a + b) = sketch(a) + sketch(b)` under the same parameters, so sketches of
  the ranks average to the sketch of the reduced gradient, and chunks and parts add up;
- keeps **norms and angles** (Johnson-Lindenstrauss): `norms()` is off by about `sqrt(1 / (2 *
  rows * buckets))` of the norm for a generic vector;
- **never hides a non-finite number**: every coefficient is +1 or -1.

Rules:

1. signs and the stride `L` come from SHAKE-256 of a seed and the chunk's name: every chunk, part
   and row has signs of its own, so that nothing cancels between them;
2. the stride is secret too and drawn with the signs. With a known stride a vector of pairs that
   are `L` apart evades fresh signs in 57 % of draws of a one-row sketch, with a secret one the
   norm ratio stays in 0.95..1.07 (measured, 2-core CPU, torch 2.13);
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

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

ROWS: Final = 8
_MAX_STRIDE: Final = 8192
"""Longer rows of the view do not make the product faster."""
_BLOCK_ROWS: Final = 64
"""Rows of the view that are summed in fp32; the blocks are summed in fp64 (rule 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchShape:
    """How many numbers a sketch has."""

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
    """(rows, m) signs; m counts the last, incomplete row of the view too."""
    tile: Tensor
    """(rows, stride) signs."""
    part_signs: Tensor
    """(parts, rows, buckets) signs."""
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
    base = min(max(math.isqrt(numel), shape.buckets), _MAX_STRIDE)
    draw = int.from_bytes(hashlib.sha256(b"stride" + root).digest()[:8], "big")
    stride = base + draw % base
    rows_of_view = -(-numel // stride)
    counts = (
        shape.rows * rows_of_view,
        shape.rows * stride,
        parts * shape.rows * shape.buckets,
    )
    left, tile, part_signs = _signs(root, sum(counts)).split(counts)
    return SketchParameters(
        numel=numel,
        parts=parts,
        stride=stride,
        left=left.view(shape.rows, rows_of_view).to(device),
        tile=tile.view(shape.rows, stride).to(device),
        part_signs=part_signs.view(parts, shape.rows, shape.buckets).to(device),
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
    product = _left_product(flat, p)
    product *= p.tile
    pad = -p.stride % p.shape.buckets
    folded = torch.nn.functional.pad(product, (0, pad))
    folded = folded.view(p.parts, p.shape.rows, -1, p.shape.buckets).sum(dim=2)
    return (folded * p.part_signs).flatten(1)


def sketch_part(flat: Tensor, parameters: SketchParameters, part: int) -> Tensor:
    """Sketch one part alone, with the signs that it has inside the whole: (rows * buckets,)."""
    p = parameters
    alone = SketchParameters(
        numel=p.numel,
        parts=1,
        stride=p.stride,
        left=p.left,
        tile=p.tile,
        part_signs=p.part_signs[part : part + 1],
        shape=p.shape,
    )
    return sketch(flat, alone)[0]


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


def _left_product(flat: Tensor, p: SketchParameters) -> Tensor:
    """(parts, rows, stride) fp64: T times the view, the incomplete last row included."""
    parts, rows, stride = p.parts, p.shape.rows, p.stride
    total = torch.zeros(parts, rows, stride, dtype=torch.float64, device=flat.device)
    full = p.numel // stride
    for row in range(0, full, _BLOCK_ROWS):
        end = min(row + _BLOCK_ROWS, full)
        block = _widened(flat[:, row * stride : end * stride]).unflatten(1, (end - row, stride))
        left = p.left[:, row:end].to(block.dtype).expand(parts, -1, -1)
        total += torch.bmm(left, block)
    tail = flat[:, full * stride :]
    if tail.shape[1]:
        total[:, :, : tail.shape[1]] += p.left[:, full].view(1, -1, 1) * _widened(tail).unsqueeze(1)
    return total


def _widened(flat: Tensor) -> Tensor:
    return flat if flat.dtype is torch.float64 else flat.float()


def _signs(root: bytes, count: int) -> Tensor:
    """`count` signs, +1.0 or -1.0, from SHAKE-256."""
    packed = np.frombuffer(hashlib.shake_256(root).digest(-(-count // 8)), dtype=np.uint8)
    return torch.from_numpy(np.unpackbits(packed, count=count)).float().mul_(2).sub_(1)
