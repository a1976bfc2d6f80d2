# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The thirty swaps of D-CKPT-SWAP, in this process."""

import pytest

from securetrain.artifacts.statement import expectation
from securetrain.drills.artifact_swap import hardened

pytest.importorskip("tuf")


def test_every_swap_is_taken_unasked_and_refused_when_asked(tmp_path):
    found = hardened(tmp_path)
    assert found.evidence.startswith("30 swaps")
    assert found.refused, found.evidence
    assert not found.succeeded


def test_the_drill_notices_that_nothing_is_compared(tmp_path, monkeypatch):
    """The drill's own control: without the one place that judges, it is not passed."""
    monkeypatch.setattr(expectation, "compare", lambda *_: [])
    found = hardened(tmp_path)
    assert found.succeeded
    assert not found.refused
    assert "taken instead of CKPT-125" in found.evidence
