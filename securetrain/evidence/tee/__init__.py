# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reports of confidential CPU environments: AMD SEV-SNP and Intel TDX.

Parse an SEV-SNP report; one that is none is refused by its code:

>>> from securetrain.core.errors import AttestationError
>>> from securetrain.evidence.tee import parse_report
>>> try:
...     _ = parse_report(b"short")
... except AttestationError as error:
...     print(error.code)
ST-ATTS-401
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
