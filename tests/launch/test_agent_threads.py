# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Several workers of one node get one thread each: with two under contention a training step took
3.5 times as long. Somebody who says otherwise is heard.
"""

import os

from securetrain.launch.agent.elastic_agent import make_plan
from securetrain.launch.options import parse, scan
from securetrain.policy.load import load_policy
from tests.tables import items


@items("workers, said, expected", ("2", None, "1"), ("2", "4", "4"), ("1", None, None))
def test_threads_of_a_worker(tmp_path, monkeypatch, workers, said, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", said or "")
    if said is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    argv = ["--nproc-per-node", workers, "train.py"]
    plan = make_plan(parse(argv, scan(argv)), load_policy("dev").policy, tmp_path)
    assert os.environ.get("OMP_NUM_THREADS") == expected
    assert any("OMP_NUM_THREADS is 1" in note for note in plan.notes) == (expected == "1")
