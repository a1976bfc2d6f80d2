# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collateral in memory, and a case to judge with it."""

from dataclasses import dataclass, field

from securetrain.core.errors import AttestationError
from securetrain.evidence.case import Ask, Case


@dataclass
class Shelf:
    """A `lease.Collateral` without a folder."""

    documents: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def get(self, kind, name, now):
        if not self.has(kind, name):
            raise AttestationError("ST-ATTS-735", f"no {kind} {name!r}", "shelf")
        return self.documents[kind.value, name]

    def has(self, kind, name):
        return (kind.value, name) in self.documents


def case(binding, now, lease_ends, node="node-0"):
    """An exchange without a TPM."""
    return Case(
        binding=binding,
        node=node,
        now=now,
        expires=lease_ends,
        ask=Ask(),
        secret=b"",
        opening=None,
        lease=None,
    )
