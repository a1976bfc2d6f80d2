# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reports of NVIDIA GPUs and switches, their certificates and golden measurements.

Parse an SPDM report; one that is none is refused by its code:

>>> from securetrain.core.errors import AttestationError
>>> from securetrain.evidence.gpu import parse_report
>>> try:
...     _ = parse_report(b"short")
... except AttestationError as error:
...     print(error.code)
ST-ATTS-601
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
