# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys, certificates, DSSE envelopes, in-toto statements and the trust root.

Name a node; the role is part of the name:

>>> from securetrain.identity import Role, SpiffeId
>>> str(SpiffeId("cluster.example", "run-7", Role.NODE, "node-1"))
'spiffe://cluster.example/job/run-7/node/node-1'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
