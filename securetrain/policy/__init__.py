# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The policy: one schema, enforced by run, checked by audit, proven by verify.

Load a policy by name or file, resolved and with its digest:

>>> from securetrain.policy import load_policy
>>> loaded = load_policy("hardened")
>>> loaded.policy.metadata.id, len(loaded.digest)
('hardened', 64)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
