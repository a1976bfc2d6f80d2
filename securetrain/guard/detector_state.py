# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The part of a detector that stands in a checkpoint: bounded, plain, no seed in it.

Tables are 32-bit numbers, little-endian, in base64: a model of 32 groups on 8 ranks has 40,000 of
them. What waits in quarantine is not kept: the past begins again 16 steps later. A state of another
group size, or of tests or bets before these (versions 1 and 2), is learned anew.
"""

import base64
import binascii
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from securetrain.guard.medians import Floats
from securetrain.guard.own_past import Series
from securetrain.policy.schema import GradientData

VERSION: Final = 3
MOST_GROUPS: Final = 4096
_MOST_CHARACTERS: Final = 48 << 20

Table = Annotated[str, Meta(max_length=_MOST_CHARACTERS)]
Rank = Annotated[int, Meta(ge=0, lt=1 << 20)]


class Served(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One rank's offences, and its probation where it is on one."""

    rank: Rank
    offences: Annotated[int, Meta(ge=0)] = 0
    served: Annotated[int, Meta(ge=0)] = 0
    term: Annotated[int, Meta(ge=0)] = 0
    """0: not on probation."""


class EvidenceState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The tables of evidence.py."""

    groups: Annotated[
        list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=MOST_GROUPS)
    ] = []
    steps: Annotated[int, Meta(ge=0)] = 0
    cusum: Table = ""
    pool: Table = ""
    count: Table = ""
    spread: Table = ""
    own_past: Table = ""
    own_steps: Annotated[int, Meta(ge=0)] = 0
    largest: Table = ""


class DetectorState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything a detector has learned."""

    version: int = VERSION
    ranks: int
    data: GradientData = GradientData.SHUFFLED
    steps: Annotated[int, Meta(ge=0)] = 0
    peak: float = 0.0
    probation: Annotated[list[Served], Meta(max_length=1 << 20)] = []
    series: Annotated[dict[str, Series], Meta(max_length=8)] = {}
    evidence: EvidenceState


def packed(values: Floats) -> str:
    """The numbers of a table."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


def unpacked(text: str, shape: tuple[int, ...]) -> Floats:
    """The table of a shape.

    Raises:
        ValueError: there are not as many numbers as the shape has.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a table is not base64: {error}") from error
    if len(data) != 4 * int(np.prod(shape)):
        raise ValueError(f"a table of {len(data)} bytes is not one of shape {shape}")
    values: Floats = np.frombuffer(data, dtype="<f4").reshape(shape).astype(np.float64)
    return values
