# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From which checkpoint a run goes on after an eviction, and which ones it sets aside."""

import hashlib
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from securetrain.artifacts.lineage import quarantine
from securetrain.artifacts.lineage.head import open_head
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    Parent,
    ParentRole,
    TreeInfo,
    digest_of,
    sign,
)
from securetrain.artifacts.tree.layout import INDEX, QUARANTINE, STATEMENT
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.core.vocabulary import Decision
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole
from securetrain.launch.checkpoints.restart import Restart
from securetrain.ledger import events, verify_ledger
from securetrain.rendezvous.wire.membership import Evicted
from securetrain.testing.clock import SettableClock
from securetrain.testing.runs import make_run
from tests.launch.worlds import clean_environment, run_plain
from tests.rendezvous.worlds import entry, membership_of
from tests.vocabulary import refused

START = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def at(seconds):
    return START + timedelta(seconds=seconds)


def gone(last_good=None, **changes):
    fields = {"node": "node-b", "code": "ST-ATTS-007", "epoch": 3, "led": False}
    return Evicted(**{**fields, "last_good": last_good or at(50), **changes})


def statement(created=None, **said):
    data = json.dumps(
        {"tensors": [], "values": [{"fqn": "n", "value": said.get("step", 1)}], "version": 1},
        separators=(",", ":"),
    ).encode()
    index = IndexFile(name=INDEX, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    fields = {
        "run_id": "run-1",
        "step": 1,
        "seq": 0,
        "save_id": "ab" * 16,
        "created": created or at(10),
        "world_size": 1,
        "tree": TreeInfo.of(TreeParams()),
        "files": [],
        "index": index,
    }
    return CheckpointPredicate(**{**fields, **said}), data


# A run directory.


def membership(epoch, *evicted):
    member = entry(0, node="node-a")
    return membership_of(member, epoch=epoch, round=epoch, issued=at(100), evicted=evicted)


class Run:
    """A run of two nodes: checkpoints of steps 1, 2, 3, ... at 10, 20, 30, ... seconds."""

    def __init__(self, tmp_path):
        self.clock = SettableClock(START)
        self.made = make_run(tmp_path / "run", clock=self.clock)
        self.said: list[str] = []
        self.restart = Restart(
            run=self.made.run_dir,
            run_id="run-1",
            ledger=self.made.ledger(),
            clock=self.clock,
            say=self.said.append,
        )

    def begin(self, epoch, *evicted, ahead=timedelta(0)):
        self.restart.begin(membership(epoch, *evicted), lambda time: time + ahead)

    def save(self, step, *, key="checkpoint", noted=True, **said):
        self.clock.set(at(10 * step))
        predicate, index = statement(**{"created": self.clock(), "step": step, **said})
        path = self.made.run_dir.checkpoint(step)
        path.mkdir()
        (path / INDEX).write_bytes(index)
        (path / STATEMENT).write_bytes(sign(predicate, path.name, self.made.keys[key]))
        digest = digest_of(predicate)
        if noted:
            self.made.ledger("rank-0").write(
                events.CheckpointSigned(subject=path.name, step=step, digest=digest)
            )
        return digest

    @property
    def names(self):
        """All but the head, which says what is the newest of these."""
        found = {path.name for path in self.made.run_dir.checkpoints.iterdir()}
        return sorted(found - {"head.json", ".head.lock"})

    def events(self, name):
        data = self.made.run_dir.ledger.read_bytes()
        entries = verify_ledger(data, self.made.trust.keys_for(TrustRole.LEDGER)).entries
        return [e.body.event for e in entries if e.body.event.event == name]

    def codes(self, name):
        path = self.made.run_dir.checkpoints / name
        found = verify_path(path, trust=self.made.trust, policy=None, now=self.clock())
        return [problem.code for problem in found.problems]


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    made.begin(3)
    return made


def test_without_an_eviction_nothing_happens_but_an_epoch(run):
    run.save(1)
    run.begin(4)
    assert run.names == ["step-00000001"]
    assert [event.details["epoch"] for event in run.events("epoch-started")] == [3, 4]
    assert run.said == []


def test_what_was_made_after_the_last_good_evidence_is_set_aside(run):
    digests = [run.save(step) for step in (1, 2, 3, 4)]
    run.begin(4, gone(at(25)))
    assert run.names == [
        "step-00000001",
        "step-00000002",
        "step-00000003.quarantined-abababababab",
        "step-00000004.quarantined-abababababab",
    ]
    assert run.codes("step-00000002") == []
    assert run.codes("step-00000003.quarantined-abababababab") == ["ST-CKPT-160"]
    refused = run.events("checkpoint-quarantined")
    assert [event.details["digest"] for event in refused] == digests[2:]
    assert {(event.decision, event.code) for event in refused} == {(Decision.REFUSE, "ST-CKPT-160")}
    (point,) = run.events("restart-point")
    assert (point.subject, point.details["step"]) == ("step-00000002", 2)
    assert point.details["digest"] == digests[1]
    (distrusted,) = run.events("node-distrusted")
    assert (distrusted.subject, distrusted.details["cause"]) == ("node-b", "ST-ATTS-007")
    assert "the workers go on from step-00000002" in run.said


def test_no_checkpoint_is_old_enough(run):
    run.save(1)
    run.begin(4, gone(at(0)))
    assert run.names == ["step-00000001.quarantined-abababababab"]
    (point,) = run.events("restart-point")
    assert (point.subject, point.details["step"]) == ("the beginning", 0)


def test_each_eviction_is_judged_once(run):
    run.save(1)
    run.begin(4, gone(at(5)))
    run.save(2)  # in epoch 4, without the node
    run.begin(5, gone(at(5)))
    assert run.names == ["step-00000001.quarantined-abababababab", "step-00000002"]
    assert len(run.events("node-distrusted")) == 1
    run.save(3)
    run.begin(6, gone(at(5)), gone(at(29), node="node-c", epoch=5))
    assert run.names[1:] == ["step-00000002", "step-00000003.quarantined-abababababab"]


def test_two_evictions_at_once_the_earlier_one_counts(run):
    for step in (1, 2, 3):
        run.save(step)
    run.begin(4, gone(at(25)), gone(at(15), node="node-c"))
    assert run.names[0] == "step-00000001"
    assert len([name for name in run.names if "quarantined" in name]) == 2


def test_a_copy_under_another_name_is_the_same_checkpoint(run):
    """Its statement says that it is older; the ledger knows its digest."""
    run.save(2, created=at(1))
    path = run.made.run_dir.checkpoint(2)
    shutil.copytree(path, run.made.run_dir.checkpoint(1))
    predicate, _ = statement(at(1), step=2, save_id="cd" * 16)
    signed = sign(predicate, "step-00000001", run.made.keys["checkpoint"])
    (run.made.run_dir.checkpoint(1) / STATEMENT).write_bytes(signed)
    run.begin(4, gone(at(15)))
    assert not [name for name in run.names if "quarantined" not in name]


def test_the_same_step_can_be_saved_again(run):
    first = run.save(1)
    run.begin(4, gone(at(5)))
    assert run.save(1, save_id="cd" * 16) == first  # the same bytes
    assert run.codes("step-00000001") == []
    run.begin(5, gone(at(5)))
    assert "step-00000001" in run.names


def test_by_this_nodes_clock(run):
    run.save(1)
    run.begin(4, gone(at(15)), ahead=-10 * SECOND)  # the coordinator's clock is fast
    assert run.names == ["step-00000001.quarantined-abababababab"]


def test_a_checkpoint_that_the_ledger_does_not_know(run):
    """A script of the user's own saves without telling the ledger."""
    run.save(1, noted=False)
    run.save(2, noted=False)
    run.begin(4, gone(at(15)))
    assert run.names == ["step-00000001", "step-00000002.quarantined-abababababab"]


def test_a_forged_time_on_a_checkpoint_that_only_the_evicted_node_vouches_for(run):
    run.save(1, noted=False, created=at(0))
    run.begin(4, gone(at(5), led=True))
    assert run.names == ["step-00000001.quarantined-abababababab"]


def test_what_another_node_has_set_aside_is_noted_here_too(run):
    """Each node has a ledger of its own; the checkpoints are on a disk that they share."""
    digest = run.save(1)
    path = run.made.run_dir.checkpoint(1)
    path.rename(path.with_name("step-00000001.quarantined-abababababab"))
    run.begin(4, gone(at(5)))
    (refused,) = run.events("checkpoint-quarantined")
    assert refused.details["digest"] == digest


def test_what_no_trusted_key_signed_is_left_where_it_is(run):
    run.save(1, key="worker", noted=False)
    (run.made.run_dir.checkpoints / "step-00000009").mkdir()
    run.begin(4, gone(at(5)))
    assert run.names == ["step-00000001", "step-00000009"]


def test_a_ledger_that_was_changed_ends_the_run(run):
    run.save(1)
    ledger = run.made.run_dir.ledger
    ledger.write_bytes(ledger.read_bytes().replace(b'"step":1', b'"step":2'))
    refused(IntegrityError, "ST-LEDG-003", run.begin, 4, gone(at(5)))
    assert run.names == ["step-00000001"]


def test_a_judgement_that_was_cut_short_is_made_again(run, monkeypatch):
    run.save(1)
    run.save(2)

    def fail(*_):
        raise UsageError("ST-USAG-006", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr("securetrain.artifacts.lineage.quarantine.set_aside", fail)
        with pytest.raises(UsageError):
            run.begin(4, gone(at(5)))
    assert run.events("node-distrusted") == []
    run.begin(4, gone(at(5)))
    assert not [name for name in run.names if "quarantined" not in name]


def save_after(run, step, previous, **said):
    parents = [Parent(digest=previous, role=ParentRole.PREVIOUS)]
    return run.save(step, noted=False, parents=parents, seq=step, **said)


def test_a_checkpoint_that_a_death_left_without_an_entry_is_entered(run):
    second = save_after(run, 2, run.save(1))
    run.begin(4)
    assert [(e.subject, e.details["digest"]) for e in run.events("checkpoint-recovered")] == [
        ("step-00000002", second)
    ]
    assert run.said[-1].startswith("step-00000002 was saved when the run died")
    data = (run.made.run_dir.checkpoints / "head.json").read_bytes()
    assert open_head(data, run.made.trust).digest == second
    run.begin(5)
    assert len(run.events("checkpoint-recovered")) == 1


def test_what_follows_and_is_in_doubt_is_set_aside_and_not_entered(run):
    save_after(run, 2, run.save(1))
    run.begin(4, gone(at(15)))
    assert run.events("checkpoint-recovered") == []
    assert [name for name in run.names if "quarantined" not in name] == ["step-00000001"]


def test_what_somebody_else_signed_is_not_entered(run):
    save_after(run, 2, run.save(1), key="dataset")
    run.begin(4)
    assert run.events("checkpoint-recovered") == []
    assert run.names == ["step-00000001", "step-00000002"]


def test_what_was_being_written_goes_before_the_workers_start(run):
    (run.made.run_dir.checkpoints / f"step-00000002.tmp-{'ab' * 16}").mkdir()
    run.begin(4)
    assert run.names == []


def test_a_rollback_that_a_death_cut_short_is_done_to_its_end(run, monkeypatch):
    """Else the run would go on from what the excluded rank had a part in."""
    for step in (1, 2, 3):
        run.save(step)
    said = events.RolledBack(subject="step 35", to=1, ranks="2", evidence="bad")
    run.made.ledger("rank-0").write(said)
    real, calls = quarantine.set_aside, []

    def dying(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr("securetrain.artifacts.lineage.quarantine.set_aside", dying)
        with pytest.raises(KeyboardInterrupt):
            run.restart.roll_back(said)
    assert len([name for name in run.names if "quarantined" not in name]) == 2
    run.begin(4)
    assert [name for name in run.names if "quarantined" not in name] == ["step-00000001"]
    assert run.said[-1] == "the workers go on from step-00000001"
    run.begin(5)
    assert len(run.events("restart-point")) == 1


def test_the_record_is_signed_by_the_runs_key(run):
    run.save(1)
    run.made.run_dir.key("checkpoint").unlink()
    PrivateKey.generate().save(run.made.run_dir.key("checkpoint"))
    run.begin(4, gone(at(5)))
    moved = run.made.run_dir.checkpoints / run.names[0]
    assert (moved / QUARANTINE).exists()
    assert run.codes(moved.name) == ["ST-CKPT-160"]  # refused even so


# Plain torchelastic, for comparison.

STOCK = """
import os, pathlib, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
folder, attempt = pathlib.Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"]
saved = sorted(folder.glob("step-*.pt"))
weight = torch.load(saved[-1]) if saved else torch.zeros(1)
(folder / f"began-{attempt}").write_text(str(weight.item()))
for step in range(len(saved), len(saved) + 3):
    weight += 1000.0 if step == 2 else 1.0  # the third step is the evicted node's
    torch.save(weight, folder / f"step-{step}.pt")
os._exit(1 if attempt == "0" else 0)
"""


@pytest.mark.dist
def test_plain_torchelastic_goes_on_from_the_newest_checkpoint_whatever_it_is(tmp_path):
    """The control: nobody asks who had a hand in it."""
    (tmp_path / "train.py").write_text(STOCK)
    run_plain(clean_environment(), "--max-restarts", 1, tmp_path / "train.py", tmp_path)
    assert (tmp_path / "began-1").read_text() == "1002.0"


# What the node keeps.


class Told:
    """Stands in for `head_tracker` and `background`: remembers what it was asked, in order."""

    problem: IntegrityError | None = None
    floors = None

    def __init__(self):
        self.asked: list[object] = []

    def receive(self, membership):
        self.asked.append(("hear", membership.epoch))

    def excuse_rollback(self, past):
        history = past()
        self.asked.append(("went back", history.restart, history.set_aside))

    def settle(self, seconds):
        assert seconds > 0
        self.asked.append("settle")


def test_the_others_are_heard_first_and_what_is_unfinished_comes_last(run):
    digests = [run.save(step) for step in (1, 2, 3)]
    told = Told()
    restart = replace(run.restart, head_tracker=told, background=told)
    restart.begin(membership(4, gone(at(25))), lambda time: time)
    went = ("went back", digests[1], frozenset({digests[2]}))
    assert told.asked == [("hear", 4), went, "settle"]


def test_what_a_background_task_was_refused_ends_the_run_before_its_workers_begin(run):
    told = Told()
    told.problem = IntegrityError("ST-CKPT-180", "not proven")
    restart = replace(run.restart, background=told)
    refused(IntegrityError, "ST-CKPT-180", restart.begin, membership(4), lambda time: time)
    assert [event.details["epoch"] for event in run.events("epoch-started")] == [3]


def test_a_rank_cannot_set_a_checkpoint_aside_nor_deal_with_an_eviction(run):
    """Such lines are a launcher's: they count for nothing, and people are told once."""
    run.save(1)
    forger = run.made.ledger("rank-0")
    forger.write(events.NodeDistrusted(subject="node-b", last_good=at(5).isoformat()))
    run.begin(4, gone(at(5)))
    assert "step-00000001" not in run.names
    (told,) = [text for text in run.said if "is ignored" in text]
    assert told.startswith("warning: entry")
    assert "(node-distrusted)" in told
    run.begin(5, gone(at(5)))
    assert sum("is ignored" in text for text in run.said) == 1
