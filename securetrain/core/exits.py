# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The exit codes of every command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The number that a command ends with; docs/reference/codes.md lists them.

    The string below each is that page's text.
    """

    OK = 0
    """clean"""
    FAILURE = 1
    """findings, a refusal or a failure"""
    USAGE = 2
    """wrong usage, or an invalid policy, job or check file"""
    INCOMPLETE = 3
    """evidence is incomplete: more unknowns than the policy accepts"""
    INTEGRITY = 4
    """facts, policy or ledger are not what was signed"""
    UNSIGNED = 10
    """an artifact is unsigned or its statement is malformed"""
    BAD_SIGNATURE = 11
    """a signature does not verify"""
    POLICY = 12
    """the signer or the artifact does not meet the trust root or the policy"""
    CONTENT = 13
    """the content is not what was signed"""
    FILES = 14
    """a file is missing, extra or unsafe"""
    STALE = 15
    """expired, rolled back or frozen"""
    REVOKED = 16
    """revoked"""
    LINEAGE = 17
    """the lineage is broken"""
    LOG_PROOF = 18
    """a transparency-log proof is missing or wrong"""
    UNSAFE_CONTENT = 19
    """the content would have to be unpickled, or lies about itself"""
    IO = 20
    """a file cannot be read or written"""
    INTERRUPTED = 130
    """interrupted (Ctrl-C)"""
