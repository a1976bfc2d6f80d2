# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The time: read here alone, and handed down."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)
