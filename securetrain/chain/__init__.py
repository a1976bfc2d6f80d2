# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The evidence that a checkpoint leads back to: kept by digest, and judged link by link.

Tell a pack from other files by its bytes:

>>> import tempfile
>>> from pathlib import Path
>>> from securetrain.chain import Form
>>> file = Path(tempfile.mkdtemp(), "run.pack")
>>> _ = file.write_bytes(b"only its name says so")
>>> Form.of(file) is Form.PACK
False
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
