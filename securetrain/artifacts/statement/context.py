# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A training loop's word on the checkpoint that it saves."""

from dataclasses import dataclass, field
from datetime import datetime

from securetrain.artifacts.statement.statements import (
    DatasetRef,
    GradientRecord,
    NodeRef,
    Parent,
    PolicyRef,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """The lineage of one checkpoint. The coordinator's context is the one that gets signed."""

    run_id: str
    step: int
    """Optimizer steps that led to this state."""
    created: datetime
    """When it is saved, with a time zone."""
    expires: datetime | None = None
    """From when on nobody should load it; None when it keeps."""
    seq: int = 0
    """Which checkpoint of the run this is, counted from 0."""
    epoch: int | None = None
    """The membership that is in force; None when the training loop does not know."""
    dataset: DatasetRef = field(default_factory=DatasetRef)
    policy: PolicyRef = field(default_factory=PolicyRef)
    gradients: GradientRecord = field(default_factory=GradientRecord)
    parents: tuple[Parent, ...] = ()
    nodes: tuple[NodeRef, ...] = ()
    code: dict[str, str] = field(default_factory=dict)
    """What ran: for example a git commit and a lock file's digest."""
    env: dict[str, str] = field(default_factory=dict)
    """Where it ran. The versions of torch, python and securetrain are added when saving."""
    save_id: str = ""
    """32 hex digits that no other save has; drawn by the coordinator when empty."""
