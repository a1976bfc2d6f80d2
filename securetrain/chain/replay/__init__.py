# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps that are done again: what is asked, what was found, and what it shows. No torch.

Say how many segments show one forged step in a hundred, and draw them:

>>> from securetrain.chain.replay import line
>>> line.needed(1000, forged=0.01, confidence=0.99)
368
>>> sorted(line.draw([f"segment {n}" for n in range(10)], 3, seed=b"a log checkpoint of later"))
[2, 4, 5]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
