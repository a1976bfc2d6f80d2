# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whoever hears of a script's models and steps: the launcher's part in the process."""

from collections.abc import Callable
from dataclasses import dataclass

from securetrain.core.errors import GuardError
from securetrain.guard.suspicions import OnSuspicion
from securetrain.guard.verdict import StepRecord


@dataclass(slots=True, kw_only=True)
class Listener:
    """Hears what happens. Called on every rank."""

    watched: Callable[[str], None]
    """A guard has moved into a model; its description."""
    unwatched: Callable[[str], None]
    """A step was made on gradients that nobody judged; the reason, each once."""
    judged: Callable[[StepRecord], None]
    """A step was judged."""
    refused: Callable[[GuardError], None] = lambda _error: None
    """No step can be made under this policy; why."""
    suspected: OnSuspicion | None = None
    """A rank is to be reported to the rendezvous."""
