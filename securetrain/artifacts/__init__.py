# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints and datasets: write, verify, read.

The names below are loaded when they are used: importing this package, and everything that verifies,
needs no torch. Only `save` and `load` do.

Sign a dataset where it lies, and verify it, without torch:

>>> import tempfile
>>> from datetime import UTC, datetime
>>> from pathlib import Path
>>> from securetrain.artifacts import verify_path
>>> from securetrain.artifacts.dataset import sign
>>> from securetrain.testing.runs import make_run
>>> now = datetime(2026, 11, 20, 12, tzinfo=UTC)
>>> folder = Path(tempfile.mkdtemp())
>>> run = make_run(folder / "run")
>>> _ = (folder / "data").mkdir(), (folder / "data/train.bin").write_bytes(b"some rows")
>>> about = sign.About(name="rows")
>>> _ = sign.sign_in_place(folder / "data", about, key=run.keys["dataset"], now=now)
>>> verify_path(folder / "data", trust=run.trust, policy=None, now=now).ok
True
>>> _ = (folder / "data/train.bin").write_bytes(b"some rows!")
>>> found = verify_path(folder / "data", trust=run.trust, policy=None, now=now)
>>> [problem.code for problem in found.problems]
['ST-DATA-131']
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
