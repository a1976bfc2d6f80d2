# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The fleet: enroll nodes, keep collateral, judge and describe evidence in files.

Explain a refusal by its code, in words that say what to do:

>>> from securetrain.attest.fleet import explain
>>> (refusal,) = explain("ST-ATTS-016").refusals
>>> refusal.code
'ST-ATTS-016'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
