# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Drills: real attacks on the plain stack and on the hardened one, side by side.

Look an attack up; `run_drill` tries it on the plain stack, then on ours:

>>> from securetrain.drills import DRILLS
>>> DRILLS["D-RDZ-PICKLE"].title
'Run code in the launcher through the rendezvous port'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
