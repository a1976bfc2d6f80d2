# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The run's ledger: a signed, append-only log of typed events.

===============  =================================================================================
`events`         every event, one class each: name, boundary, decision, writers, fields, labels
`Ledger`         appends to a file as one writer
`Journal`        whatever takes events: a file, or for workers their launcher
`verify_ledger`  checks chain and signatures of the lines
`read_ledger`    the same, then the events that count and the lines that are ignored, with reasons
`LedgerFollower` the same of a ledger that grows
===============  =================================================================================

Verify a ledger before anything in it is believed:

>>> import tempfile
>>> from pathlib import Path
>>> from securetrain.ledger import read_ledger
>>> from securetrain.testing.runs import make_run
>>> run = make_run(Path(tempfile.mkdtemp(), "run"))
>>> reading = read_ledger(run.run_dir.ledger.read_bytes(), run.trust)
>>> len(reading.events), len(reading.ignored)
(1, 0)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
