# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The policy: one schema, enforced by run, checked by audit, proven by verify."""

from securetrain.policy.load import LoadedPolicy, load_policy
from securetrain.policy.schema import Policy

__all__ = ["LoadedPolicy", "Policy", "load_policy"]
