# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain run``: prepare a run, start torch's elastic agent, and protect its workers.

List the compiled code that runs share on this machine:

>>> import tempfile
>>> from pathlib import Path
>>> from securetrain.core import NodeState
>>> from securetrain.launch import list_caches
>>> list_caches(NodeState(Path(tempfile.mkdtemp())))
[]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
