# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from securetrain.core.nodestate import NodeState


def test_a_run_has_a_file_of_its_own_whatever_it_is_called():
    state = NodeState(Path("/var/lib/securetrain"))
    names = {state.floors(run) for run in ("job-1", "job-2", "../../etc/passwd", "")}
    assert len(names) == 4
    assert {path.parent.parent for path in names} == {Path("/var/lib/securetrain/floors")}


def test_nothing_lies_in_a_run_directory():
    state = NodeState(Path("/state"))
    for path in (state.floors("r"), state.witness_key, state.witness_seen):
        assert path.is_relative_to("/state")
