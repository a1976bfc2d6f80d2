# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A training loop's word on the checkpoint that it saves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from securetrain.artifacts.given import check_fields
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    GradientRecord,
    NodeRef,
    Parent,
    PolicyRef,
)
from securetrain.artifacts.statement.this_run import this_run
from securetrain.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepPieces:
    """The records of the steps that led to a state, for the launcher to keep."""

    digest: str
    """SHA-256 (hex) of the document; the same on every rank, which signs it with its file."""
    document: bytes
    pages: tuple[bytes, ...] = ()
    """The records themselves, which the document names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """The lineage of one checkpoint. The coordinator's context is the one that gets signed."""

    run_id: str
    name: str = ""
    """The name by which people ask for what is saved; the run's when empty."""
    step: int
    """Optimizer steps that led to this state."""
    created: datetime
    """When it is saved, with a time zone."""
    expires: datetime | None = None
    """From when on nobody should load it; None when it keeps."""
    seq: int | None = None
    """Which checkpoint of the run this is, counted from 0; None takes one more than the newest that
    the same key has signed in the same folder."""
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
    records: StepPieces | None = None
    """The records of the steps since the parent; None where nobody made any."""
    save_id: str = ""
    """32 hex digits that no other save has; drawn by the coordinator when empty."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, state: Mapping[str, Any], run: str = "", step: int | None = None) -> "SaveContext":
        """The context of a state by itself: its run and its step, never guessed.

        Args:
            state: Its ``step`` counts where none is given.
            run: The run that saves; that of ``securetrain run`` when empty.
            step: Optimizer steps that led to the state.

        Raises:
            UsageError: ST-USAG-001 when nothing says them.
        """
        launched = None if run else this_run()
        if not run and launched is None:
            raise UsageError(
                "ST-USAG-001",
                "a checkpoint is signed for a run, and none is named",
                "run",
                "give the run to a Session, or start the script with securetrain run",
            )
        found = state.get("step") if step is None else step
        if type(found) is not int:
            raise UsageError(
                "ST-USAG-001",
                "nothing says at which step this is saved",
                "step",
                "give step=, or keep it in the state as 'step'",
            )
        return cls(
            run_id=run if launched is None else launched.run_id,
            step=found,
            created=datetime.now(UTC),
        )

    @property
    def recorded(self) -> str | None:
        """The digest of the steps' records; None without any."""
        return None if self.records is None else self.records.digest

    @property
    def signed_name(self) -> str:
        """The name that the statement bears."""
        return self.name or self.run_id
