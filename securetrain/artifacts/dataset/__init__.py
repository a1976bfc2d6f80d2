# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Datasets where they lie: sign them in place, let them grow, and read them as programs do.

Read a signed dataset; each byte is verified before it is handed out:

>>> import tempfile
>>> from datetime import UTC, datetime
>>> from pathlib import Path
>>> from securetrain.artifacts import Dataset
>>> from securetrain.artifacts.dataset import sign
>>> from securetrain.testing.runs import make_run
>>> now = datetime(2026, 11, 20, 12, tzinfo=UTC)
>>> folder = Path(tempfile.mkdtemp())
>>> run = make_run(folder / "run")
>>> _ = (folder / "data").mkdir(), (folder / "data/train.bin").write_bytes(b"some rows")
>>> about = sign.About(name="rows")
>>> _ = sign.sign_in_place(folder / "data", about, key=run.keys["dataset"], now=now)
>>> dataset = Dataset.open(folder / "data", trust=run.trust, policy=None, now=now)
>>> dataset.read("train.bin", 5, 4)
b'rows'
>>> dataset.close()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
