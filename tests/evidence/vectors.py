# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Real third-party evidence, read from where ``SECURETRAIN_VECTORS`` points; never kept here."""

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "vectors"
ROOT = Path(os.environ.get("SECURETRAIN_VECTORS", _DEFAULT)) / "attestation"

_missing = pytest.mark.skipif(
    not (ROOT / "MANIFEST.tsv").is_file(),
    reason=f"NO REAL EVIDENCE WAS CHECKED: no vectors at {ROOT} (set SECURETRAIN_VECTORS)",
)


def needs_vectors(test):
    """Mark a test that reads real evidence; without it the test is skipped, loudly."""
    return pytest.mark.vectors(_missing(test))


def vector(name: str) -> bytes:
    """One file, by its path below the folder of vectors."""
    return (ROOT / name).read_bytes()


def vectors(pattern: str) -> list[str]:
    """Names of the files that match, sorted; empty without vectors."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
