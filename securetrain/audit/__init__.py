# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The audit of a host: facts, checks and findings; pure but for the collectors.

Judge facts by checks and a policy; without facts nothing passes:

>>> from datetime import UTC, datetime
>>> from securetrain.audit import Facts, audit, load_checks
>>> from securetrain.policy import load_policy
>>> now = datetime(2026, 11, 20, tzinfo=UTC)
>>> result = audit(Facts([]), load_checks(), load_policy("dev").policy, now)
>>> int(result.exit_code)
3
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
