# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sessions of the verifier: challenges, leases, passports, and what outlives a restart.

A node that is revoked stays so in every later session of the verifier:

>>> from securetrain.attest.session import MemoryState, Revocation
>>> state = MemoryState()
>>> state.revoke(Revocation(subject="node:n-7", reason="stolen", since="2026-11-20T12:00:00Z"))
>>> state.revocation("node:n-7").reason
'stolen'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
