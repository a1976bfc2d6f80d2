# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fakes for testing policies and code that uses securetrain, without a cluster.

``clock`` a clock that stands still until it is moved; ``memory_store`` a c10d store in memory;
``fake_attester`` evidence of any tier, refused by every real verifier; ``runs`` a small signed
run directory; ``processes`` several gloo ranks for the price of one torch import; ``cluster``
several hosts as network namespaces on a bridge. Nothing here is ever imported by the rest of
securetrain.

Move a clock that stands still:

>>> from securetrain.testing.clock import SettableClock
>>> clock = SettableClock()
>>> before = clock()
>>> _ = clock.advance(60)
>>> (clock() - before).total_seconds()
60.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
