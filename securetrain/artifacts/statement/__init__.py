# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Statements about artifacts: what is signed, by whom, and what a policy asks of it.

Read the kind that an envelope claims; nothing is believed by it:

>>> from securetrain.artifacts.statement import claimed_kind, dataset_predicate
>>> claimed_kind(b"no envelope") is None
True
>>> dataset_predicate.digest_of_report(b"scan: clean")[:12]
'9a67c2f7048d'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
