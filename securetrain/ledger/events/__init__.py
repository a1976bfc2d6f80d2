# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every event that a ledger may hold, one class each, by what it is about.

A new event is a class with its name, boundary and writers (`event.event`), and one place that
writes it: ``ledger.write(events.NodeLeft(subject=...))``. All stand here and not in the rooms that
write them: whoever reads a ledger must know all of it, without loading those rooms or torch.
"""

from securetrain.ledger.events.admission import *  # noqa: F403 - a namespace of 145 classes
from securetrain.ledger.events.event import *  # noqa: F403
from securetrain.ledger.events.launch import *  # noqa: F403
from securetrain.ledger.events.training import *  # noqa: F403
