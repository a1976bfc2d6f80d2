# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Small all-gathers of bytes over a process group: the only way in which the guard talks.

Every rank sends exactly as many bytes as every other (the sizes follow from the model and the
group), so nothing is parsed and nothing can be too large.

Each rank hears each other one **directly**: an all-gather here is an all-to-all. Libraries gather
in a ring, in which each rank passes on what others said, and could change it. Gloo's ring is also
slower (four ranks on two cores: 3.4 ms and 1.3).
"""

from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from securetrain.guard.presence import Deadline

_KEPT: Final = 16
"""Sizes of messages for which buffers are kept."""


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
        """The same number of bytes from every rank, in order of rank, each from its sender itself:
        none passes on another's.
        """
        ...

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        """`size` bytes from one rank."""
        ...


class GroupChannel:
    """A channel over a torch process group; CPU tensors when the group can carry them.

    Args:
        group: the group.
        deadline: how long to wait for the others; None: as long as torch does.
    """

    def __init__(self, group: ProcessGroup, deadline: Deadline | None = None) -> None:
        self._group = group
        self._device = _device_of(group)
        self._deadline = deadline
        self._ranks = tuple(dist.get_process_group_ranks(group))
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._count = 0

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self._group.rank()

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._group.size()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Gather; blocks until every rank has sent.

        Raises:
            GuardError: ST-GRAD-010, a rank did not, before the deadline.
        """
        mine, out = self._buffers(len(data))
        mine.numpy().reshape(self.size, len(data))[:] = np.frombuffer(data, dtype=np.uint8)
        if self._device.type == "cpu":
            self._swap(out, mine)
        else:
            there = torch.empty_like(out, device=self._device)
            self._swap(there, mine.to(self._device))
            out.copy_(there)
        flat = out.numpy().tobytes()
        return [flat[i * len(data) : (i + 1) * len(data)] for i in range(self.size)]

    def _swap(self, heard: Tensor, mine: Tensor) -> None:
        self._wait(dist.all_to_all_single(heard, mine, group=self._group, async_op=True))

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        """Send, or receive; `data` counts at the source, which sends as much as was said.

        Raises:
            GuardError: ST-GRAD-010, it did not, before the deadline.
        """
        buffer = torch.zeros(size, dtype=torch.uint8, device=self._device)
        if source == self.rank:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._wait(dist.broadcast(buffer, group_src=source, group=self._group, async_op=True))
        return buffer.cpu().numpy().tobytes()

    def _wait(self, work: Any) -> None:
        self._count += 1
        if self._deadline is None:
            work.wait()
        else:
            place = ",".join(map(str, self._ranks))
            self._deadline.wait(work, place, self._count, self._ranks)

    def _buffers(self, size: int) -> tuple[Tensor, Tensor]:
        """Buffers for what is sent and what comes, kept between steps."""
        if size not in self._kept:
            if len(self._kept) > _KEPT:
                self._kept.clear()
            self._kept[size] = (
                torch.empty(self.size * size, dtype=torch.uint8),
                torch.empty(self.size * size, dtype=torch.uint8),
            )
        return self._kept[size]


def _device_of(group: ProcessGroup) -> torch.device:
    devices = {device.type for device in group._device_types}  # noqa: SLF001 - no public name yet
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
