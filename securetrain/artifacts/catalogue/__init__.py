# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A catalogue of artifacts: which one a name means, signed by several, never going back.

Create a catalogue; its first root is what everyone else starts from:

>>> import json, tempfile
>>> from datetime import UTC, datetime
>>> from pathlib import Path
>>> from securetrain.artifacts.catalogue import editor
>>> from securetrain.identity.keys import PrivateKey
>>> root = editor.create(
...     Path(tempfile.mkdtemp(), "models"),
...     roots=[key := PrivateKey.generate()],
...     signers=[key.public],
...     threshold=1,
...     publishers=[key.public],
...     now=datetime(2026, 11, 20, tzinfo=UTC),
... )
>>> json.loads(root)["signed"]["_type"]
'root'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
