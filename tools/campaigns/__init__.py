# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The campaigns: each a module with one `CAMPAIGN`, named in `tools.campaign.NAMES`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Many cases of one kind."""

    title: str
    count: int
    """Cases where nobody says how many."""
    case: Callable[[random.Random, Path], str]
    """Runs one in an empty folder and says in a word what happened; raises `Missed`."""
    walk: Callable[[int, Path], str] | None = None
    """Runs the one of a number, for a campaign that goes through all there is."""


class Missed(Exception):  # noqa: N818 - what happened, not what went wrong in the tool
    """A defence failed."""
