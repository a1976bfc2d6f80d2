# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One piece of the model, and the ranks whose gradients of it can be compared.

Ranks that hold **equal pieces** and see **different tokens** can judge each other: the
data-parallel and context-parallel ranks of one pipeline stage and one tensor-parallel coordinate
(`GroupWatch`). A rank that is alone with its piece can only be judged by its own past
(`LoneWatch`). A model may have several pieces on a rank: experts are spread over other ranks than
the rest.

Rules:

1. ranks have the numbers of the default group, in verdicts too;
2. a piece has a fingerprint (names and local shapes of its parameters): what was learned about one
   piece is never used for another (a run that is resumed on another mesh learns anew);
3. a lone rank's gradient is read through its placements: pending sums are finished first, which is
   collective among the tensor-parallel ranks, all of whom judge at the same time.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard.beacon import Beacon
from securetrain.guard.collect import Collector, StepSketches
from securetrain.guard.group_channel import Channel, GroupChannel
from securetrain.guard.hooks import Grid, Sharded, attach_replicated, attach_sharded
from securetrain.guard.integrity import check
from securetrain.guard.outliers import Detector
from securetrain.guard.response import Findings
from securetrain.guard.sketch import SketchShape, shape_for
from securetrain.policy.schema import Gradients

_DIGEST: Final = 32
_ALONE: Final = SketchShape(rows=1, buckets=1)


class Watch(Protocol):
    """The ranks that watch one piece, and their detector."""

    ranks: tuple[int, ...]
    """The ranks that hold it, in order."""
    piece: str
    """Its fingerprint (hex)."""
    detector: Detector

    def judge(self, findings: Findings) -> tuple[int, int]:
        """Add what is wrong with this step; returns seeds drawn and bytes sent. Collective."""
        ...


class GroupWatch:
    """Ranks that hold equal pieces and see different tokens.

    Args:
        group: these ranks.
        settings: the policy's section.
        randomness: gives n unpredictable bytes.
        retain_bytes: local gradient bytes that may wait for a seed.
    """

    def __init__(
        self,
        group: ProcessGroup,
        settings: Gradients,
        randomness: Callable[[int], bytes],
        retain_bytes: int,
    ) -> None:
        self.ranks = tuple(dist.get_process_group_ranks(group))
        self.piece = ""
        self.detector = _detector(len(self.ranks), settings)
        self.channel: Channel = GroupChannel(group)
        self.shape = shape_for(len(self.ranks))
        self.collector = Collector(Beacon(self.channel, randomness), self.shape, retain_bytes)
        self._group = group
        self._threshold = _limit(settings)
        self._owners: tuple[int, ...] = (0,) * len(self.ranks)
        self._layout = b""

    def watch_sharded(
        self, modules: Sequence[Sharded], report_error: Callable[[GuardError], None]
    ) -> None:
        """Hook modules that are spread over these ranks. Collective."""
        grids = {one.grid for one in modules}
        if len(grids) != 1:
            raise GuardError(
                "ST-GRAD-006",
                f"modules over the same ranks are cut in {len(grids)} ways",
                "the model given to the guard",
                "shard all of them over one mesh",
            )
        self._owners = _owners(self.ranks, grids.pop())
        attach_sharded(modules, self.collector, report_error)
        named = [(one.chunk, p.sharded_param) for one in modules for p in one.group.fsdp_params]
        self.piece = fingerprint(named)
        self.collector.draw_window_seed()

    def watch_replicated(self, model: DistributedDataParallel) -> None:
        """Hook a model of which all these ranks hold a copy. Collective."""
        attach_replicated(model, self.collector, self._group)
        self.piece = fingerprint(model.named_parameters())
        self.collector.draw_window_seed()

    def judge(self, findings: Findings) -> tuple[int, int]:
        """See `Watch`.

        Raises:
            GuardError: ST-GRAD-006, no gradient was seen since the last call.
        """
        sketches = self.collector.end()
        if sketches is None:
            raise GuardError(
                "ST-GRAD-006",
                "no gradient was reduced since the last step",
                "the model given to the guard",
            )
        row = self._encode(sketches)
        rows = self.channel.all_gather(row)
        before = self.detector.state()
        mine = Findings()
        self._decide(mine, sketches, rows)
        agreed = hashlib.sha256(b"".join(rows))
        agreed.update(msgspec.json.encode((mine.codes, sorted(mine.outliers))))
        if len(set(self.channel.all_gather(agreed.digest()))) > 1:
            mine.add_disagreement()
            self.detector.restart(before)  # what differs from rank to rank must not be learned
        findings.merge(mine)
        return sketches.batches, len(row) + _DIGEST * (1 + sketches.batches)

    def _encode(self, sketches: StepSketches) -> bytes:
        numbers = torch.cat([sketches.sent.flatten(), sketches.received, sketches.window])
        accused = bytes(int(rank in sketches.unopened) for rank in range(len(self.ranks)))
        return sketches.digest + accused + numbers.float().numpy().tobytes()

    def _decide(self, findings: Findings, sketches: StepSketches, rows: list[bytes]) -> None:
        size = len(self.ranks)
        accused = [{r for r in range(size) if row[_DIGEST + r]} for row in rows]
        findings.add_unopened(accused, self.ranks)
        if len({row[:_DIGEST] for row in rows}) > 1:
            # Other seeds or other pieces: the sketches cannot be compared, nothing is learned.
            findings.add_disagreement()
            return
        numbers = torch.stack(
            [
                torch.frombuffer(bytearray(row[_DIGEST + size :]), dtype=torch.float32)
                for row in rows
            ]
        ).double()
        k = self.shape.size
        parts = sketches.sent.shape[0]
        sent = numbers[:, : parts * k].view(size, parts, k)
        received, window = numbers[:, -2 * k : -k], numbers[:, -k:]
        if sketches.layout != self._layout:
            self.detector.forget_history()
            self._layout = sketches.layout
        assessment = self.detector.observe(sent.sum(dim=1), window, self.shape)
        findings.add_assessment(assessment, self._threshold, self.ranks)
        if not assessment.not_finite:
            result = check(
                sent,
                received,
                roundoff=sketches.roundoff,
                shape=self.shape,
                product_roundoff=sketches.product_roundoff,
                owners=self._owners,
            )
            findings.add_integrity(result, self.ranks, sharded=parts > 1)


class LoneWatch:
    """A rank that is alone with its piece: its own past is all that there is to compare with."""

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], rank: int, settings: Gradients
    ) -> None:
        self.ranks: tuple[int, ...] = (rank,)
        self.piece = fingerprint(parameters)
        self.detector = _detector(1, settings)
        self._parameters = [parameter for _, parameter in parameters]
        self._threshold = _limit(settings)

    def judge(self, findings: Findings) -> tuple[int, int]:
        """See `Watch`.

        Raises:
            GuardError: ST-GRAD-006, there is no gradient.
        """
        gradients = [resolve_partial_grad(p) for p in self._parameters if p.grad is not None]
        if not gradients:
            raise GuardError(
                "ST-GRAD-006", "no parameter has a gradient", "the model given to the guard"
            )
        square = sum(
            float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2 for g in gradients
        )
        row = torch.tensor([[math.sqrt(square)]], dtype=torch.float64)
        assessment = self.detector.observe(row, torch.zeros_like(row), _ALONE)
        findings.add_assessment(assessment, self._threshold, self.ranks)
        return 0, 0


def resolve_partial_grad(parameter: nn.Parameter) -> Tensor:
    """This rank's piece of a gradient, pending sums finished (collective where there are some).

    The finished sum takes the gradient's place: whoever comes next need not do it again.
    """
    grad = parameter.grad
    assert grad is not None
    if not isinstance(grad, DTensor):
        return grad
    if any(isinstance(placement, Partial) for placement in grad.placements):
        whole = [Replicate() if isinstance(p, Partial) else p for p in grad.placements]
        grad = parameter.grad = grad.redistribute(placements=whole)
    return grad.to_local()


def fingerprint(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """Digest (hex) of a piece's names and local shapes: tells one piece of a model from another."""
    digest = hashlib.sha256(b"securetrain-piece-v1")
    for name, parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        digest.update(f"{name}|{tuple(local.shape)};".encode())
    return digest.hexdigest()


def _owners(ranks: Sequence[int], grid: Grid) -> tuple[int, ...]:
    """The shard that each rank has."""
    shard = {rank: index for row in grid for index, rank in enumerate(row)}
    return tuple(shard[rank] for rank in ranks)


def _detector(ranks: int, settings: Gradients) -> Detector:
    return Detector(ranks, warmup_steps=settings.warmup_steps or 20, threshold=_limit(settings))


def _limit(settings: Gradients) -> float:
    return settings.threshold or 8.0
