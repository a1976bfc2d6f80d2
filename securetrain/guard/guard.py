# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard of one training process: attach once, judge every step.

A step, on every rank:

1. during the backward pass the hooks reduce as torch does and hand over what was reduced
   (hooks.py);
2. `judge` waits for delivery, draws the last seed, sketches (collect.py) and all-gathers one row:
   transcript digest, accusations, part sketches, sketch of the result, window sketch;
3. every rank computes the same verdict from the same table: finite, outliers (detector.py),
   integrity of the reduction (integrity.py), the policy's response (response.py);
4. the hash of table and verdict is all-gathered: a rank that was told another table, or decided
   otherwise, shows here (ST-GRAD-004) and the step is refused everywhere;
5. a refused step's gradients are dropped (`grad = None`) unless the policy only observes: a
   trainer that forgets to look at the verdict does not step on them.

Cost per step: `draws + 2` all-gathers of at most 8 KiB to 32 ranks, and three reads of the
gradient. With 2 M parameters, two ranks on two cores and 1,024 tokens a rank, the fastest step is
1.01 (FSDP2) and 1.03 (DDP) times the plain one; on an oversubscribed machine every extra
collective waits for the slowest rank (benchmarks/step.py).

What mode `detect` covers: faults, poisoned shards, byzantine ranks that do not adapt to the
window seed, and reductions that were tampered with. What it does not: see detector.py (adaptive,
intermittent and majority attacks), integrity.py (the owner of an FSDP shard) and history.py
(restart). An equivocator that also shows every rank a different hash in step 4 can make ranks act
differently in that step.
"""

import hashlib
import math
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError, UsageError
from securetrain.guard.beacon import Beacon
from securetrain.guard.channel import Channel, GroupChannel
from securetrain.guard.collect import RETAIN_BYTES, Collector, StepSketches
from securetrain.guard.detector import Detector, DetectorState
from securetrain.guard.hooks import attach_replicated, attach_sharded
from securetrain.guard.integrity import check
from securetrain.guard.response import Findings
from securetrain.guard.sketch import SketchShape, shape_for
from securetrain.guard.verdict import StepRecord, Totals, Verdict
from securetrain.policy.schema import Gradients, GuardMode

_DIGEST: Final = 32
_ALONE: Final = SketchShape(rows=1, buckets=1)


class GuardState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What survives in a checkpoint: plain numbers, no secret."""

    version: int = 1
    totals: Totals
    detector: DetectorState


class GradientGuard:
    """Watches the gradients of one model.

    Args:
        group: the data-parallel ranks; None is the default group, or one rank alone without one.
        settings: the policy's section.
        on_record: called once a step with the record, on every rank that passes one.
        peers: ranks that hold other pieces of the same replica (tensor or pipeline parallel): a
            step that one of them refuses is refused by all.
        randomness: gives n unpredictable bytes.
        retain_bytes: local gradient bytes that may wait for a seed.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        settings: Gradients,
        *,
        on_record: Callable[[StepRecord], None] | None = None,
        peers: ProcessGroup | None = None,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
        retain_bytes: int = RETAIN_BYTES,
    ) -> None:
        match settings.mode:
            case GuardMode.DETECT:
                pass
            case GuardMode.OFF:
                raise ValueError("the policy turns the guard off: do not make one")
            case _:
                raise ValueError(f"unknown guard mode {settings.mode!r}")
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        self._group = group
        self._settings = settings
        self._on_record = on_record
        self._channel: Channel | None = None
        if group is not None and group.size() > 1:
            self._channel = GroupChannel(group)
        self._peers = GroupChannel(peers) if peers is not None and peers.size() > 1 else None
        self._size = self._channel.size if self._channel is not None else 1
        self._shape = shape_for(self._size) if self._size > 1 else _ALONE
        self._randomness = randomness
        self._retain_bytes = retain_bytes
        self._collector: Collector | None = None
        self._model: nn.Module | None = None
        self._layout = b""
        self._objection: GuardError | None = None
        self._detector = Detector(
            self._size, warmup_steps=settings.warmup_steps, threshold=settings.threshold
        )
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """Counts since the run began."""
        return self._totals

    def attach(self, model: nn.Module) -> None:
        """Hook a model that is already wrapped by fully_shard or DDP. Collective, once.

        Raises:
            GuardError: ST-GRAD-006, a gradient of the model would not be seen.
        """
        if self._model is not None:
            raise _unseen("this guard is attached already", "make one guard per model")
        if self._channel is None:
            self._model = model
            return
        assert self._group is not None
        beacon = Beacon(self._channel, self._randomness)
        collector = Collector(beacon, self._channel.rank, self._shape, self._retain_bytes)
        if isinstance(model, DistributedDataParallel):
            attach_replicated(model, collector, self._group)
        elif any(isinstance(module, FSDPModule) for module in model.modules()):
            attach_sharded(model, collector, self._group, self._object)
        else:
            raise _unseen(
                "the model is neither sharded by fully_shard nor wrapped by "
                "DistributedDataParallel, so nothing reduces its gradients",
                "wrap it before attach",
            )
        collector.draw_window_seed()
        self._collector, self._model = collector, model

    def judge(self, step: int) -> Verdict:
        """Judge the gradients of the backward pass that just ended. Collective.

        Call it before clipping and before the optimizer steps.

        Raises:
            GuardError: ST-GRAD-006, no gradient was seen since the last call.
        """
        if self._objection is not None:
            raise self._objection
        if self._model is None:
            raise _unseen("the guard is not attached to a model", "call attach first")
        if self._channel is None:
            findings, cost = self._judge_alone(self._model), (0, 0)
        else:
            findings, cost = self._judge_group(self._channel)
        self._ask_peers(findings)
        verdict, self._totals = findings.verdict(
            step, self._totals, self._settings.response, self._settings.max_refused_steps
        )
        if not verdict.proceed:
            for parameter in self._model.parameters():
                parameter.grad = None
        if self._on_record is not None:
            batches, sent_bytes = cost
            self._on_record(
                StepRecord(
                    verdict=verdict,
                    totals=self._totals,
                    world_size=self._size,
                    batches=batches,
                    sent_bytes=sent_bytes,
                )
            )
        return verdict

    def state_dict(self) -> dict[str, Any]:
        """Plain ints, floats, strings, lists and dicts; equal on every rank."""
        state = GuardState(totals=self._totals, detector=self._detector.state())
        result: dict[str, Any] = msgspec.to_builtins(state)
        return result

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; for another group size the thresholds are learned anew.

        Raises:
            UsageError: ST-USAG-008, the state is not one of this version.
        """
        try:
            loaded = msgspec.convert(state, GuardState, strict=True)
        except msgspec.ValidationError as error:
            raise _bad_state(str(error)) from error
        if loaded.version != 1:
            raise _bad_state(f"version {loaded.version} is not 1")
        self._totals = loaded.totals
        self._detector.restart(loaded.detector)

    # -- one step ----------------------------------------------------------------------------------

    def _object(self, error: GuardError) -> None:
        self._objection = self._objection or error

    def _judge_alone(self, model: nn.Module) -> Findings:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if not gradients:
            raise _unseen("no parameter has a gradient", "call judge after backward")
        square = sum(
            float(torch.linalg.vector_norm(_local(g), dtype=torch.float64)) ** 2 for g in gradients
        )
        row = torch.tensor([[math.sqrt(square)]], dtype=torch.float64)
        findings = Findings()
        findings.add_assessment(
            self._detector.observe(row, torch.zeros_like(row), _ALONE), self._settings.threshold
        )
        return findings

    def _judge_group(self, channel: Channel) -> tuple[Findings, tuple[int, int]]:
        assert self._collector is not None
        sketches = self._collector.end()
        if sketches is None:
            raise _unseen(
                "no gradient was reduced since the last step",
                "call judge after backward, with gradient synchronisation on",
            )
        row = self._encode(sketches)
        rows = channel.all_gather(row)
        before = self._detector.state()
        findings = self._decide(sketches, rows)
        agreed = hashlib.sha256(b"".join(rows))
        agreed.update(msgspec.json.encode((findings.codes, sorted(findings.outliers))))
        if len(set(channel.all_gather(agreed.digest()))) > 1:
            findings.add_disagreement()
            self._detector.restart(before)  # what differs from rank to rank must not be learned
        cost = (sketches.batches, len(row) + _DIGEST * (1 + sketches.batches))
        return findings, cost

    def _encode(self, sketches: StepSketches) -> bytes:
        numbers = torch.cat([sketches.sent.flatten(), sketches.received, sketches.window])
        accused = bytes(int(rank in sketches.liars) for rank in range(self._size))
        return sketches.digest + accused + numbers.float().numpy().tobytes()

    def _decide(self, sketches: StepSketches, rows: list[bytes]) -> Findings:
        findings = Findings()
        size = self._size
        findings.add_liars([{r for r in range(size) if row[_DIGEST + r]} for row in rows])
        if len({row[:_DIGEST] for row in rows}) > 1:
            # Other seeds or other pieces: the sketches cannot be compared, nothing is learned.
            findings.add_disagreement()
            return findings
        numbers = torch.stack(
            [
                torch.frombuffer(bytearray(row[_DIGEST + size :]), dtype=torch.float32)
                for row in rows
            ]
        ).double()
        k = self._shape.size
        parts = sketches.sent.shape[0]
        sent = numbers[:, : parts * k].view(size, parts, k)
        received, window = numbers[:, -2 * k : -k], numbers[:, -k:]
        if sketches.layout != self._layout:
            self._detector.forget_history()
            self._layout = sketches.layout
        assessment = self._detector.observe(sent.sum(dim=1), window, self._shape)
        findings.add_assessment(assessment, self._settings.threshold)
        if not assessment.not_finite:
            result = check(
                sent,
                received,
                roundoff=sketches.roundoff,
                shape=self._shape,
                product_roundoff=sketches.product_roundoff,
            )
            findings.add_integrity(result, sharded=parts > 1)
        return findings

    def _ask_peers(self, findings: Findings) -> None:
        if self._peers is None:
            return
        answers = self._peers.all_gather(bytes([int(bool(findings.codes))]))
        if not findings.codes and any(answer != b"\0" for answer in answers):
            findings.add(
                "ST-GRAD-002",
                "another piece of the same replica was refused",
                attributed=False,
            )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _unseen(what: str, fix: str) -> GuardError:
    return GuardError("ST-GRAD-006", what, "the model given to the guard", fix)


def _bad_state(what: str) -> UsageError:
    return UsageError(
        "ST-USAG-008", f"not a guard state: {what}", "guard state", "start with a new guard"
    )
