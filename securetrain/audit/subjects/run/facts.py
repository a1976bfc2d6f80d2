# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about a run, by the word of its signed ledger: who takes part, and what they proved.

Nothing that does not verify is a fact.
"""

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    Body,
    Fact,
    Location,
    Section,
)
from securetrain.core.vocabulary import NodeTier


class _OfLedger(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of what a line of the ledger says."""

    path: str
    line: int
    """0 when there is none."""

    @property
    def location(self) -> Location:
        """The ledger's line."""
        return Location(path=self.path, line=self.line)


class RunNode(_OfLedger, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A member of the newest epoch, and its newest proof."""

    name: str
    tier: NodeTier | None
    """None when the coordinator never admitted it."""
    proven: Annotated[datetime, Meta(tz=True)] | None
    """The time of its admission or newest renewal."""
    until: Annotated[datetime, Meta(tz=True)] | None
    """The time at which it left or the run ended; None while it goes on."""
    refused: str
    """The code of its newest refusal, if it was let in no more after that."""
    compared: bool | None
    """Whether it was compared with the reference values that the policy names, if it names any."""

    @property
    def label(self) -> str:
        """The node."""
        return self.name


class RankRange(_OfLedger, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ranks of one node in the newest epoch."""

    node: str
    first: int
    last: int

    @property
    def label(self) -> str:
        """The ranks."""
        return f"{self.first}-{self.last}"


class Run(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run."""

    nodes: Section[tuple[RunNode, ...]]
    ranks: Section[tuple[RankRange, ...]]
    inventory: Section[tuple[str, ...]]
    """The nodes that there should be: of the auditor's inventory, and of the reference values."""
    strangers: Section[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Launchers' accounts of the newest epoch that say something else than the first of them."""


class RunFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="run"):
    """A facts document about one run."""

    path: str
    """The run directory, as it was given."""
    run: Run

    @property
    def asset(self) -> str:
        """The directory."""
        return f"run:{self.path}"
