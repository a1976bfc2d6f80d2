# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The words between whoever asks for steps again and the ranks that do them.

Every rank writes its own answer: of each tensor it compares the part that it holds, so that the
mesh may be another one than the run's. Numbers are hexadecimal, as in the records of steps.
"""

from typing import Annotated, Final

from msgspec import Meta

from securetrain.chain.documents import BASE, Count, Document, Hex32, Name, Part, Text
from securetrain.chain.records import Number, StepRecord
from securetrain.chain.replayed import MAX_SEGMENTS

MAX_TENSORS: Final = 1 << 16
ANSWER_LIMIT: Final = 256 << 20
"""Bytes of one rank's answer."""


class AskedSegment(Part, frozen=True, kw_only=True):
    """The steps from one checkpoint to the next, and where the two lie."""

    begin: Text
    """The directory of the first; empty for the beginning of the run."""
    begin_digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    end: Text
    end_digest: Hex32
    after: Count
    """The step of the first."""
    last: Count
    rates: Annotated[tuple[Number, ...], Meta(max_length=1 << 24)]
    """The recorded learning rates of the steps that were applied."""
    refused: Annotated[tuple[Count, ...], Meta(max_length=1 << 24)] = ()
    """Steps whose gradients were dropped, by the records: they change nothing."""
    seeds: Annotated[
        tuple[Annotated[tuple[Hex32, ...], Meta(max_length=1024)], ...], Meta(max_length=1 << 24)
    ] = ()
    """Of each step, the recorded seeds of its sketches, which are used again; none on another mesh.
    """
    again: bool
    """Whether the steps are done again; else the two are only compared with each other."""


class Request(Document, frozen=True, tag=f"{BASE}.replay-request.v1+json"):
    """Everything that the ranks need besides the job file."""

    trust: Text
    """The file of the trust root that names the keys of the run's checkpoints."""
    segments: Annotated[tuple[AskedSegment, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]


class TensorFound(Part, frozen=True, kw_only=True):
    """A rank's part of one tensor, compared with the recorded one."""

    name: Name
    size: Count
    """Elements of this part."""
    differing: Count = 0
    """Those of which a bit differs."""
    difference: Number = "0x0.0p+0"
    """The sum of the squares of the differences."""
    square: Number = "0x0.0p+0"
    """Of the recorded elements."""
    moved: Number = "0x0.0p+0"
    """Of what they had moved since the segment began."""
    largest: Number = "0x0.0p+0"
    """The largest difference."""
    reach: Number = "0x0.0p+0"
    """The farthest that an element went, as a part of what schedule and AdamW allow."""
    moments: Number = "0x0.0p+0"
    """The worst of an element's moments, as a part of what AdamW allows."""


class SegmentFound(Part, frozen=True, kw_only=True):
    """A rank's answer about one segment."""

    records: Annotated[tuple[StepRecord, ...], Meta(max_length=1 << 24)] = ()
    """Of the steps that were done again."""
    tensors: Annotated[tuple[TensorFound, ...], Meta(max_length=MAX_TENSORS)] = ()
    values_differ: bool = False
    """Whether a plain value of the state, such as the count of steps, is another one."""


class RankFound(Document, frozen=True, kw_only=True, tag=f"{BASE}.replay-answer.v1+json"):
    """One rank's answer."""

    rank: Count
    world: Count
    mesh: Text
    segments: Annotated[tuple[SegmentFound, ...], Meta(max_length=MAX_SEGMENTS)]
