# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""securetrain: a security-hardened runtime and auditor for distributed PyTorch training.

One policy file, three enforcers: ``securetrain run`` enforces it while a job runs,
``securetrain audit`` checks a cluster against it before, and ``securetrain verify`` proves
afterwards that an artifact was made under it.

A program takes what it needs from here; nothing is loaded before. A key, a trust root and a policy
are given as objects or as paths:

>>> import tempfile, torch
>>> from datetime import UTC, datetime
>>> from pathlib import Path
>>> import securetrain
>>> from securetrain.testing.runs import make_run
>>> from securetrain.testing.clock import SettableClock
>>> folder = Path(tempfile.mkdtemp())
>>> files = make_run(folder / "run", clock=SettableClock(datetime.now(UTC))).run_dir
>>> session = securetrain.Session(key=files.key("checkpoint"), trust=files.trust, run="toy")
>>> state = {"weight": torch.ones(2), "step": 12}
>>> _ = session.save(state, folder / "step-12")
>>> _ = state["weight"].zero_()
>>> securetrain.load(state, folder / "step-12", trust=files.trust).step
12
>>> securetrain.verify(folder / "step-12", trust=files.trust).ok
True
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
