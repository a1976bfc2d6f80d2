# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The policy's section about the guard (securetrain.guard)."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.policy.meta import meta


class GuardMode(StrEnum):
    """The mode in which gradients are watched."""

    OFF = "off"
    DETECT = "detect"


class GradientData(StrEnum):
    """The data that data-parallel ranks see."""

    SHUFFLED = "shuffled"
    PER_RANK = "per-rank"


class GuardResponse(StrEnum):
    """The trainer's answer to a step whose gradients are refused."""

    OBSERVE = "observe"
    SKIP_STEP = "skip-step"
    CLIP = "clip"
    EXCLUDE_RANK = "exclude-rank"
    ROLLBACK = "rollback"
    EVICT_NODE = "evict-node"
    HALT = "halt"


USUAL_THRESHOLD: Final = 8.0
"""The former default of ``gradients.threshold``."""


class Gradients(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The guard."""

    mode: Annotated[
        GuardMode, meta("whether gradients are sketched and judged", "run", "verify")
    ] = GuardMode.DETECT
    response: Annotated[
        GuardResponse, meta("what happens to a step whose gradients are refused", "run")
    ] = GuardResponse.SKIP_STEP
    data: Annotated[
        GradientData,
        meta(
            "shuffled (all ranks draw from one shuffled set) or per-rank (each has data of its own:"
            " less is found, later)",
            "run",
        ),
    ] = GradientData.SHUFFLED
    false_alarms_per_million_rank_steps: Annotated[
        Annotated[float, Meta(ge=0.001, le=10000.0)] | None,
        meta(
            "how often an honest rank may be excluded by mistake; none: 20, or 100 with per-rank"
            " data",
            "run",
        ),
    ] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=1, le=10000)] | None,
        meta("no longer used: the tests are exact from the first step on", "run"),
    ] = None
    threshold: Annotated[
        Annotated[float, Meta(ge=3.0, le=100.0)] | None,
        meta(
            "no longer used: read as false_alarms_per_million_rank_steps, 20 from 8 on, 100 below",
            "run",
        ),
    ] = None
    require_watched: Annotated[
        bool, meta("refuse a step on gradients that nobody judged", "run")
    ] = False
    max_refused_steps: Annotated[
        int,
        meta(
            "refused steps in a row, for which nobody can be excluded, before the run halts",
            "run",
            ge=1,
            le=1000,
        ),
    ] = 5
    sketch_keys: Annotated[
        int,
        meta(
            "sketches of each gradient under secrets of their own, in one pass", "run", ge=1, le=4
        ),
    ] = 1
    deadline_seconds: Annotated[
        float,
        meta("how long a rank waits for the others' messages about a step", "run", ge=1, le=86400),
    ] = 60.0
    confirm_tables: Annotated[
        bool,
        meta(
            "whether two or three ranks compare their tables before a step is applied, by one more"
            " all-gather, and not with the next step; four or more always agree before",
            "run",
        ),
    ] = False
    bind_buffers: Annotated[
        bool,
        meta(
            "whether buffers that DDP broadcasts are compared with the ranks' own; false for models"
            " that compute a buffer on their first rank alone",
            "run",
        ),
    ] = True

    @property
    def budget(self) -> float:
        """False alarms per million rank-steps, whichever field says it."""
        if self.false_alarms_per_million_rank_steps is not None:
            return self.false_alarms_per_million_rank_steps
        loose = self.data is GradientData.PER_RANK
        if self.threshold is not None:
            loose = loose or self.threshold < USUAL_THRESHOLD
        return 100.0 if loose else 20.0
