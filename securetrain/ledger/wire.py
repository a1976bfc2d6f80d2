# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The lines of a ledger as they lie on disk.

An `Event` is the flat form of every typed event (`ledger.events`): boundary, decision, name,
subject, code, and details that are scalars. It says nothing about what a name means.
"""

from datetime import datetime
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from securetrain.core.vocabulary import Boundary, Decision

Detail: TypeAlias = str | int | float | bool


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One decision: at which boundary, what about, with which refusal code."""

    boundary: Boundary
    decision: Decision
    event: str
    """A short verb phrase in kebab case: node-admitted, checkpoint-signed, step-refused."""
    subject: str = ""
    code: str = ""
    details: dict[str, Detail] = {}


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of an entry that its signature covers."""

    seq: int
    prev: str
    """SHA-256 of the line before it."""
    count: int | UnsetType = UNSET
    """How many entries the same key had signed before; entries of earlier versions lack it."""
    time: datetime
    writer: str
    event: Event


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the ledger."""

    body: Body
    keyid: str
    sig: str
