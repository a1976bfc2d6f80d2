# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From workers' reports to one sentence about what nobody signed."""

import msgspec
import pytest

from securetrain.core.vocabulary import NOT_SIGNED, EnforcementMode
from securetrain.launch.process.workerlog import SaveReport, WorkerReport
from securetrain.launch.summary.checkpoint_summary import NOT_KNOWN, at_end, at_start
from securetrain.launch.summary.run_summary import CheckpointSummary
from securetrain.policy import load_policy

POLICY = load_policy("hardened").policy


def worker(rank, attempt=0, places=(), **ways):
    unsigned = {name.replace("_", "."): number for name, number in ways.items()}
    saves = SaveReport(unsigned=unsigned, places=places)
    return WorkerReport(rank=rank, attempt=attempt, saves=saves)


def end(*reports, workers=None, protected=True, policy=POLICY):
    number = len({one.rank for one in reports}) if workers is None else workers
    return at_end(policy, reports, protected=protected, num_workers=number)


def test_nothing_was_saved_and_everybody_says_so():
    assert end(worker(0), worker(1)) == CheckpointSummary(label="")


def test_what_ranks_save_together_is_one_save_and_what_an_earlier_attempt_saved_is_there():
    found = end(
        worker(0, dcp_save=2, torch_save=1, places=("/a", "/b")),
        worker(1, dcp_save=2, places=("/a",)),
        worker(0, attempt=1, dcp_save=1, places=("/c",)),
        worker(1, attempt=1),
    )
    assert found.unsigned == 4
    assert found.ways == {"dcp.save": 3, "torch.save": 1}
    assert found.places == ("/a", "/b", "/c")
    assert found.is_known
    assert found.label.startswith(f"{NOT_SIGNED}: 4 saves by dcp.save, torch.save, first /a; ")
    assert "checkpoint.require_rank_signatures" in found.label
    assert "securetrain.artifacts" in found.label
    assert found.fields[0] == "checkpoint.require_head"


def test_one_save_under_a_policy_that_demands_nothing_of_it():
    checkpoint = msgspec.structs.replace(
        POLICY.checkpoint,
        require_head=False,
        require_rank_signatures=False,
        require_clean_verdict=False,
    )
    found = end(
        worker(0, torch_save=1, places=("/a",)),
        policy=msgspec.structs.replace(POLICY, checkpoint=checkpoint),
    )
    assert "1 save by torch.save" in found.label
    assert "not enforced" not in found.label
    assert found.fields == ()


def test_who_said_nothing_may_have_saved():
    found = end(worker(0), workers=3)
    assert found.label == f"{NOT_KNOWN}: 2 of 3 workers left no report"
    assert not found.is_known
    old = WorkerReport(rank=1, attempt=0)
    assert end(worker(0), old, workers=2).label == f"{NOT_KNOWN}: 1 of 2 workers left no report"
    mixed = end(worker(0, dcp_save=1, places=("/a",)), workers=2)
    assert mixed.label.startswith(NOT_SIGNED)
    assert mixed.label.endswith("1 of 2 workers left no report")


def test_without_the_shim_nobody_knows():
    found = end(workers=1, protected=False)
    assert found.label == f"{NOT_KNOWN}: the workers run without the shim"
    assert at_start(POLICY, protected=False) == found.label


@pytest.mark.parametrize(("mode", "word"), [("report", "said"), ("require", "refused")])
def test_the_start_says_what_will_follow(mode, word):
    policy = msgspec.structs.replace(POLICY, enforcement=EnforcementMode(mode))
    assert f"other saves are {word} (enforcement: {mode})" in at_start(policy, protected=True)


def test_a_worker_that_lies_repaints_no_screen_and_breaks_no_ledger():
    lies = {f"way-{n}": 1 for n in range(100)} | {"\x1b[2Jsucceeded\n": 10**30, "less": -5}
    places = ("/a\nsecuretrain: succeeded", "\x1b[2J", "/" + 10_000 * "x", *map(str, range(50)))
    reports = [WorkerReport(rank=0, attempt=0, saves=SaveReport(unsigned=lies, places=places))]
    found = end(*reports)
    assert found.label.isprintable()
    assert len(found.ways) == len(found.places) == 16
    assert all(text.isprintable() and len(text) <= 300 for text in (*found.ways, *found.places))
    assert found.unsigned <= 1_000_015
    alone = [
        WorkerReport(rank=0, attempt=0, saves=SaveReport(unsigned={"less": -5}, places=places))
    ]
    assert end(*alone) == CheckpointSummary(label="")
