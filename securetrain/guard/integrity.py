# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Was the reduction tampered with? The sketch of the reduced gradient is the mean of the sketches.

Both sides are sketched under a seed drawn after the reduction (beacon.py). For each rank's copy of
a part (its shard under FSDP and HSDP, the whole under DDP) and each sketch number the difference
must stay below

    limit = (u * 2 * (1 + growth(n)) + 16 * v) * max_i |sketch of part, rank i| / sqrt(keys)
    growth(n) = min((n + 1) / 2, 2 * sqrt(n))

where `u` is the unit roundoff of the dtype of the reduction and `v` that of fp32, in which the
sketches are summed. `growth` bounds the rounding of a sum of n numbers that is all in **one**
coordinate, and 16 v the rounding of two sketches of such a gradient: the worst case for one sketch
number. A dense gradient is far below, so a clean reduction does not alarm, whatever the shape of
its gradient.

Catches: corruption in flight (any fabric, without encryption), by the NIC, by the collective
library, and a rank that sketches something else than it sends. In fp32 a single element that is
off by 1.8e-6 of the norm is found (the tests measure it, four ranks); in bf16 by about 3e-2,
because bf16 rounds that much itself.

Does not catch:

- **the FSDP owner's own shard.** A rank owns 1/n of the parameters and of the optimizer state and
  can change both after the check, and it reduces its own shard: a rank that lies about what it
  sent *for its own shard* and about what it received there cancels itself out. Other shards are
  checked against their own owners. No gradient-level check protects a shard from its owner;
- **who.** A mismatch names the part and so its owner, but the sender, the link and the owner look
  alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from securetrain.guard.sketch import SketchShape

_UNIT_ROUNDOFF: Final = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
SKETCH_ROUNDING: Final = 16 * _UNIT_ROUNDOFF[torch.float32]
"""Of two sketches, relative to the norm. Measured for one, the worst of 600 draws: 7 units of
roundoff for one huge coordinate among small ones, 10 for a gradient that is made to lose half a
unit in each addition, 0.4 for a dense one. Sketches made by torch have none."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number.

    Raises:
        ValueError: the dtype is not one that gradients are reduced in.
    """
    if dtype not in _UNIT_ROUNDOFF:
        raise ValueError(f"gradients reduced in {dtype} cannot be checked")
    return _UNIT_ROUNDOFF[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityResult:
    """One check of all parts."""

    ratio: float
    """The largest difference as a multiple of its limit; the reduction is refused above 1."""
    bad_parts: tuple[int, ...]
    """Ranks whose shard (FSDP, HSDP) or whose copy of the result (DDP) is wrong."""

    @property
    def ok(self) -> bool:
        """True when every part is what the ranks sent."""
        return not self.bad_parts


def check(
    sent: Tensor,
    received: Tensor,
    *,
    roundoff: float,
    shape: SketchShape,
    owners: Sequence[int] | None = None,
) -> IntegrityResult:
    """Compare the sketches of the reduced gradient with the mean of the ranks' sketches.

    Args:
        sent: (ranks, parts, size) sketches of the local gradients, all finite.
        received: (ranks, size); row r is what rank r received: its part, scaled to be a mean.
        roundoff: of the reduction's dtype.
        shape: of the sketches.
        owners: which part each rank receives; by default the one part of all (DDP), or each its own
            (FSDP). With HSDP every part has a copy in each replica.
    """
    ranks, parts, _ = sent.shape
    if owners is None and parts in (1, ranks):
        owners = [0] * ranks if parts == 1 else range(ranks)
    if owners is None or len(owners) != ranks or set(owners) != set(range(parts)):
        raise ValueError(f"{parts} parts for {ranks} ranks, owned {owners}")
    part_of = torch.tensor(list(owners))
    mean = sent.mean(dim=0)[part_of]  # (ranks, size)
    lengths = torch.linalg.vector_norm(sent, dim=-1).amax(dim=0)[part_of]  # (ranks,)
    growth = min((ranks + 1) / 2, 2 * math.sqrt(ranks))
    relative = 2 * roundoff * (1 + growth) + SKETCH_ROUNDING
    limit = relative * lengths / math.sqrt(shape.keys)  # of one key's numbers, as they are scaled
    worst = (received - mean).abs().amax(dim=1)  # (ranks,)
    # Not "worst > limit": a NaN must fail, and an all-zero part has nothing to compare.
    wrong = ~(worst <= limit)
    ratio = torch.where(worst == 0, torch.zeros_like(worst), worst / limit).nan_to_num(
        nan=math.inf, posinf=math.inf
    )
    bad = tuple(int(i) for i in wrong.nonzero().flatten())
    return IntegrityResult(ratio=float(ratio.max()), bad_parts=bad)
