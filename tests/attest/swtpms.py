# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tests that use a software TPM; without swtpm they are skipped, loudly."""

import pytest

from securetrain.testing.swtpm import missing_commands

without_swtpm = pytest.mark.skipif(
    bool(missing_commands()),
    reason="NO TPM WAS USED: swtpm is not installed (python tools/system_packages.py)",
)


def needs_swtpm(test):
    """Mark a test that starts swtpm."""
    return pytest.mark.tpm(without_swtpm(test))
