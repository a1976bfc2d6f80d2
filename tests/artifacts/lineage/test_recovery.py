# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a start finishes of what a death has interrupted, and what it leaves to be refused."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from securetrain.artifacts.lineage import head
from securetrain.artifacts.lineage.folder import REMOVING
from securetrain.artifacts.lineage.judging import Floors
from securetrain.artifacts.lineage.machine import Floor, History, Made
from securetrain.artifacts.lineage.quarantine import Quarantine, set_aside
from securetrain.artifacts.lineage.recovery import Recovery
from securetrain.artifacts.statement.statements import (
    Opened,
    Parent,
    ParentRole,
    digest_of,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import UsageError
from securetrain.ledger import events
from tests.vocabulary import refused

DATA = b"d" * 2500


class Told:
    """A ledger."""

    def __init__(self):
        self.said = []

    def write(self, said):
        self.said.append(said)

    @property
    def short(self):
        return [(type(said), said.step) for said in self.said]


class Run:
    """A run whose ledger names the checkpoint of step 1, and which has made others since."""

    def __init__(self, folder, forge, keys, trust, now):
        self.folder, self.forge, self.keys, self.trust, self.now = folder, forge, keys, trust, now
        self.ledger = Told()
        folder.mkdir()
        self.first = self.save(1, ())
        self.history = History(made=(Made(name="", step=1, digest=self.first, time=now, epoch=-1),))

    def save(self, step, after, **said):
        parents = [Parent(digest=one, role=ParentRole.PREVIOUS) for one in after]
        path = self.folder / said.pop("name", f"step-{step:08d}")
        given = {"seq": step, "step": step, "parents": parents, **said}
        return digest_of(self.forge(path, bytes([step]) * 2500, **given))

    def begin(self, floors=None, **changes):
        recovery = Recovery(
            folder=self.folder,
            run_id="run-1",
            trust=self.trust,
            ledger=self.ledger,
            key=lambda: self.keys.checkpoint,
            clock=lambda: self.now,
            floors=floors,
            files=(self.folder.parent / "metrics.jsonl",),
        )
        found = recovery.begin(changes.get("history", self.history))
        return [one.checkpoint.step for one in found]

    @property
    def head(self):
        found = head.read_head(LocalStorage(self.folder), self.trust)
        return None if found is None else found.step

    @property
    def names(self):
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def run(tmp_path, forge, keys, trust, now):
    return Run(tmp_path / "checkpoints", forge, keys, trust, now)


def test_a_folder_that_is_not_there_yet(run):
    shutil.rmtree(run.folder)
    assert run.begin() == []


def test_what_follows_is_entered_one_after_the_other_and_the_head_names_the_newest(run):
    second = run.save(2, [run.first])
    third = run.save(3, [second])
    assert run.begin() == [2, 3]
    assert run.ledger.said == [
        events.CheckpointRecovered(
            subject=f"step-{step:08d}", step=step, digest=digest, verdict="clean"
        )
        for step, digest in ((2, second), (3, third))
    ]
    assert run.head == 3
    made = tuple(
        Made(name="", step=n, digest=d, time=run.now, epoch=-1)
        for n, d in ((1, run.first), (2, second), (3, third))
    )
    before = (run.folder / "head.json").read_bytes()
    assert run.begin(history=History(made=made)) == []
    assert (run.folder / "head.json").read_bytes() == before


def test_the_first_checkpoint_of_a_run(run):
    assert run.begin(history=History()) == [1]
    assert run.head == 1


def test_a_head_that_a_death_left_behind(run):
    """The entry is there (another node's rank had made it), the head is not."""
    assert run.begin() == []
    assert run.head == 1
    assert run.ledger.said == []


def _link(run):
    run.save(2, [run.first], name="elsewhere")
    (run.folder / "step-00000002").symlink_to("elsewhere")


def _base(run):
    run.save(2, [], parents=[Parent(digest=run.first, role=ParentRole.BASE)])


def _without_statement(run):
    run.save(2, [run.first])
    (run.folder / "step-00000002" / STATEMENT).unlink()


def _copy(run):
    shutil.copytree(run.folder / "step-00000001", run.folder / "step-00000002")


def _two(run):
    run.save(2, [run.first])
    run.save(3, [run.first])


PLANTED = {
    "a stranger's": lambda run: run.save(2, [run.first], key=run.keys.stranger),
    "another run's": lambda run: run.save(2, [run.first], run_id="run-2"),
    "without a parent": lambda run: run.save(2, []),
    "of another parent": lambda run: run.save(2, ["ab" * 32]),
    "of two parents": lambda run: run.save(2, [run.first, "ab" * 32]),
    "of a base": _base,
    "an old one, renamed": _copy,
    "of another step's name": lambda run: run.save(2, [run.first], name="step-00000009"),
    "of no step's name": lambda run: run.save(2, [run.first], name="mine"),
    "a link": _link,
    "of an older step": lambda run: run.save(0, [run.first], seq=2),
    "one of two that follow": _two,
    "without a statement": _without_statement,
    "expired": lambda run: run.save(2, [run.first], expires=run.now - timedelta(days=1)),
}
"""What somebody who can write to the folder, and has no key of the run, can put there; and what
nobody can tell apart from it.
"""


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_was_planted_is_not_entered(run, plant):
    plant(run)
    before = run.names
    assert run.begin() == []
    assert run.ledger.said == []
    assert run.head == 1
    assert [name for name in run.names if name not in {"head.json", ".head.lock"}] == before


def set_two_aside(run):
    second = run.save(2, [run.first])
    opened = Opened(
        kind=Kind.CHECKPOINT,
        predicate=run.forge(run.folder / "again", seq=2, step=2),
        digest=second,
        key_ids=frozenset(),
    )
    shutil.rmtree(run.folder / "again")
    why = Quarantine(node="node-b", code="ST-ATTS-007", last_good=run.now, epoch=0, created=run.now)
    path = run.folder / "step-00000002"
    set_aside(path, opened, why, run.keys.checkpoint).rename(path)
    return second


def test_what_was_set_aside_is_not_entered_again(run, tmp_path):
    second = set_two_aside(run)
    assert run.begin() == []
    (run.folder / "step-00000002" / "quarantine.json").unlink()
    told = History(made=run.history.made, set_aside=frozenset({second}))
    assert run.begin(history=told) == []
    floors = Floors(tmp_path / "floors" / "run-1.json")
    floors.remember_set_aside("run-1", second)
    assert run.begin(floors) == []
    assert run.begin() == [2], "it was the record, the ledger and the floors that said no"


def test_nothing_below_what_this_node_has_seen_is_entered_nor_shown(run, tmp_path):
    """Folder and ledger were put back together: the node remembers a later checkpoint."""
    run.save(2, [run.first])
    floors = Floors(tmp_path / "floors" / "run-1.json")
    floors.raise_to("run-1", Floor(seq=7, digest="77" * 32), [run.keys.checkpoint.key_id])
    assert run.begin(floors) == []
    assert run.head is None


def test_a_head_that_is_not_good_is_left_to_who_asks_for_it(run):
    run.save(2, [run.first])
    (run.folder / "head.json").write_bytes(b"{}")
    assert run.begin() == [2]
    assert (run.folder / "head.json").read_bytes() == b"{}"


def test_what_was_being_written_goes_and_nothing_else(run):
    mine = [
        f"step-00000002.tmp-{'ab' * 16}",
        f"step-123456789.tmp-{'0' * 32}",
    ]
    others = [
        "step-00000002.tmp-mine",
        f"step-2.tmp-{'ab' * 16}",
        f"step-00000002.tmp-{'ab' * 16}.bak",
        f"notes.tmp-{'ab' * 16}",
    ]
    for name in (*mine, *others):
        (run.folder / name).mkdir()
        (run.folder / name / "rank-00000.bin").write_bytes(DATA)
    outside = run.folder.parent / "outside"
    outside.mkdir()
    (run.folder / f"step-00000003.tmp-{'cd' * 16}").symlink_to(outside)
    (run.folder / f".head.json.tmp-{'ab' * 6}").write_bytes(b"{")
    (run.folder / ".head.json.tmp-mine").write_bytes(b"{")
    beside = [".metrics.jsonl.tmp-mine", f".other.tmp-{'ab' * 6}", "metrics.jsonl"]
    for name in (*beside, f".metrics.jsonl.tmp-{'ab' * 6}"):
        (run.folder.parent / name).write_bytes(b"{")
    assert run.begin() == []
    left = {*others, f"step-00000003.tmp-{'cd' * 16}", ".head.json.tmp-mine"}
    assert set(run.names) == {"step-00000001", "head.json", ".head.lock", *left}
    assert outside.is_dir()
    assert sorted(path.name for path in run.folder.parent.iterdir() if path.is_file()) == beside


def test_a_removal_is_finished(run):
    """With its statement it may not have been said yet; an empty folder was."""
    run.save(0, [], name=f"step-00000000{REMOVING}")
    (run.folder / f"step-00000009{REMOVING}").mkdir()
    (run.folder / f"mine{REMOVING}").mkdir()
    (run.folder / f"step-00000008{REMOVING}").mkdir()
    (run.folder / f"step-00000008{REMOVING}" / "notes").write_bytes(b"somebody's")
    run.begin()
    assert run.ledger.short == [(events.CheckpointRemoved, 0)]
    left = {f"mine{REMOVING}", f"step-00000008{REMOVING}"}
    assert set(run.names) == {"step-00000001", "head.json", ".head.lock", *left}


def test_a_disk_that_fails_is_told_as_such(run, monkeypatch):
    (run.folder / f"step-00000002.tmp-{'ab' * 16}").mkdir()

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "iterdir", fail)
    refused(UsageError, "ST-USAG-002", run.begin)
