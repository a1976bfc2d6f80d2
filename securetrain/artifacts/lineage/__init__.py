# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lineage: which checkpoint of a run is the newest that may be believed.

Put a signed checkpoint beside the newest one that this machine knows:

>>> from securetrain.artifacts.lineage import machine
>>> machine.order(7, "ab" * 32, than=machine.Floor(seq=6, digest="cd" * 32))
<Order.NEWER: 'newer'>
>>> machine.order(6, "ab" * 32, than=machine.Floor(seq=6, digest="cd" * 32))
<Order.FORKED: 'forked'>
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
