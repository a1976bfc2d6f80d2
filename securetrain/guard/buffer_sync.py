# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compare the buffers that DDP broadcasts before a forward pass with the ranks' own.

Torch's broadcast is run as it is. Then all ranks say in one all-gather what they got and what they
had (buffers.py), and a buffer that is refused is not taken: each rank keeps **its own**, as it
would with ``broadcast_buffers=False``. So a correction needs no message, and nobody can make others
wait by asking for one. Honest broadcasts leave every bit as torch does.

A buffer of one's own that is not finite is replaced by what it was after the sync before. What is
found is told by the next `judge`.
"""

import functools
import hashlib
import weakref
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard.buffers import (
    NUMBERS,
    BufferRecord,
    Numbers,
    Reading,
    Words,
    same_up_to,
    seed_of,
    weight,
)
from securetrain.guard.group_channel import Channel, GroupChannel
from securetrain.guard.sketch import Run, SketchShape, derive, sketch_runs
from securetrain.guard.slots import eager
from securetrain.policy.schema import GradientData, Gradients, GuardResponse

_SHAPE: Final = SketchShape(numbers=NUMBERS)
_BROADCAST: Final = "_distributed_broadcast_coalesced"
"""The method by which DDP broadcasts buffers, and nothing else."""
_broadcast_coalesced = getattr(dist, "_broadcast_coalesced")  # noqa: B009 - it is not in the stubs
_KEPT: Final = 8
"""Findings that wait for a verdict."""


class BufferSync:
    """The broadcasts of one model's buffers.

    Args:
        model: wrapped by DDP.
        corrects: a refused buffer is not taken.
        shuffled: all ranks draw from one shuffled set.
    """

    def __init__(
        self, model: DistributedDataParallel, *, corrects: bool = True, shuffled: bool = True
    ) -> None:
        self._model = weakref.ref(model)
        self._group = model.process_group
        self.channel: Channel = GroupChannel(self._group)
        self._corrects = corrects
        self._weight = weight(shuffled=shuffled)
        self._record = BufferRecord(shuffled=shuffled)
        self._sync = 0
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._base: list[Tensor] = []
        """The buffers after the sync before."""
        self._drift: list[Tensor] = []
        self._last = ""
        self._found: list[Reading] = []

    def take(self) -> list[Reading]:
        """The findings since the last time; what goes on without a name is said once."""
        found, self._found = self._found, []
        return found

    @eager
    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor], size: int, source: int = 0) -> None:
        """Broadcast as torch does, and compare. Collective.

        Args:
            tensors: the buffers.
            size: bytes of one message.
            source: the rank whose buffers they are to be.

        Raises:
            GuardError: ST-GRAD-010, a rank did not speak.
        """
        own = [tensor.detach().clone() for tensor in tensors]
        _broadcast_coalesced(self._group, list(tensors), size, source)
        if self._kinds != (kinds := [(t.shape, t.dtype) for t in own]):
            self._kinds, self._base = kinds, []
            self._drift = [torch.zeros_like(_wide(t)) for t in own]
            self._record.forget()
        self._sync += 1
        for drift, got, mine in zip(self._drift, tensors, own, strict=True):
            drift.mul_(self._weight)
            if self.channel.rank != source:
                drift.add_(_wide(got) - _wide(mine))
        digest = _digest(tensors)
        had, drifts, arrived = self._sketch(own, tensors, digest)
        rows = self.channel.all_gather(Words(digest, had, drifts).encode())
        reading = self._record.read(
            [Words.decode(row) for row in rows],
            arrived,
            source=source,
            names=self._names(tensors),
            roundoff=[_roundoff(t) for t in own],
        )
        self._follow(reading, tensors, own)

    def _follow(self, reading: Reading, tensors: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        everything = self.channel.rank in reading.apart
        for index, tensor in enumerate(tensors):
            if everything or index in reading.refused:
                if self._corrects:
                    is_finite = bool(torch.isfinite(_wide(own[index])).all())
                    tensor.copy_(own[index] if is_finite or not self._base else self._base[index])
                self._drift[index].zero_()
            elif not bool(torch.isfinite(self._drift[index]).all()):
                self._drift[index].zero_()
        self._base = [tensor.detach().clone() for tensor in tensors]
        if reading.text and (reading.is_named or reading.text != self._last):
            self._found.append(reading)
            del self._found[:-_KEPT]
        self._last = reading.text

    def _sketch(
        self, own: Sequence[Tensor], arrived: Sequence[Tensor], digest: bytes
    ) -> tuple[Numbers, Numbers, Numbers]:
        numbers = [_wide(tensor) for tensor in (*own, *self._drift, *arrived)]
        count, offsets, numel = len(own), [], 0
        for tensor in numbers[:count]:
            offsets.append(numel)
            numel += tensor.numel()
        parameters = derive(
            seed_of(digest, self._sync),
            "buffers",
            numel=max(numel, 1),
            parts=1,
            shape=_SHAPE,
            device=numbers[0].device,
        )
        runs = [Run(one, 0, offsets[i % count], i) for i, one in enumerate(numbers)]
        rows = sketch_runs(runs, parameters, rows=len(runs)).cpu().numpy()
        return rows[:count], rows[count : 2 * count], rows[2 * count :]

    def _names(self, tensors: Sequence[Tensor]) -> list[str]:
        model = self._model()
        known = {} if model is None else {id(t): n for n, t in model.module.named_buffers()}
        return [known.get(id(t), f"buffer {i}") for i, t in enumerate(tensors)]


_SYNCS: Final[weakref.WeakKeyDictionary[DistributedDataParallel, BufferSync]] = (
    weakref.WeakKeyDictionary()
)


def buffers_of(model: DistributedDataParallel, settings: Gradients) -> BufferSync | None:
    """Compare a model's broadcasts from now on; None where the policy does not ask for it.

    Raises:
        GuardError: ST-GRAD-006, this torch broadcasts buffers otherwise.
    """
    if not settings.bind_buffers:
        return None
    if (found := _SYNCS.get(model)) is None:
        if not hasattr(model, _BROADCAST):
            raise GuardError(
                "ST-GRAD-006",
                "this version of torch broadcasts buffers in another way",
                "the model given to the guard",
                "set gradients.bind_buffers: false in the policy",
            )
        found = _SYNCS[model] = BufferSync(
            model,
            corrects=settings.response is not GuardResponse.OBSERVE,
            shuffled=settings.data is GradientData.SHUFFLED,
        )
        setattr(model, _BROADCAST, functools.partial(_broadcast, weakref.ref(model)))
    return found


def release_buffers(model: nn.Module) -> None:
    """Leave a model's broadcasts to torch."""
    if isinstance(model, DistributedDataParallel) and _SYNCS.pop(model, None) is not None:
        vars(model).pop(_BROADCAST, None)


def _broadcast(
    model: "weakref.ref[DistributedDataParallel]",
    tensors: Sequence[Tensor],
    size: int,
    source: int = 0,
) -> None:
    found = model()
    assert found is not None, "its own method"
    _SYNCS[found].broadcast(tensors, size, source)


def _wide(tensor: Tensor) -> Tensor:
    """The numbers of a buffer of any type, flat."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = torch.float64 if not plain.is_floating_point() else torch.float32
    return plain.detach().reshape(-1).to(torch.promote_types(plain.dtype, wide))


def _digest(tensors: Sequence[Tensor]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()


def _roundoff(tensor: Tensor) -> float:
    exact = not (tensor.is_floating_point() or tensor.is_complex())
    return same_up_to(0.0 if exact else torch.finfo(tensor.dtype).eps)
