# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A job of a drill ends in time, with all that it started, and what it said is there."""

import pickle
from pathlib import Path

import pytest

from securetrain.core import RunDir
from securetrain.drills import jobs
from securetrain.drills.pickles import calling, marked_by, marker_pickle
from securetrain.drills.process_tree import wait_until

HANGS = """\
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("text", "code"), [("print('well')", 0), ("exit('badly')", 1)])
def test_how_it_ended_and_what_it_said_on_both_streams(tmp_path, text, code):
    (tmp_path / "job.py").write_text(text)
    assert jobs.run("job", cwd=tmp_path) == (code, "badly\n" if code else "well\n")


def test_what_takes_too_long_is_killed_with_its_children(tmp_path):
    (tmp_path / "job.py").write_text(HANGS)
    code, said = jobs.run("job", cwd=tmp_path, patience=1.5)
    assert code is None
    assert wait_until(lambda: not Path(f"/proc/{int(said)}/fd/0").exists(), 5)


def test_ours_names_the_run_directory_before_the_script():
    words = jobs.ours(RunDir(Path("/run-1")), "s.py", "--run-dir=mine")
    assert words[:5] == ("securetrain", "run", "--standalone", "--run-dir", "/run-1")


def test_a_marker_comes_to_the_original_and_a_call_to_its_result(tmp_path):
    marker = tmp_path / "marker"
    assert pickle.loads(marker_pickle(marker, pickle.dumps({"a": 1}))) == {"a": 1}
    assert pickle.loads(marker_pickle(marker)) is None
    assert len(marked_by(marker)) == 2
    assert pickle.loads(calling(divmod, 7, 2)) == (3, 1)
