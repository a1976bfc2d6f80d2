# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pure verifier library: bytes, reference values and a clock in, a verdict out.

Cut a list of measurements into parts that a channel takes:

>>> from securetrain.evidence import PART_SIZE, cut_list
>>> [len(part) for part in cut_list(bytes(PART_SIZE + 1))]
[262144, 1]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
