# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A group of ranks in one process: their watches talk through memory, one message at a time."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from securetrain.core.errors import GuardError
from securetrain.guard import watch as watch_module
from securetrain.guard.collect import Piece, Segment
from securetrain.guard.response import Findings
from securetrain.guard.table_reader import TableReader
from securetrain.policy.schema import Gradients

Tamper = Callable[[int, bytes], "bytes | dict[int, bytes] | None"]
"""Of the number of a message and what is in it: what is sent instead, to all, or to some ranks
each, or None: silence."""
_WAIT = 30.0


@dataclass
class Meeting:
    """Ranks, and what they make of their messages."""

    size: int
    tamper: dict[int, Tamper] = field(default_factory=dict)
    """By rank: the liars."""

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)
        self.slots: list[dict[int, bytes]] = [{} for _ in range(self.size)]
        self.counts = [0] * self.size

    def gather(self, rank: int, data: bytes) -> list[bytes]:
        said: Any = data
        if rank in self.tamper:
            said = self.tamper[rank](self.counts[rank], data)
        self.counts[rank] += 1
        if said is None:
            self.barrier.abort()
            raise GuardError("ST-GRAD-010", f"rank {rank} did not speak", "gradients")
        told = said if isinstance(said, dict) else {}
        whole = data if isinstance(said, dict) else said
        assert len(whole) == len(data)
        self.slots[rank] = {to: told.get(to, whole) for to in range(self.size)}
        self.barrier.wait(_WAIT)
        rows = [self.slots[other][rank] for other in range(self.size)]
        self.barrier.wait(_WAIT)
        return rows


@dataclass
class MemoryChannel:
    """One rank's end."""

    meeting: Meeting
    rank: int

    @property
    def size(self) -> int:
        return self.meeting.size

    @property
    def ranks(self) -> range:
        return range(self.size)

    def all_gather(self, data: bytes) -> list[bytes]:
        return self.meeting.gather(self.rank, data)

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        raise NotImplementedError


class Group:
    """Watches of all ranks of a group over one model of two groups.

    Args:
        size: ranks.
        sharded: FSDP2, else DDP.
        tamper: the lies of some ranks.
        patch: monkeypatch.
    """

    def __init__(
        self, size: int, patch: Any, *, sharded: bool, tamper: Any = None, **settings: Any
    ):
        self.size, self.sharded = size, sharded
        self.meeting = Meeting(size, tamper or {})
        patch.setattr(
            "securetrain.guard.watch.dist.get_process_group_ranks", lambda group: group.ranks
        )
        patch.setattr(watch_module, "GroupChannel", lambda group, _deadline: group)
        self.watches = []
        for rank in range(size):
            numbers = iter(range(1 << 20))
            watch = watch_module.GroupWatch(
                MemoryChannel(self.meeting, rank),  # type: ignore[arg-type]
                Gradients(**settings),
                lambda n, rank=rank, numbers=numbers: hashlib.shake_256(  # type: ignore[misc]
                    bytes([rank]) + next(numbers).to_bytes(4, "big")
                ).digest(n),
                1 << 30,
            )
            watch._owners = tuple(range(size)) if sharded else (0,) * size
            watch._reader = TableReader(watch.ranks, watch._owners)
            self.watches.append(watch)
        self.each(lambda rank: self.watches[rank].beacon.commit())

    def each(self, call: Callable[[int], Any]) -> list[Any]:
        """Every rank at once; what it returns or raises."""
        results: list[Any] = [None] * self.size

        def work(rank: int) -> None:
            try:
                results[rank] = call(rank)
            except (GuardError, threading.BrokenBarrierError) as error:
                results[rank] = error

        threads = [threading.Thread(target=work, args=(r,)) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * _WAIT)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        return results

    def step(self, gradients: list[torch.Tensor], *, real: Any = None) -> list[Any]:
        """Findings of every rank; `real` is what is reduced, if it is not what is sketched."""
        real = gradients if real is None else real
        return self.each(lambda rank: self._step(rank, gradients, real))

    def _step(self, rank: int, gradients: list[torch.Tensor], real: list[torch.Tensor]) -> Findings:
        watch = self.watches[rank]
        parts = self.size if self.sharded else 1
        for index, (local, sent) in enumerate(zip(gradients, real, strict=True)):
            mean = sent.mean(dim=0)
            result = mean.view(parts, -1)[rank if self.sharded else 0].clone()
            watch.collector.add(
                Piece(
                    chunk=f"c{index}",
                    local=local[rank],
                    parts=parts,
                    part=rank if self.sharded else 0,
                    result=result,
                    result_scale=1.0,
                    local_scale=1.0,
                    wait=lambda: None,
                    segments=(Segment(f"block.{index}", 0, local.shape[1]),),
                    moment=lambda result=result: [(0, result)],  # type: ignore[misc]
                )
            )
        findings = Findings()
        watch.judge(findings)
        return findings


def words(findings: Findings) -> set[int]:
    """Every rank that is named in any field or sentence."""
    text = " ".join(findings.reasons)
    named = {
        int(text[at + 5 :].split(" ")[0].split("'")[0].strip(",.;:"))
        for at in range(len(text))
        if text.startswith("rank ", at) and text[at + 5].isdigit()
    }
    return named | set(findings.outliers)


def floats(row: bytes, head: int = 32) -> np.ndarray:
    """The numbers of a row, to be changed."""
    return np.frombuffer(row, dtype="<f4", offset=head).copy()
