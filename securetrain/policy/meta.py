# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The metadata of a policy's field: a description, and who enforces it."""

from msgspec import Meta


def meta(description: str, *enforced_by: str, **bounds: float) -> Meta:
    """Describe a field; `enforced_by` is any of run, audit, verify."""
    return Meta(description=description, extra={"enforced_by": enforced_by}, **bounds)  # type: ignore[call-overload,no-any-return]
