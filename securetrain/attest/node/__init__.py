# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The attester of a node: everything on this machine that can speak for it.

Collect what software says of itself, which every policy but `dev` refuses:

>>> import sys
>>> from pathlib import Path
>>> from securetrain.attest.node import SoftwareAttester
>>> from securetrain.identity.keys import PrivateKey
>>> attester = SoftwareAttester(key=PrivateKey.generate(), executable=Path(sys.executable))
>>> attester.keys() is None
True
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
