# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The eight steps of the tour, and the text that it trains on.

Say what the tour is to do; `tell` does it:

>>> from pathlib import Path
>>> from securetrain.quickstart import STEPS, Options
>>> Options(run_dir=Path("runs/tour"), drills=False).steps == STEPS
True
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
