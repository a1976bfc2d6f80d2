# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The run's ledger: a signed, append-only log of typed events.

==============  =================================================================================
`events`        every event, one class each: name, boundary, decision, writers, fields, labels
`Ledger`        appends to a file as one writer
`verify_ledger` checks chain and signatures of the lines
`read_ledger`   the same, then the events that count and the lines that are ignored, with reasons
==============  =================================================================================
"""

from securetrain.ledger import events
from securetrain.ledger.events import LedgerEvent, WriterRole
from securetrain.ledger.log import (
    GENESIS,
    LINE_LIMIT,
    Clock,
    Ledger,
    VerifiedLedger,
    verify_ledger,
)
from securetrain.ledger.reading import (
    Ignored,
    Reading,
    Recorded,
    Writers,
    read_events,
    read_ledger,
)
from securetrain.ledger.wire import Body, Detail, Entry, Event

__all__ = [
    "GENESIS",
    "LINE_LIMIT",
    "Body",
    "Clock",
    "Detail",
    "Entry",
    "Event",
    "Ignored",
    "Ledger",
    "LedgerEvent",
    "Reading",
    "Recorded",
    "VerifiedLedger",
    "WriterRole",
    "Writers",
    "events",
    "read_events",
    "read_ledger",
    "verify_ledger",
]
