# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard's decision about a step: data only, no torch.

Numbers that are not finite cannot stand in JSON: they are null, and `finite` says so.

===========  =================================================================================
ST-GRAD-001  a rank's gradient holds NaN or infinity
ST-GRAD-002  a rank's gradient is unlike the others' or unlike its own past
ST-GRAD-003  the reduced gradient is not the mean of what the ranks sketched
ST-GRAD-004  the ranks hold different tables, or a rank did not open its commitment
ST-GRAD-005  the run halts: the policy says so, or too many steps in a row were refused for which
             nobody can be excluded
===========  =================================================================================
"""

import math
from typing import Final

import msgspec

from securetrain.core.errors import GuardError
from securetrain.policy.schema import GuardResponse


class RankScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank in one step."""

    rank: int
    finite: bool
    norm: float | None = None
    """Estimated norm of the local gradient."""
    cosine: float | None = None
    """With the sum of the other ranks' directions."""
    evidence: float | None = None
    """ln E: how strongly all steps so far speak against the rank."""
    limit: float | None = None
    """The rank is excluded from this ln E on."""
    why: str = ""
    """The statistic that speaks loudest, for a rank that was named in this step."""


class LayerScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of parameters that speaks against a rank."""

    group: str
    rank: int
    evidence: float
    """ln E as if only this group had been looked at; below 1 nothing is told."""


class Totals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts since the run began; they survive checkpoints."""

    judged: int = 0
    calibrating: int = 0
    """Of these, steps of the warm-up, judged by coarse limits."""
    refused: int = 0
    refused_in_a_row: int = 0
    hopeless_in_a_row: int = 0
    """Of these, steps for which nobody can be excluded: they end the run."""
    settled: int = 0
    """Steps that were reduced again without whoever spoiled them."""
    without: int = 0
    """Steps that were applied without at least one rank."""
    rolled_back: int = 0
    """Times that the run was to go back to an earlier state."""


_GO_ON: Final = frozenset({GuardResponse.OBSERVE, GuardResponse.EXCLUDE_RANK, GuardResponse.CLIP})


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The group's decision; equal on every rank."""

    step: int
    ok: bool
    response: GuardResponse
    """The action to take now: observe = go on."""
    codes: tuple[str, ...] = ()
    outliers: tuple[int, ...] = ()
    attributed: bool = True
    """False: the step is bad, but the evidence does not name one rank."""
    calibrating: bool = False
    integrity: float | None = None
    """Largest difference of the reduction as a multiple of its limit; null when not comparable."""
    reason: str = ""
    table: tuple[RankScore, ...] = ()
    layers: tuple[LayerScore, ...] = ()
    peak: float = 0.0
    """The largest evidence so far of a rank that was not named, as a share of its limit."""
    settled: bool = False
    """Something was found, and nothing of it is in the gradients: they were reduced again."""
    excluded: tuple[int, ...] = ()
    """Ranks whose gradients count zero in this step."""
    newly_excluded: tuple[int, ...] = ()
    """Ranks that are excluded from this step or, where it is dropped, from the next one on."""
    readmitted: tuple[int, ...] = ()
    """Ranks that count again from the next step on."""
    disputes: tuple[tuple[int, int], ...] = ()
    """Pairs of ranks that contradict each other about what the one sent the other. Says nothing
    about which of them is wrong, or whether the link between them is."""
    undecided: bool = False
    """More ranks are bad than may be excluded, or it is not known which."""
    overflow: bool = False
    """The gradients are not finite by the loss scale: they are left to the scaler, which skips."""
    proven: tuple[int, ...] = ()
    """Ranks that the protocol has caught: no chance is in it, as there is in statistics."""
    roll_back_to: int | None = None
    """For the response `rollback`: the last step before what a rank is named for began, as far as
    this rank's group knows. The state after it, or an older one, is to be taken."""

    @property
    def proceed(self) -> bool:
        """True when the optimizer may step on these gradients."""
        return self.response in _GO_ON

    def raise_if_halted(self) -> None:
        """Raise when the policy halts the run.

        Raises:
            GuardError: ST-GRAD-005, naming the ranks and the codes behind it.
        """
        if self.response is GuardResponse.HALT:
            raise GuardError(
                "ST-GRAD-005",
                f"step {self.step} was refused and the policy halts the run: {self.reason}",
                "gradients",
            )


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the run's sketches file: a verdict, the totals after it, and what it cost."""

    verdict: Verdict
    totals: Totals
    world_size: int
    batches: int
    """Commit-and-reveal rounds in this step."""
    sent_bytes: int
    """Bytes that this rank sent for the guard in this step."""


def finite_or_none(value: float) -> float | None:
    """NaN and infinities are null."""
    return value if math.isfinite(value) else None
