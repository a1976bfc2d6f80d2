# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that is alone with its piece of the model: it can only be judged by its own past.

A lone rank's gradient is read through its placements: pending sums are finished first, which is
collective among the tensor-parallel ranks, all of whom judge at the same time.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from securetrain.core.errors import GuardError
from securetrain.guard.detector import Detector
from securetrain.guard.detector_state import DetectorState
from securetrain.guard.exclusion import Exclusion, ExclusionState
from securetrain.guard.pieces import fingerprint
from securetrain.guard.response import Findings
from securetrain.guard.rows import StepRows
from securetrain.policy.schema import Gradients


class LoneWatch:
    """A rank that is alone with its piece: its own past is all that there is to compare with."""

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], rank: int, settings: Gradients
    ) -> None:
        self.ranks: tuple[int, ...] = (rank,)
        self.piece = fingerprint(parameters)
        self.detector = Detector.of(1, settings)
        self.exclusion = Exclusion(1)
        self._parameters = [parameter for _, parameter in parameters]

    def restore(self, detector: DetectorState, exclusion: ExclusionState) -> None:
        """See `Watch`; nobody is excluded from a group of one."""
        del exclusion
        self.detector.restart(detector)

    def hand_over(self, step: int) -> None:
        """See `Watch`; nobody is there to contradict."""

    def judge(self, findings: Findings, elsewhere: Collection[int] = ()) -> tuple[int, int]:
        """See `Watch`.

        Raises:
            GuardError: ST-GRAD-006, there is no gradient.
        """
        gradients = [resolve_partial_grad(p) for p in self._parameters if p.grad is not None]
        if not gradients:
            raise GuardError(
                "ST-GRAD-006", "no parameter has a gradient", "the model given to the guard"
            )
        if self.ranks[0] in elsewhere:
            for gradient in gradients:
                gradient.zero_()  # nobody else has this piece: it stays as it is
            return 0, 0
        lengths = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
        # Once for all of them: the host waits for the device here.
        square = sum(length**2 for length in torch.stack(lengths).tolist())
        row = np.full((1, 1, 1), math.sqrt(square))
        rows = StepRows(groups=("(all)",), gradients=row, momentum=None)
        findings.add_assessment(self.detector.observe(rows), self.ranks)
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
