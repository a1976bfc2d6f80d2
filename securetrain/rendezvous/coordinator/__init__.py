# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator: admits nodes, forms rounds, signs memberships. No torch.

Make a one-time token, by which one machine becomes a node of one job:

>>> import tempfile
>>> from datetime import UTC, datetime, timedelta
>>> from pathlib import Path
>>> from securetrain.identity import ClusterCA
>>> from securetrain.rendezvous.coordinator import make_token
>>> now = datetime(2026, 11, 20, tzinfo=UTC)
>>> cluster = ClusterCA.create(Path(tempfile.mkdtemp(), "ca"), "cluster.example", now)
>>> job = cluster.job("run-7", now, cluster.key)
>>> token = make_token(cluster, job, "node-1", ("192.0.2.1", 29400), now + timedelta(hours=1))
>>> token.node
'node-1'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
