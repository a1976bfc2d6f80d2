# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Small all-gathers of bytes over a process group: the only way in which the guard talks.

Every rank sends exactly as many bytes as every other (the sizes follow from the model and the
group), so nothing is parsed and nothing can be too large.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The name since torch 2.13, or the one before."""


class Channel(Protocol):
    """The collectives that the guard needs from a group."""

    @property
    def rank(self) -> int:
        """This rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    def all_gather(self, data: bytes) -> list[bytes]:
        """The same number of bytes from every rank, in order of rank."""
        ...

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        """`size` bytes from one rank."""
        ...


class GroupChannel:
    """A channel over a torch process group; CPU tensors when the group can carry them."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._device = _device_of(group)

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self._group.rank()

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._group.size()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Gather; blocks until every rank has sent."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        out = torch.empty(self.size * len(data), dtype=torch.uint8, device=self._device)
        _all_gather(out, mine, group=self._group)
        flat = out.cpu().numpy().tobytes()
        return [flat[i * len(data) : (i + 1) * len(data)] for i in range(self.size)]

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        """Send, or receive; `data` counts at the source, which sends as much as was said."""
        buffer = torch.zeros(size, dtype=torch.uint8, device=self._device)
        if source == self.rank:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, group_src=source, group=self._group)
        return buffer.cpu().numpy().tobytes()


def _device_of(group: ProcessGroup) -> torch.device:
    devices = {device.type for device in group._device_types}  # noqa: SLF001 - no public name yet
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
