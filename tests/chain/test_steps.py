# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The records of steps: every lie about rows and gradients is found and named. No torch."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import pytest
from msgspec import UNSET

from securetrain.artifacts.statement.dataset_predicate import DatasetPredicate, Removed
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    Opened,
    Parent,
)
from securetrain.artifacts.tree.layout import Kind
from securetrain.chain import documents, steps
from securetrain.chain.records import (
    PAGE,
    Recorder,
    StepRecord,
    StepRecords,
    StepVerdict,
    read_page,
    recorded,
    records_of,
)
from securetrain.chain.rows import RowOrder, tree_root
from securetrain.chain.store import InMemory
from securetrain.core.errors import IdentityError, IntegrityError
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.identity.log import hashes_of, merkle
from tests import vocabulary
from tests.chain.switches import hold
from tests.chain.worlds import ORDER, SETTINGS, Job, Segment, dataset, opened

ROWS, GRADIENTS = ChainLink.ROWS, ChainLink.GRADIENTS


@pytest.fixture
def segment(job: Job) -> Segment:
    return Segment(job)


def test_honest_records_show_rows_and_gradients(segment):
    said = segment.said(segment.kept())
    for signed in (said, segment.each_alone(said)):
        for link in (ROWS, GRADIENTS):
            state, what = segment.judge(signed, link)
            assert state is LinkState.VERIFIED, what
    assert "8 of 8 steps" in segment.judge(said, ROWS)[1]
    # Refused steps are counted, and they are no stain: nothing of them is in the weights.
    segment.edit(3, verdict="refused", norm="nan")
    counts = GradientRecord(verdict=GradientVerdict.CLEAN, judged=16, refused=1, clean_steps=4)
    assert segment.judge(segment.said(segment.kept(), gradients=counts), GRADIENTS)[0] == "verified"


def gradients(**said: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"verdict": GradientVerdict.CLEAN, "judged": 16, "clean_steps": 16}
    return {"gradients": GradientRecord(**(plain | said))}


Lie: TypeAlias = Callable[[Segment], CheckpointPredicate]


def edited(at: int, counted: dict[str, Any] | None = None, /, **changes: Any) -> Lie:
    """One record says something else, which all ranks sign; and how the statement counts."""

    def make(s: Segment) -> CheckpointPredicate:
        s.edit(at, **changes)
        return s.said(s.kept(), **gradients(**(counted or {})))

    return make


def lines(change: Callable[[list[bytes]], object]) -> Lie:
    """The lines of the records are others, which all ranks sign."""

    def make(s: Segment) -> CheckpointPredicate:
        change(s.lines)
        return s.said(s.kept())

    return make


def kept(**changes: Any) -> Lie:
    """The document over the pages says something else."""
    return lambda s: s.said(s.kept(**changes))


def signed_by(change: Callable[[Any], Any]) -> Lie:
    """The nodes' signatures are others."""

    def make(s: Segment) -> CheckpointPredicate:
        said = s.said(s.kept())
        return msgspec.structs.replace(said, node_signatures=change(said.by_nodes))

    return make


def recorded_as(run: str, after: int, first: int = 0) -> Lie:
    return lambda s: s.said(s.keep(recorded(run or s.run, after, s.lines[first:], s.order)))


def ordered(s: Segment, order: RowOrder) -> CheckpointPredicate:
    """All ranks recorded and signed another order than the job's."""
    s.order, s.lines = order, s.record(order)
    return s.said(s.kept())


def order(**changes: Any) -> Lie:
    return lambda s: ordered(s, msgspec.structs.replace(ORDER, **changes))


def named(cursor_rows: int, digest: str = "da" * 32) -> dict[str, Any]:
    cursor = {"step": 16, "rows": cursor_rows}
    return {"dataset": DatasetRef(name="prose", digest=digest, cursor=cursor)}


def declare(s: Segment, **data: Any) -> None:
    """Other settings, which the launcher bound as the job's."""
    said = SETTINGS | {"data": SETTINGS["data"] | data}  # type: ignore[operator]
    declared = s.pieces.keep(documents.Declared(program="m", settings=said))
    s.bound_job = s.pieces.keep(documents.Job(program=None, declared=declared))


def with_statement(s: Segment, said: DatasetPredicate) -> Opened:
    """The segment's dataset, with another statement."""
    return replace(s.dataset, predicate=said)


def rebound(said: CheckpointPredicate, digest: str | None) -> CheckpointPredicate:
    bound = msgspec.structs.replace(said.bound, step_records=digest)
    return msgspec.structs.replace(said, bound=bound)


def one_row(rows: list[bytes]) -> str:
    return tree_root([rows[0], b"0:5", *rows[2:]]).hex()


# By name: the link that it breaks, and who tells it.
LIES: dict[str, tuple[ChainLink, Lie]] = {
    "observed_step_is_called_clean": (GRADIENTS, edited(2, verdict="observed")),
    "unwatched_step_is_called_clean": (GRADIENTS, edited(2, verdict="unwatched", watched=False)),
    "refused_steps_are_not_counted": (GRADIENTS, edited(2, {"clean_steps": 5}, verdict="refused")),
    "clean_steps_are_overstated": (GRADIENTS, edited(6, verdict="settled")),
    "an_excluded_rank_is_not_told": (GRADIENTS, edited(7, without=(1,))),
    "judged_steps_are_overstated": (GRADIENTS, lambda s: s.said(s.kept(), **gradients(judged=17))),
    "a_record_is_left_out": (GRADIENTS, lines(lambda all_: all_.pop(3))),
    "two_records_are_exchanged": (GRADIENTS, lines(lambda all_: all_.insert(3, all_.pop(4)))),
    "the_last_steps_are_cut": (GRADIENTS, lines(lambda all_: all_.__delitem__(slice(6, None)))),
    "the_first_steps_are_cut": (GRADIENTS, recorded_as("", 10, 2)),
    "records_of_another_run": (GRADIENTS, recorded_as("job-other", 8)),
    "the_root_is_of_other_records": (GRADIENTS, kept(root="ab" * 32)),
    "the_count_is_false": (GRADIENTS, kept(count=7)),
    "the_ranks_signed_no_records": (GRADIENTS, lambda s: rebound(s.said(None), s.kept())),
    "a_node_is_stripped": (GRADIENTS, signed_by(lambda nodes: nodes[1:])),
    "rows_of_another_seed": (ROWS, order(seed=8)),
    "one_step_read_other_rows": (ROWS, edited(5, rows=ORDER.root(13))),
    "one_row_is_exchanged": (ROWS, edited(3, rows=one_row(list(ORDER.rows(12))))),
    "rows_come_from_a_part_of_the_data": (ROWS, order(starts=500)),
    "rows_come_from_another_split": (ROWS, order(split="validation")),
    "more_rows_are_claimed": (ROWS, lambda s: s.said(s.kept(), **named(65))),
    "another_dataset_is_named": (ROWS, lambda s: s.said(s.kept(), **named(64, "db" * 32))),
    "rows_are_shorter_than_the_job_says": (ROWS, order(seq_len=31, starts=969)),
}


def lie(link: ChainLink) -> Callable[[Lie], Lie]:
    """One that takes more than a change."""

    def note(make: Lie) -> Lie:
        LIES[make.__name__] = link, make
        return make

    return note


@lie(GRADIENTS)
def the_parents_stain_is_washed_off(s: Segment) -> CheckpointPredicate:
    refused = msgspec.structs.replace(s.before, verdict=GradientVerdict.REFUSED)
    said = msgspec.structs.replace(s.parent.checkpoint, gradients=refused)
    s.parent = opened(said)
    return s.said(s.kept())


@lie(GRADIENTS)
def a_record_is_edited_behind_the_ranks(s: Segment) -> CheckpointPredicate:
    honest = s.said(s.kept())
    s.edit(2, loss=(0.25).hex())
    return rebound(honest, s.kept())


@lie(GRADIENTS)
def a_page_is_named_twice(s: Segment) -> CheckpointPredicate:
    digest = s.kept()
    pages = documents.decode(s.pieces.pieces[digest], StepRecords).pages
    return s.said(s.kept(pages=pages * 2))


@lie(GRADIENTS)
def one_rank_signed_other_records(s: Segment) -> CheckpointPredicate:
    said, other = (s.each_alone(one) for one in (s.said(s.kept()), s.said("ab" * 32)))
    return msgspec.structs.replace(said, signatures=[*said.signatures[:-1], other.signatures[-1]])


@lie(GRADIENTS)
def one_node_signed_other_records(s: Segment) -> CheckpointPredicate:
    said, other = s.said(s.kept()), s.said("ab" * 32)
    return msgspec.structs.replace(said, node_signatures=[*said.by_nodes[:-1], other.by_nodes[-1]])


@lie(GRADIENTS)
def one_leaf_of_a_node_is_of_other_records(s: Segment) -> CheckpointPredicate:
    said, other = s.said(s.kept()), s.said("ab" * 32)
    first, strange = said.by_nodes[0], other.by_nodes[0]
    mixed = msgspec.structs.replace(first, leaves=[strange.leaves[0], *first.leaves[1:]])
    return msgspec.structs.replace(said, node_signatures=[mixed, *said.by_nodes[1:]])


@lie(GRADIENTS)
def a_rank_is_stripped(s: Segment) -> CheckpointPredicate:
    said = s.each_alone(s.said(s.kept()))
    return msgspec.structs.replace(said, signatures=said.signatures[1:])


@lie(ROWS)
def rows_of_a_hidden_seed(s: Segment) -> CheckpointPredicate:
    s.lines = s.record(msgspec.structs.replace(ORDER, seed=8))
    return s.said(s.kept())


@lie(ROWS)
def a_step_has_fewer_rows_than_the_job_says(s: Segment) -> CheckpointPredicate:
    ordered(s, msgspec.structs.replace(ORDER, batch_rows=2))
    return s.said(s.kept(), **named(32))


@lie(ROWS)
def windows_come_in_an_order_that_nobody_asked_for(s: Segment) -> CheckpointPredicate:
    declare(s, epochs=9)
    return ordered(s, msgspec.structs.replace(ORDER, kind="epochs", starts=31, epochs=9))


@lie(ROWS)
def windows_come_in_turn(s: Segment) -> CheckpointPredicate:
    declare(s, order="epochs", epochs=9)
    windows = msgspec.structs.replace(ORDER, kind="epochs", starts=31, epochs=9)
    assert s.judge(ordered(s, windows), ROWS)[0] is LinkState.VERIFIED
    return ordered(s, msgspec.structs.replace(windows, sequential=True))


@lie(ROWS)
def a_split_that_the_dataset_does_not_have(s: Segment) -> CheckpointPredicate:
    declare(s, train_split="secret")
    return ordered(s, msgspec.structs.replace(ORDER, split="secret"))


@lie(ROWS)
def a_dataset_that_is_too_short_for_a_row(s: Segment) -> CheckpointPredicate:
    s.dataset = with_statement(s, dataset(32))
    return ordered(s, ORDER)


@lie(ROWS)
def tokens_of_another_width_than_was_signed(s: Segment) -> CheckpointPredicate:
    wide = msgspec.structs.replace(dataset(), metadata={"token_bytes": "4"})
    s.dataset = with_statement(s, wide)
    declare(s, format="tokens", token_bytes=2)
    return ordered(s, msgspec.structs.replace(ORDER, starts=468))


@lie(ROWS)
def what_was_removed_is_read(s: Segment) -> CheckpointPredicate:
    gone = Removed(file="a.bin", offset=100, length=50)
    s.dataset = with_statement(s, msgspec.structs.replace(dataset(), removed=[gone]))
    honest = s.said(s.kept())
    assert s.judge(honest, ROWS)[0] is LinkState.BROKEN
    left = msgspec.structs.replace(ORDER, starts=918)
    assert s.judge(ordered(s, left), ROWS)[0] is LinkState.VERIFIED
    return ordered(s, ORDER)


@lie(ROWS)
def the_settings_are_of_another_job(s: Segment) -> CheckpointPredicate:
    other = s.pieces.keep(documents.Declared(program="m", settings=SETTINGS | {"seed": 9}))
    s.bound_job = s.pieces.keep(documents.Job(program=None, declared=other))
    return s.said(s.kept())


def said_of(state: LinkState, what: str) -> str:
    return "" if state is LinkState.VERIFIED else what


@pytest.mark.forgery
@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_is_broken_at_its_link(checks, segment, monkeypatch, name):
    link, make = LIES[name]
    said = make(segment)
    assert segment.judge(said, link)[0] is LinkState.BROKEN
    hold(checks, "steps", name, lambda: said_of(*segment.judge(said, link)))
    # With all of them off, nobody objects: the statement's own word counts, as it did before.
    kept = documents.decode(segment.pieces.pieces[segment.kept()], StepRecords)
    monkeypatch.setattr(steps, "_records", lambda *_: (segment.parent.checkpoint, kept, []))
    monkeypatch.setattr(steps, "expected_gradients", lambda *_: said.gradients)
    monkeypatch.setattr(steps, "_compared", lambda *_: iter(()))
    monkeypatch.setattr(steps, "_cursor", lambda *_: iter(()))
    monkeypatch.setattr(steps, "_kind", lambda *_: iter(()))
    monkeypatch.setattr(steps, "_places", lambda *_: None)
    segment.dataset = opened(dataset(), said.dataset.digest, Kind.DATASET)
    assert segment.judge(said, link)[0] is LinkState.VERIFIED


@pytest.mark.forgery
def test_what_is_not_there_is_missing(segment):
    said = segment.said(segment.kept())
    bare = msgspec.structs.replace(said, node_signatures=UNSET, members=[])
    unbound = rebound(said, None)
    for link in (ROWS, GRADIENTS):
        assert segment.judge(bare, link)[0] is LinkState.MISSING
        assert segment.judge(unbound, link)[0] is LinkState.MISSING
        lost = msgspec.structs.replace(said, parents=[Parent(digest="ab" * 32)])
        assert segment.judge(lost, link)[0] is LinkState.MISSING
    whole = dict(segment.pieces.pieces)
    bound = said.bound.step_records
    (page,) = documents.decode(whole[bound], StepRecords).pages
    for gone, links in ((bound, (ROWS, GRADIENTS)), (page, (ROWS, GRADIENTS))):
        segment.pieces = InMemory({name: data for name, data in whole.items() if name != gone})
        for link in links:
            assert segment.judge(said, link)[0] is LinkState.MISSING
    segment.pieces = InMemory(
        {name: data for name, data in whole.items() if name != said.bound.job}
    )
    assert segment.judge(said, ROWS)[0] is LinkState.MISSING
    segment.pieces = InMemory(whole)
    segment.dataset = None
    assert segment.judge(said, ROWS)[0] is LinkState.MISSING
    # A document or page whose bytes are others is broken, not missing.
    for name in (bound, page):
        segment.pieces = InMemory(whole | {name: whole[name] + b" "})
        assert segment.judge(said, GRADIENTS)[0] is LinkState.BROKEN


@pytest.mark.forgery
def test_pages_are_read_strictly(segment):
    page = b"".join(line + b"\n" for line in segment.lines)
    lines, records = read_page(page)
    assert lines == list(segment.lines)
    assert [one.step for one in records] == list(range(9, 17))
    line = segment.lines[0]
    bad = [
        b"",
        b"\n",
        page[:-1],
        page + b"\n",
        page.replace(b'"step":9', b'"step": 9'),
        page.replace(b'"step":9', b'"step":9,"step":9'),
        page.replace(b"0x1.", b"0x2."),
        line.replace(b"{", b'{"a":1,') + b"\n",
        # As many records as lines, which are none of them.
        line.replace(b",", b",\n", 1) + b"\n" + line + line + b"\n",
        line.replace(b"clean", b"fine") + b"\n",
        line.replace(b'"step":9', b'"step":0') + b"\n",
        line.replace(b'"step":9', b'"step":9223372036854775808') + b"\n",
        (line + b"\n") * (PAGE + 1),
    ]
    draw = random.Random(5)
    for _ in range(60):
        at = draw.randrange(len(line))
        bad.append(line[:at] + line[at + 1 :] + b"\n" + b"{")
    for data in bad:
        vocabulary.refused(IntegrityError, "ST-CHAN-001", read_page, data)


def test_ten_thousand_steps_are_small_and_one_is_shown_by_a_proof():
    taken = Recorder(run="job-1", order=ORDER)
    for step in range(1, 10_001):
        taken.add(step=step, loss=1 / step, norm=3.3, lr=1e-3, verdict="clean", watched=True)
    made = taken.taken()
    size = sum(map(len, made.pages)) + len(made.document)
    assert size / 10_000 < 260
    pieces = InMemory()
    for page in (*made.pages, made.document):
        pieces.put(page)
    found = records_of(pieces, made.digest)
    assert found is not None
    kept, records = found
    assert [one.step for one in records] == list(range(1, 10_001))
    assert len(kept.pages) == 3
    lines = b"".join(made.pages).split(b"\n")[:-1]
    leaves = [merkle.leaf_hash(line) for line in lines]
    proof = merkle.inclusion_proof(4711, len(leaves), hashes_of(leaves))
    root = bytes.fromhex(kept.root)
    merkle.check_inclusion(leaves[4711], 4711, len(leaves), proof, root)
    with pytest.raises(IdentityError):
        merkle.check_inclusion(leaves[4712], 4711, len(leaves), proof, root)
    with pytest.raises(ValueError, match="step 5 after 10000"):
        taken.add(step=5, loss=1.0, norm=1.0, lr=1.0, verdict="clean", watched=True)


def test_ranks_of_several_groups_say_of_applied_steps_what_rank_zero_says():
    words = (
        ["clean", "settled", "refused", "observed", "unwatched"],
        ["clean", "observed", "refused", "clean", "unwatched"],
    )
    made = [Recorder(run="job-1", order=ORDER) for _ in words]
    for taken, said in zip(made, words, strict=True):
        for step, word in enumerate(said, 1):
            taken.add(step=step, loss=1.0, norm=1.0, lr=0.1, verdict=word, watched=True)
    assert made[0].taken() != made[1].taken()
    made[1].say_as(made[0].applied)
    assert made[0].taken() == made[1].taken()
    # A step that was dropped here was dropped, whatever another rank says.
    before = made[1].taken()
    made[1].say_as(bytes([1, 2, 1, 3, 1]))
    assert made[1].taken() == before
    for bad in (b"", b"\1" * 4, b"\4" * 5):
        vocabulary.refused(ValueError, "words on", made[1].say_as, bad)


def test_what_nobody_watched_is_not_watched_later():
    """Steps before the records count, too: a clean segment makes no clean run."""
    record = StepRecord(
        step=1, loss="nan", norm="nan", lr="nan", verdict=StepVerdict.CLEAN, rows="ab" * 32
    )
    for before in (GradientVerdict.UNWATCHED, GradientVerdict.REFUSED, GradientVerdict.CLEAN):
        said = steps.expected_gradients(GradientRecord(verdict=before), [record])
        assert said.verdict is before
