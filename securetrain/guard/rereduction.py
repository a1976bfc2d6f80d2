# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reduce a step again, in the open: between each two ranks it can be said what was sent and heard.

Torch's reductions add up on the way, so that nobody can tell afterwards what each rank put in. Here
each part of the gradient has an **owner**:

1. every rank sends every owner its part (one all-to-all; with the all-gather of 4 the bytes of a
   ring all-reduce). Ranks that are left out send too, which is evidence, and own nothing where
   owners can be chosen: all may own a part of what all hold, and of a shard with copies (HSDP) one
   holder owns it;
2. the owner adds up the parts of the ranks that count, in order of rank, each with weight one over
   their number. What it leaves out it does not multiply by zero: it does not touch it;
3. a gradient of which several hold a copy (DDP, HSDP) is gathered from the owners;
4. when all is delivered a fresh seed is drawn, and all ranks say in one table what they sent, heard
   and got, as sketches and as digests of the bytes (dispute.py reads it).
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from securetrain.guard.beacon import Beacon
from securetrain.guard.dispute import Digests, OpenTable
from securetrain.guard.group_channel import Channel
from securetrain.guard.kept import Kept
from securetrain.guard.roundoff import unit_roundoff
from securetrain.guard.sketch import Run, SketchShape, derive, sketch, sketch_part, sketch_runs
from securetrain.guard.statements import read_numbers

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The name since torch 2.13, or the one before."""
_ROW_TYPE: Final = np.dtype("<f4")
_DIGEST: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One reduction in the open."""

    table: OpenTable
    means: tuple[Tensor, ...]
    """For each `Kept` what `replace` takes."""
    rows: bytes
    """Everything that was said, in order of rank."""
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class _Delivered:
    padded: Tensor
    """This rank's gradient, (parts, numel)."""
    heard: Tensor | None
    """(ranks, numel) of this rank's part, if it owns one."""
    result: Tensor
    """(parts, numel), or (numel,) of this rank's part."""


class OpenReduction:
    """Reductions in the open over one group. Collective."""

    def __init__(
        self,
        group: ProcessGroup,
        channel: Channel,
        beacon: Beacon,
        shape: SketchShape,
        shards: Sequence[int] = (),
    ) -> None:
        self._group = group
        self._channel = channel
        self._beacon = beacon
        self._shape = shape
        self._rank, self._size = group.rank(), group.size()
        self._shards = tuple(shards) or (0,) * self._size

    def run(
        self, kept: Sequence[Kept], out: Collection[int], apart: Collection[tuple[int, int]]
    ) -> Attempt:
        """Do all reductions of a step again.

        Args:
            kept: the same on every rank, all shared or all cut into parts.
            out: ranks that are left out.
            apart: sender and owner of which the one's numbers are left out of the other's parts; a
                rank twice does not own a part where owners can be chosen.
        """
        ranks = range(self._size)
        owners = self._choose(kept[0].parts, out, apart)
        shared = kept[0].parts != self._size
        own = self._shards[self._rank]
        included = np.array(
            [[r not in out and (r, owner) not in apart for owner in owners] for r in ranks]
        )
        delivered = [self._deliver(one.local, owners, included, shared=shared) for one in kept]
        draw = self._beacon.draw(f"again|{len(kept)}")
        k, parts = self._shape.size, len(owners)
        mine = owners.index(self._rank) if self._rank in owners else None
        sent = torch.zeros(parts, k, dtype=torch.float64)
        heard = torch.zeros(self._size, k, dtype=torch.float64)
        got = torch.zeros(parts if shared else 1, k, dtype=torch.float64)
        mean, moment = torch.zeros(2, 1, k, dtype=torch.float64)
        for index, (one, found) in enumerate(zip(kept, delivered, strict=True)):
            parameters = derive(
                draw.seed,
                f"again|{index}|{one.chunk}",
                numel=found.padded.shape[1],
                parts=parts,
                shape=self._shape,
                device=found.padded.device,
            )
            sent += sketch(found.padded.flatten(), parameters).cpu()
            if mine is not None and found.heard is not None:
                for rank in ranks:
                    heard[rank] += sketch_part(found.heard[rank], parameters, mine).cpu()
            if shared:
                got += sketch(found.result.flatten(), parameters).cpu()
            elif mine is not None:
                got[0] += sketch_part(found.result, parameters, mine).cpu()
            if one.parts > 1:
                shard = found.result[own] if shared else found.result
                mean[0] += sketch_part(shard, parameters, own).cpu()
                first = [Run(numbers, own, at, 0) for at, numbers in one.moment()]
                moment[0] += sketch_runs(first, parameters, rows=1)[0].cpu()
        numbers = torch.cat([sent, heard, got, mean, moment]).float().numpy().astype(_ROW_TYPE)
        row = self._digest(kept, delivered) + numbers.tobytes()
        rows = self._channel.all_gather(row)
        table = self._read(rows, owners, included, shared=shared, kept=kept)
        return Attempt(
            table=table,
            means=tuple(
                found.result.flatten()[: one.local.numel()] if shared else found.result
                for one, found in zip(kept, delivered, strict=True)
            ),
            rows=b"".join(rows),
            sent_bytes=len(row),
        )

    def _digest(self, kept: Sequence[Kept], delivered: Sequence["_Delivered"]) -> bytes:
        """The digests of this rank's gradient, of its parts and of what it heard."""
        parts = len(delivered[0].padded)
        sent = [_sha256(one.padded[part] for one in delivered) for part in range(parts)]
        heard = [bytes(_DIGEST)] * self._size
        if delivered[0].heard is not None:
            heard = [
                _sha256(one.heard[rank] for one in delivered if one.heard is not None)
                for rank in range(self._size)
            ]
        return b"".join([_sha256(one.local for one in kept), *sent, *heard])

    def _choose(
        self, parts: int, out: Collection[int], apart: Collection[tuple[int, int]]
    ) -> list[int]:
        """The owner of each part."""
        ranks = range(self._size)
        may = [rank for rank in ranks if rank not in out and (rank, rank) not in apart]
        if parts == 1:
            return may
        holders = [[r for r in ranks if self._shards[r] == part] for part in range(parts)]
        return [next((r for r in held if r in may), held[0]) for held in holders]

    def _deliver(
        self, local: Tensor, owners: list[int], included: np.ndarray, *, shared: bool
    ) -> _Delivered:
        parts = len(owners)
        numel = math.ceil(local.numel() / parts)
        padded = local.new_zeros(parts, numel)
        padded.view(-1)[: local.numel()] = local.detach().flatten()
        owns = self._rank in owners
        heard = padded.new_empty(self._size, numel) if owns else None
        by_rank = sorted(range(parts), key=owners.__getitem__)
        dist.all_to_all_single(
            padded.new_empty(0) if heard is None else heard.view(-1),
            padded[by_rank].view(-1) if by_rank != list(range(parts)) else padded.view(-1),
            [numel if owns else 0] * self._size,
            [numel if rank in owners else 0 for rank in range(self._size)],
            group=self._group,
        )
        result = padded.new_zeros(numel)
        if heard is not None:
            who = np.flatnonzero(included[:, owners.index(self._rank)]).tolist()
            wide = torch.promote_types(local.dtype, torch.float32)
            total = padded.new_zeros(numel, dtype=wide)
            for rank in who:
                total += heard[rank].to(wide) / len(who)
            result = total.to(local.dtype)
        if shared:
            gathered = padded.new_empty(self._size, numel)
            _all_gather(gathered.view(-1), result, group=self._group)
            result = gathered[owners]
        return _Delivered(padded, heard, result)

    def _read(
        self,
        rows: Sequence[bytes],
        owners: list[int],
        included: np.ndarray,
        *,
        shared: bool,
        kept: Sequence[Kept],
    ) -> OpenTable:
        parts, k = len(owners), self._shape.size
        digests = [_digests(row, owners, rank, self._size) for rank, row in enumerate(rows)]
        begin = _DIGEST * (1 + parts + self._size)
        said = read_numbers(rows, begin).reshape(self._size, -1, k)
        got = said[:, parts + self._size : -2]
        return OpenTable(
            owners=tuple(owners),
            sent=said[:, :parts],
            heard=said[owners, parts : parts + self._size],
            got=got if shared else np.repeat(got, parts, axis=1),
            included=included,
            shared=shared,
            roundoff=max(unit_roundoff(one.local.dtype) for one in kept),
            own=said[:, -2],
            moments=said[:, -1],
            digests=tuple(digests),
        )


def _digests(row: bytes, owners: Sequence[int], rank: int, size: int) -> Digests:
    """The digests at the head of a row."""
    found = [row[at : at + _DIGEST] for at in range(0, _DIGEST * (1 + len(owners) + size), _DIGEST)]
    sent, heard = found[1 : 1 + len(owners)], found[1 + len(owners) :]
    return Digests(found[0], tuple(sent), tuple(heard) if rank in owners else ())


def _sha256(tensors: Iterable[Tensor]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()
