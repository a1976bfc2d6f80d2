# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Names below a run directory: each has one place, a docstring and a row in the reference."""

from pathlib import Path

import pytest

from securetrain.core.rundir import RunDir

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "run-directory.md"
NAMES = [name for name, kind in vars(RunDir).items() if type(kind).__name__ == "_Below"]


def test_each_name_has_a_place_of_its_own_and_is_explained(tmp_path):
    run, page = RunDir(tmp_path), PAGE.read_text("utf-8")
    places = {name: getattr(run, name) for name in NAMES}
    assert len(set(places.values())) == len(NAMES) > 20
    assert {place.parent for place in places.values()} == {tmp_path}
    assert [name for name in NAMES if not getattr(RunDir, name).__doc__] == []
    assert [p.name for p in places.values() if f"`{p.name}" not in page] == []


def test_workers_may_write_neither_keys_nor_what_the_launcher_says(tmp_path):
    run = RunDir(tmp_path)
    theirs = {*run.worker_writable}
    assert {run.checkpoints, run.metrics} <= theirs
    assert not theirs & {run.keys, run.ledger, run.evidence, run.trust, run.resolved_policy}
    with pytest.raises(AttributeError):
        setattr(run, "root", tmp_path)  # noqa: B010
