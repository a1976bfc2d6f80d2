# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The exit codes of every command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command; documented in docs/reference/exit-codes.md."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    INCOMPLETE = 3
    INTEGRITY = 4
    UNSIGNED = 10
    BAD_SIGNATURE = 11
    POLICY = 12
    CONTENT = 13
    FILES = 14
    STALE = 15
    REVOKED = 16
    LINEAGE = 17
    LOG_PROOF = 18
    UNSAFE_CONTENT = 19
    IO = 20
    INTERRUPTED = 130
