# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints and datasets: write, verify, read.

The names below are loaded when they are used: importing this package, and everything that verifies,
needs no torch. Only `save` and `load` do.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
