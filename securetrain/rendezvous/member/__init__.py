# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node in the rendezvous: join, keep the lease, hand each round to torch. No verifier.

Read endpoints as torchrun writes them:

>>> from securetrain.rendezvous.member import parse_endpoint, parse_endpoints
>>> parse_endpoint("coordinator:29400")
('coordinator', 29400)
>>> parse_endpoints("a:29400,b:29400")
[('a', 29400), ('b', 29400)]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
