# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Norms and flags of sharded gradients, as torch computed them and as they may be used.

Torch adds up what each rank says about its shard on the way. Here the same numbers are said one by
one and compared with what was delivered (after.py); torch's own result stands where it is their
sum, bit for bit. Only for a model that one group of ranks shards: where pieces differ from rank to
rank nobody can say what the others' should be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from securetrain.guard.after import NOBODY, NOT_THE_SUM, Contradictions, is_sum
from securetrain.guard.tensor_norms import local_of, norm_of
from securetrain.guard.verdict import Verdict
from securetrain.guard.watch import GroupWatch, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """A number that was said after the verdict, as it may be used."""

    value: Tensor
    verdict: Verdict | None = None
    """The second one on the step, where something is wrong."""
    drop: bool = False
    """This rank's gradients are not what it was delivered: they are not to be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A number as torch has it and as it was delivered."""

    said: Tensor
    bound: Tensor
    found: Contradictions | None = None
    """None: they are the same."""


def watch_of(
    watches: Sequence[Watch], grads: Sequence[Tensor], *, flat: bool = False
) -> GroupWatch | None:
    """The group over which all gradients are sharded, when it holds the whole model.

    Args:
        watches: of the model.
        grads: of these parameters, on this rank.
        flat: they are FSDP1's.
    """
    [watch] = watches if len(watches) == 1 else [None]
    if not isinstance(watch, GroupWatch) or watch.is_flat != flat or watch.after.lengths is None:
        return None
    if flat:
        return watch
    if not grads:
        return None
    meshes = set()
    for grad in grads:
        if not isinstance(grad, DTensor) or all(p.is_replicate() for p in grad.placements):
            return None
        meshes.add(grad.device_mesh)
    same = all(tuple(sorted(mesh.mesh.flatten().tolist())) == watch.ranks for mesh in meshes)
    return watch if same else None


def bind_norm(
    watch: GroupWatch, total: Tensor, grads: Sequence[Tensor], order: float, *, whole: bool
) -> Bound:
    """Compare a norm with what was delivered. Collective."""
    added = total.full_tensor() if isinstance(total, DTensor) else total
    bound, found = watch.after.norm(
        norm_of(map(local_of, grads), order),
        order=order,
        whole=whole,
        numel=sum(grad.numel() for grad in grads) * (len(watch.ranks) if watch.is_flat else 1),
    )
    mine: Contradictions | None = found
    if not found.corrected:
        same = is_sum(float(added), bound.total, len(watch.ranks), added.dtype)
        mine = None if same else Contradictions(note=NOT_THE_SUM)
    common = watch.common.after(mine)
    if common is None:
        return Bound(said=total, bound=total)
    instead: Tensor = torch.full_like(added, bound.total)
    if isinstance(total, DTensor):
        places = [Replicate()] * total.device_mesh.ndim
        instead = DTensor.from_local(instead, total.device_mesh, places, run_check=False)
    return Bound(said=total, bound=instead, found=common)


def bind_flag(watch: GroupWatch, flag: Tensor, grads: Sequence[Tensor]) -> Bound:
    """Compare a flag that says whether any gradient is not finite. Collective."""
    raised = bool(flag)
    mine = raised and not all(bool(torch.isfinite(local_of(grad)).all()) for grad in grads)
    found: Contradictions | None = watch.after.flag(mine)
    assert found is not None
    if found.note:  # most ranks': the scale was too large
        found = None
    elif not found.named:
        found = Contradictions(note=NOBODY) if raised else None
    common = watch.common.after(found)
    if common is None:
        return Bound(said=flag, bound=flag)
    return Bound(said=flag, bound=torch.zeros_like(flag), found=common)
