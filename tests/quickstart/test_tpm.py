# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The story with a software TPM at the door.

Commands of README.md are tried here.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import TEST_ONLY, UNATTESTED
from securetrain.quickstart import story
from securetrain.quickstart.screen import QuietScreen
from securetrain.quickstart.story_state import Options, Story
from tests.attest.swtpms import needs_swtpm


def test_without_swtpm_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    tour = Story(
        options=Options(run_dir=tmp_path / "run", tpm=True),
        screen=QuietScreen(),
        clock=lambda: datetime.now(UTC),
        environ={},
    )
    with pytest.raises(UsageError) as caught:
        story.tell(tour)
    assert caught.value.code == "ST-USAG-004"
    assert "swtpm" in caught.value.fix


@needs_swtpm
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
def test_the_story_with_a_software_tpm(tmp_path):
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [
            sys.executable, "-m", "securetrain", "quickstart", "--tpm", "--json", "--no-drills",
            "--steps", "4", "--nproc-per-node", "1", "--run-dir", str(run_dir),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["node"] == TEST_ONLY, "never anything better, and never nothing"
    lines = (run_dir / "ledger.jsonl").read_text().splitlines()
    events = [json.loads(line)["body"]["event"] for line in lines]
    admitted = [event["details"] for event in events if event["event"] == "node-admitted"]
    assert {details["tier"] for details in admitted} == {"test-only"}
    assert all(details["reference_values"] for details in admitted)
    html = (run_dir / "report.html").read_text()
    assert TEST_ONLY in html
    assert UNATTESTED not in html
    opened = [event for event in events if event["event"] == "fleet-state-opened"]
    (folder,) = {event["subject"] for event in opened}  # of every start, the same
    assert Path(folder).joinpath("state.sqlite").exists()
