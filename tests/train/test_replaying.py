# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps that cannot be done again are a refusal, never a pass."""

from pathlib import Path

import pytest

from securetrain.chain.replay import AskedSegment, Request
from securetrain.core.errors import IntegrityError
from securetrain.policy.load import load_policy
from securetrain.train import replay_run
from securetrain.train.config import parse_job
from tests.train.jobs import JOB

ASKED = AskedSegment(
    begin="", begin_digest="", end="x", end_digest="ab" * 32, after=0, last=1, rates=(), again=True
)


def test_steps_that_fail_are_refused_with_their_own_words(tmp_path: Path, monkeypatch):
    def fail(command, words):
        words.write(b"error ST-CKPT-130: its bytes were changed")
        return 13

    monkeypatch.setattr(replay_run, "_wait", fail)
    request, policy = Request(trust="t", segments=(ASKED,)), load_policy("dev").policy
    with pytest.raises(IntegrityError) as refused:
        replay_run.run_steps(tmp_path, parse_job(JOB, "job"), request, policy, 1)
    assert refused.value.code == "ST-CHAN-025"
    assert "its bytes were changed" in refused.value.what
