# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script that exchanges the folder above its run directory: nothing is written where it leads."""

import os
from dataclasses import replace

import pytest

from securetrain.core import RunDir
from tests.launch.worlds import write_policy

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
SCRIPT = """
import os, pathlib, sys
above = pathlib.Path(os.environ["SECURETRAIN_RUN_DIR"]).parents[1]
above.rename(sys.argv[1])
above.symlink_to(sys.argv[2])
sys.exit(1)
"""
CODE = "ST-RUNT-023"


def test_root_writes_nothing_elsewhere(launch, tmp_path):
    """And starts no worker again; `tests/core/test_held.py` has the control."""
    sandbox = "required" if os.geteuid() == 0 else "preferred"
    policy = write_policy(tmp_path / "policy.yaml", host={"sandbox": sandbox, "preflight": "off"})
    theirs = tmp_path / "victim" / "here" / "r1"
    (theirs / "checkpoints").mkdir(parents=True, mode=0o700)
    (theirs / "run.json").write_text("theirs")
    words = ("--standalone", "--policy", policy, "--output", tmp_path, "--max-restarts", "2")
    (tmp_path / "script.py").write_text(SCRIPT)
    script = (tmp_path / "script.py", tmp_path / "moved", tmp_path / "victim")
    done = launch(tmp_path / "runs" / "here" / "r1", *words, "--nproc-per-node", "1", *script)
    assert CODE in done.err
    assert done.code == 4
    places = {one.relative_to(theirs).as_posix() for one in theirs.rglob("*")}
    assert {one for one in places if "workers" not in one} == {"checkpoints", "run.json"}
    assert (theirs / "run.json").read_text() == "theirs"
    there = replace(done, run=RunDir(tmp_path / "moved" / "here" / "r1"))
    assert [event.code for event in there.events("run-directory-refused")] == [CODE]
