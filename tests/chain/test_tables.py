# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The tables of steps: every verdict that they speak against is found, and every made-up seed."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    GradientRecord,
    GradientVerdict,
    Opened,
    Parent,
)
from securetrain.artifacts.tree.layout import Kind
from securetrain.chain import documents, packing, tables
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.judging import judge
from securetrain.chain.links import Given, LinkVerdict, Subject, code_of
from securetrain.chain.records import (
    Recorder,
    StepRecord,
    StepRecords,
    TabledRecords,
    recorded,
    records_of,
)
from securetrain.chain.store import InMemory
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.guard import Judged, Layout, StepTable, hash_of
from securetrain.guard.openings import anchors_of, opening_of
from securetrain.policy.load import load_policy
from tests import vocabulary
from tests.chain.switches import hold
from tests.chain.worlds import NOW, Job, Segment, opened

TABLES = ChainLink.TABLES
RANKS, GROUPS, SIZE = 4, ("a", "b", "c"), 64
LAYOUT = Layout(
    ranks=RANKS,
    groups=GROUPS,
    parts=1,
    size=SIZE,
    keys=1,
    owners=(0,) * RANKS,
    roundoff=(2.0**-24).hex(),
    near_zero=(0.0).hex(),
    batches=(("0|a|96|1|torch.float32|()|a:0,b:32,c:64;",),),
)


@dataclass
class Beacon:
    """The ranks' chains of preimages."""

    length: int = 64
    seed: int = 3
    at: int = 0
    chains: list[list[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for rank in range(RANKS):
            links = [hashlib.sha256(bytes([self.seed, rank])).digest()]
            while len(links) <= self.length:
                links.append(hash_of(links[-1]))
            self.chains.append(links[::-1])

    @property
    def anchors(self) -> bytes:
        return anchors_of([links[0] for links in self.chains])

    def opening(self, context: str = "batch|0|1", *, skip: int = 0) -> bytes:
        self.at += 1 + skip
        return opening_of(context, [links[self.at] for links in self.chains])


@dataclass
class Guarded:
    """A guard's word on steps whose gradients are alike, and lies about them."""

    beacon: Beacon = field(default_factory=Beacon)
    seed: int = 0
    spoil: dict[int, Callable[[dict[str, np.ndarray]], None]] = field(default_factory=dict)
    """By step, what becomes of the ranks' words."""
    layout: Layout = LAYOUT
    other: dict[int, Layout] = field(default_factory=dict)
    """By step, another layout."""
    context: dict[int, str] = field(default_factory=dict)
    skip: dict[int, int] = field(default_factory=dict)
    """By step, draws that something else took before it."""
    under: dict[int, bytes] = field(default_factory=dict)
    """By step, the seed that the rows say they were made under."""
    learned: int = 0
    anchored: bool = False

    def step(self, step: int) -> Judged:
        rng = np.random.default_rng([self.seed, step])
        common = rng.standard_normal((len(GROUPS), SIZE))
        groups = common + 0.5 * rng.standard_normal((RANKS, len(GROUPS), SIZE))
        said = {"groups": groups, "received": groups.mean(axis=0)[None].repeat(RANKS, axis=0)}
        self.spoil.get(step, lambda _: None)(said)
        numbers = np.concatenate(
            [
                said["groups"].sum(axis=1, keepdims=True),
                said["groups"],
                said["received"],
                np.zeros_like(said["received"]),
            ],
            axis=1,
        ).astype("<f4")
        opening = self.beacon.opening(
            self.context.get(step, "batch|0|1"), skip=self.skip.get(step, 0)
        )
        seed = hashlib.sha256(opening).digest()
        layout = self.other.get(step, self.layout)
        table = StepTable(layout=layout, unopened=((),), scaled=False, rows=[])
        digest = table.transcript([self.under.get(step, seed)])
        rows = [digest + numbers[rank].tobytes() for rank in range(RANKS)]
        anchors, self.anchored = b"" if self.anchored else self.beacon.anchors, True
        self.learned += 1
        return Judged(
            table=StepTable(layout=layout, unopened=((),), scaled=False, rows=rows),
            seeds=(seed,),
            openings=(opening,),
            anchors=anchors,
            learned=self.learned,
        )


@dataclass
class Tabled(Segment):
    """The first checkpoint of a run, whose records name tables."""

    after: int = 0
    count: int = 12
    guarded: Guarded = field(default_factory=Guarded)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy = self.pieces.put(canonical.encode(load_policy("dev").policy))

    def record(self, order: Any = None, **step: Any) -> list[bytes]:
        del order
        taken = Recorder(
            run=self.run, order=self.order, after=self.after, keep=self.pieces.pieces.__setitem__
        )
        for number in range(self.after + 1, self.after + self.count + 1):
            said = {"loss": 5.5 / number, "norm": 1.25, "lr": 0.1, "verdict": "clean"}
            one = self.guarded.step(number)
            taken.add(step=number, table=one, **(said | {"watched": True} | step))  # type: ignore[arg-type]
        self.anew = taken
        return [line for page in taken.taken().pages for line in page[:-1].split(b"\n")]

    def kept(self, **changes: Any) -> str:
        digest = self.keep(recorded(self.run, self.after, self.lines, self.order, tabled=True))
        if not changes:
            return digest
        said = documents.decode(self.pieces.pieces[digest], TabledRecords)
        return self.pieces.keep(msgspec.structs.replace(said, **changes))

    def said(self, digest: str | None, **changes: Any) -> CheckpointPredicate:
        last = self.after + self.count
        fields: dict[str, Any] = {
            "seq": 1,
            "parents": [],
            "gradients": GradientRecord(
                verdict=GradientVerdict.CLEAN, judged=last, clean_steps=last
            ),
            "bound": Bound(step_records=digest, job=self.bound_job, policy=self.policy),
        }
        return super().said(digest, **(fields | changes))

    def verdict(self, said: CheckpointPredicate, known: Any = None) -> LinkVerdict:
        opened = Opened(
            kind=Kind.CHECKPOINT,
            predicate=said,
            digest="cc" * 32,
            key_ids=frozenset(),
            statement="c0" * 32,
        )
        subject = Subject(opened=opened, known=known or {})
        given = Given(trust=self.job.roles.trust(), pieces=self.pieces, now=NOW)
        return judge(TABLES, subject, given)


@pytest.fixture
def tabled(job: Job) -> Tabled:
    return Tabled(job)


def test_honest_tables_show_the_verdicts(tabled):
    verdict = tabled.verdict(tabled.said(tabled.kept()))
    assert verdict.state is LinkState.VERIFIED, verdict
    assert "12 of 12 steps clean" in verdict.what


def test_draws_of_something_else_come_between_honest_ones(job):
    segment = Tabled(job, guarded=Guarded(skip={3: 1, 9: 7}))
    assert segment.verdict(segment.said(segment.kept())).state is LinkState.VERIFIED


def test_a_step_names_the_layout_of_its_own_table(job):
    """As of a script that trains two models in turn."""
    other = msgspec.structs.replace(
        LAYOUT, batches=(("0|a|99|1|torch.float32|()|a:0,b:33,c:66;",),)
    )
    segment = Tabled(job, guarded=Guarded(other={4: other, 5: other, 9: other}))
    verdict = segment.verdict(segment.said(segment.kept()))
    assert verdict.state is LinkState.VERIFIED, verdict


def test_commitments_may_be_made_anew(job):
    made = Tabled(job)
    before = made.guarded
    made.guarded = Guarded(beacon=Beacon(seed=9), learned=before.learned, seed=1)
    made.after, made.count = 12, 4
    second = made.record()
    both = Tabled(job, count=16)
    both.pieces.pieces.update(made.pieces.pieces)
    both.lines = [*made.lines, *second]
    # Nothing of the steps before is forgotten, for no process began anew.
    both.edit(12, anew=False)
    verdict = both.verdict(both.said(both.kept()))
    assert verdict.state is LinkState.VERIFIED, verdict


def test_a_run_is_followed_through_its_checkpoints(job):
    first = Tabled(job)
    parent = Opened(
        kind=Kind.CHECKPOINT,
        predicate=first.said(first.kept()),
        digest="aa" * 32,
        key_ids=frozenset(),
        statement="a0" * 32,
    )
    second = Tabled(job, after=12, count=4, guarded=first.guarded)
    second.pieces.pieces.update(first.pieces.pieces)
    second.edit(0, anew=False)
    said = second.said(second.kept(), parents=[Parent(digest="aa" * 32)])
    verdict = second.verdict(said, {"aa" * 32: parent})
    assert verdict.state is LinkState.VERIFIED, verdict
    # A process that went on from the checkpoint began with what that holds.
    second.edit(0, anew=True)
    said = second.said(second.kept(), parents=[Parent(digest="aa" * 32)])
    assert second.verdict(said, {"aa" * 32: parent}).state is LinkState.VERIFIED
    # Without the first part nothing is known of the run.
    alone = second.verdict(said)
    assert alone.state is LinkState.MISSING
    assert "beginning" in alone.what
    # What another run has learned is not this one's beginning.
    other = replace(parent, predicate=msgspec.structs.replace(parent.checkpoint, run_id="other"))
    foreign = second.verdict(said, {"aa" * 32: other})
    assert foreign.state is LinkState.MISSING
    assert "beginning" in foreign.what
    # What is wrong with the first is not passed over in the second.
    first.edit(2, seeds=("ab" * 32,))
    wrong = first.said(first.kept())
    bad = replace(opened(wrong), statement="a0" * 32)
    second.pieces.pieces.update(first.pieces.pieces)
    assert second.verdict(said, {"aa" * 32: bad}).state is LinkState.MISSING


Lie: TypeAlias = Callable[[Job], Tabled]
Spoil: TypeAlias = Callable[[dict[str, np.ndarray]], object]


def guarded(**said: Any) -> Lie:
    return lambda job: Tabled(job, guarded=Guarded(**said))


def spoiled(at: int, spoil: Spoil, **said: Any) -> Lie:
    """The guard saw this at a step, and all ranks call it clean."""
    return guarded(spoil={at: spoil}, **said)


def received(where: Any, factor: float) -> Spoil:
    def spoil(said: dict[str, np.ndarray]) -> None:
        said["received"][where] *= factor

    return spoil


def gross(said: dict[str, np.ndarray]) -> None:
    said["groups"][1] *= 1000
    said["received"][:] = said["groups"].mean(axis=0)


def edited(at: int, change: Callable[[Tabled, list[StepRecord]], dict[str, Any]]) -> Lie:
    """One record says something else, which all ranks sign."""

    def make(job: Job) -> Tabled:
        segment = Tabled(job)
        _, records = records_of(segment.pieces, segment.kept()) or (None, [])
        segment.edit(at, **change(segment, records))
        return segment

    return make


def holding(name: str, data: bytes) -> Callable[[Tabled, list[StepRecord]], dict[str, Any]]:
    """A record names other bytes, which are there."""
    return lambda segment, _: {name: segment.pieces.put(data)}


def refused_before(job: Job) -> Tabled:
    """All ranks together alter the word, and not the table."""
    segment = spoiled(5, lambda said: said["groups"].__setitem__(0, np.inf))(job)
    segment.edit(4, verdict="refused", norm="nan")
    segment.edit(4, verdict="clean", norm=(1.25).hex())
    return segment


def other_preimage(segment: Tabled, records: list[StepRecord]) -> dict[str, Any]:
    opening = segment.pieces.pieces[records[4].seeds[0]]
    changed = opening[:-1] + bytes([opening[-1] ^ 1])
    return {"seeds": (segment.pieces.put(changed),)}


def without_a_rank(segment: Tabled, records: list[StepRecord]) -> dict[str, Any]:
    table = segment.pieces.pieces[str(records[4].table)]
    return {"table": segment.pieces.put(table[: -(32 + 4 * SIZE * 10)])}


def my_seed(segment: Tabled, _: object) -> dict[str, Any]:
    mine = opening_of("batch|0|1", [bytes([7]) * 32] * RANKS)
    return {"seeds": (segment.pieces.put(mine),)}


TWO = msgspec.structs.replace(LAYOUT, ranks=2, owners=(0, 0))
ROUGH = msgspec.structs.replace(LAYOUT, roundoff=(0.5).hex())
LIES: dict[str, Lie] = {
    "a_rank_without_numbers_is_called_clean": spoiled(
        5, lambda said: said["groups"].__setitem__((1, 2, 5), np.nan)
    ),
    "a_gross_rank_is_called_clean": spoiled(9, gross),
    "a_reduction_that_was_changed_is_called_clean": spoiled(5, received(np.s_[:, 1], 1.01)),
    "one_rank_received_something_else": spoiled(5, received(np.s_[3, 1], 1.01)),
    "a_refused_step_becomes_a_clean_one": refused_before,
    "a_table_under_another_seed": guarded(under={5: b"s" * 32}),
    "a_seed_that_nobody_committed_to": edited(4, my_seed),
    "a_seed_of_the_step_before": edited(4, lambda _, records: {"seeds": records[3].seeds}),
    "a_seed_that_was_drawn_for_something_else": guarded(context={5: "again|1"}),
    "one_of_a_ranks_preimages_is_another": edited(4, other_preimage),
    "seeds_that_lead_to_no_commitment": edited(0, lambda *_: {"anchors": None}),
    "commitments_of_others": edited(0, holding("anchors", Beacon(seed=8).anchors)),
    "commitments_that_are_none": edited(0, holding("anchors", b"x" * (RANKS * 32))),
    "more_is_claimed_to_be_learned": edited(6, lambda *_: {"learned": 9}),
    "everything_is_claimed_to_be_forgotten": edited(6, lambda *_: {"learned": 1}),
    "a_rank_is_cut_off": edited(4, without_a_rank),
    "a_table_that_is_none": edited(4, holding("table", b"{}\n")),
    "a_table_of_another_number_of_ranks": guarded(layout=TWO),
    "a_rounding_that_lets_everything_pass": spoiled(5, received(np.s_[:, 1], 2), layout=ROUGH),
    "seeds_of_one_batch_too_many": edited(4, lambda _, records: {"seeds": records[4].seeds * 2}),
}


def said_of(verdict: LinkVerdict) -> str:
    return "" if verdict.state is LinkState.VERIFIED else verdict.what


@pytest.mark.forgery
@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_is_broken_at_its_link(checks, job, monkeypatch, name):
    segment = LIES[name](job)
    said = segment.said(segment.kept())
    verdict = segment.verdict(said)
    assert verdict.state is LinkState.BROKEN, verdict
    problem = verdict.problem()
    assert problem is not None
    assert problem.code == code_of(TABLES) == "ST-CHAN-026"
    # The other links take it: the ranks' own word counts there.
    assert segment.judge(said, ChainLink.GRADIENTS)[0] is LinkState.VERIFIED
    # With the checks of the table off, or without a look at steps, nobody objects.
    hold(checks, "tables", name, lambda: said_of(segment.verdict(said)))
    monkeypatch.setattr(tables, "_step", lambda *_: None)
    assert segment.verdict(said).state is LinkState.VERIFIED


@pytest.mark.forgery
def test_what_is_not_there_is_missing(tabled):
    said = tabled.said(tabled.kept())
    whole = dict(tabled.pieces.pieces)
    _, records = records_of(tabled.pieces, str(said.bound.step_records)) or (None, [])
    one = records[4]
    layout = next(
        name for name in tables.names_of(tabled.pieces, records) if b"layout" in whole[name]
    )
    gone = (one.table, *one.seeds, records[0].anchors, layout, said.bound.policy)
    for name in (*gone, said.bound.step_records):
        tabled.pieces = InMemory({key: data for key, data in whole.items() if key != name})
        assert tabled.verdict(said).state is LinkState.MISSING, name
    tabled.pieces = InMemory(whole)
    tabled.edit(4, table=None)
    assert tabled.verdict(tabled.said(tabled.kept())).state is LinkState.MISSING
    unsigned = msgspec.structs.replace(said, node_signatures=UNSET, members=[])
    assert tabled.verdict(unsigned).state is LinkState.BROKEN


def test_a_table_above_the_limit_of_a_pack_is_broken(tabled, tmp_path, monkeypatch):
    said = tabled.said(tabled.kept())
    kept = [Document.of(packing.TABLE_TYPE, data) for data in tabled.pieces.pieces.values()]
    _, records = records_of(tabled.pieces, str(said.bound.step_records)) or (None, [])
    size = max(len(tabled.pieces.pieces[one.table]) for one in records)
    write_pack(tmp_path / "a.stpack", Document.of("subject", b"subject"), kept)
    with Pack.open(tmp_path / "a.stpack") as opened:
        tabled.pieces = packing.PackPieces(opened)
        assert tabled.verdict(said).state is LinkState.VERIFIED
        monkeypatch.setattr(packing, "PIECE_LIMIT", size - 1)
        verdict = tabled.verdict(said)
    assert verdict.state is LinkState.BROKEN
    assert f"the limit is {size - 1}" in verdict.what


def test_without_numpy_nothing_is_said_of_tables(tabled, monkeypatch):
    said = tabled.said(tabled.kept())
    monkeypatch.setattr(tables, "find_spec", lambda _: None)
    verdict = tabled.verdict(said)
    assert verdict.state is LinkState.MISSING
    assert "numpy is not installed" in verdict.what


def test_records_of_the_first_version_name_no_tables(tabled):
    made = recorded(tabled.run, tabled.after, tabled.lines, tabled.order)
    digest = tabled.keep(made)
    documents.decode(made.document, StepRecords)
    vocabulary.refused(IntegrityError, "ST-CHAN-001", records_of, tabled.pieces, digest)
    # Neither version is read as the other.
    for kind, data in (
        (TabledRecords, made.document),
        (StepRecords, tabled.pieces.pieces[tabled.kept()]),
    ):
        with pytest.raises(IntegrityError):
            documents.decode(data, kind)


def test_tables_are_judged_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import securetrain.chain.judging\n"
        "assert 'numpy' not in sys.modules\n"
        "from securetrain.guard import Rejudge, transcripts_agree\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
