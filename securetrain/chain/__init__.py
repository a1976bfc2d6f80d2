# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The evidence that a checkpoint leads back to: kept by digest, and judged link by link.

Ask a question of an artifact that is not there:

>>> from datetime import UTC, datetime
>>> from pathlib import Path
>>> from securetrain.chain import verify
>>> try:
...     verify(Path("no/such/step"), trust=Path("trust.json"), now=datetime.now(UTC))
... except Exception as error:
...     print(error.code)
ST-USAG-002
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
