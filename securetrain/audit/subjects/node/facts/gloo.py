# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The type of facts about the Gloo of the job's torch."""

from securetrain.audit.facts import Fact, Reading


class Gloo(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The abilities of the Gloo that is built into torch."""

    tls: Reading[bool]
    """Whether its TLS transport was compiled in; absent where the job does not ask for it."""
