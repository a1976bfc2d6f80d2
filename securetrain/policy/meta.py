# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The metadata of a policy's field: a description, who enforces it, and what its text may be."""

from typing import Final

from msgspec import Meta

EGRESS: Final = (
    r"^(?:\*|[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])"
    r":(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])\Z"
)
"""A place in ``network.egress``: a name or address in lower case, or ``*``, and a port."""


def meta(description: str, *enforced_by: str, **bounds: float) -> Meta:
    """Describe a field; `enforced_by` is any of run, audit, verify."""
    return Meta(description=description, extra={"enforced_by": enforced_by}, **bounds)  # type: ignore[call-overload,no-any-return]
