# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Answers to violations: files that changed while the kernel measured them (IMA)."""

from collections.abc import Sequence

from securetrain.evidence.tpm.path_patterns import PathPatterns
from securetrain.evidence.tpm.runtime_policy import ViolationMode, ViolationRule


class Violations:
    """Answers to violations, by path."""

    __slots__ = ("_otherwise", "_rules")

    def __init__(self, rules: Sequence[ViolationRule] = (), *, allow: bool) -> None:
        """Compile the rules.

        Args:
            rules: the first that matches a path counts.
            allow: the answer where none does: log, else refuse.

        Raises:
            AttestationError: ST-ATTS-323.
        """
        self._rules = tuple(
            (PathPatterns([rule.paths], "ima.violations"), rule.mode) for rule in rules
        )
        self._otherwise = ViolationMode.LOG if allow else ViolationMode.REFUSE

    def mode(self, path: bytes) -> ViolationMode:
        """The answer for a path."""
        return next((mode for rule, mode in self._rules if rule.matches(path)), self._otherwise)
