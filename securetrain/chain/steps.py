# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The links `rows` and `gradients`: what the records of the steps show.

Rules:

1. the records are those that the statement binds and every rank has signed with its file; they
   begin where the parent ends, and end at the statement's step;
2. gradients: the statement's word and counts are worked out again from the parent's and from the
   records. A step that nobody watched, or that was applied although something was found, is never
   part of a clean verdict;
3. rows: the order is that of the settings which the job declared, over the dataset that is bound,
   and every step's root is worked out again from it (of more than `MAX_ROWS` rows, of steps that
   the records themselves draw, so that nobody chose them);
4. a policy's window of clean steps counts such records, back to the run's first where it must; an
   audit of steps is a signed replay (`kept`). What statements count shows nothing;
5. whoever wants to know whether the ranks' own words are true does the steps again (`replay`).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.artifacts import members
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    GradientRecord,
    GradientVerdict,
    ParentRole,
)
from securetrain.chain.held import main_line
from securetrain.chain.kept import judge_replay
from securetrain.chain.links import Given, LinkVerdict, Subject, broken, missing, verified
from securetrain.chain.records import StepRecord, StepRecords, StepVerdict, records_of
from securetrain.chain.rows import DOCUMENTS, RowBytes, RowOrder, format_of, settings_of, width_of
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.policy.schema import Checkpoint

MAX_ROWS: Final = 1 << 20
"""Rows of a segment that are all worked out again."""


def judge_gradients(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the verdict on the gradients by rules 1 and 2."""
    link = ChainLink.GRADIENTS
    found = _records(link, subject, given)
    if isinstance(found, LinkVerdict):
        return found
    parent, _, records = found
    expected = expected_gradients(
        GradientRecord(verdict=GradientVerdict.CLEAN) if parent is None else parent.gradients,
        records,
    )
    said = subject.said.gradients
    if not subject.said.step and not (said.judged or said.refused or said.clean_steps):
        return verified(link, "no step was done")
    for name in ("verdict", "judged", "refused", "clean_steps"):
        wanted, has = getattr(expected, name), getattr(said, name)
        if wanted != has:
            return broken(
                link, f"its {name.replace('_', ' ')}", expected=str(wanted), found=str(has)
            )
    ranks = len(subject.said.signed_ranks)
    return verified(link, f"{said.verdict}: {len(records)} steps, by the word of {ranks} ranks")


def window(subject: Subject, given: Given, asked: Checkpoint) -> Iterator[LinkVerdict]:
    """The link that shows too little of the steps before a checkpoint, as a policy counts them:
    the statements' own numbers count for nothing (rule 4).
    """
    parents = {**subject.known, **subject.parents}  # once: of a long run they are ten thousand
    before = main_line(subject.opened, subject.known.values())
    line = [replace(subject, opened=one, parents=parents) for one in before]
    if asked.min_clean_steps is not None:
        wanted, found = min(asked.min_clean_steps, max(1, subject.said.step)), 0
        why = "its records end there"
        for one in line:
            verdict, read = judge_gradients(one, given), _records(ChainLink.GRADIENTS, one, given)
            if verdict.state is not LinkState.VERIFIED or isinstance(read, LinkVerdict):
                why = verdict.what
                break
            clean = sum(1 for _ in takewhile(_is_clean, reversed(read[2])))
            found += clean
            if found >= wanted or clean < len(read[2]):
                break
        if found < wanted:
            what = f"the last {found} steps were clean, the policy asks for {wanted}: {why}"
            yield missing(ChainLink.GRADIENTS, what)
    age = asked.max_audit_age_steps
    if age is not None and not any(
        subject.said.step - one.said.step <= age
        and judge_replay(one, given).state is LinkState.VERIFIED
        for one in line
    ):
        yield missing(ChainLink.REPLAY, f"no signed replay of the last {age} steps")


def _is_clean(one: StepRecord) -> bool:
    return one.watched and one.verdict is StepVerdict.CLEAN and not one.without


def expected_gradients(before: GradientRecord, records: Sequence[StepRecord]) -> GradientRecord:
    """The summary that a statement has to give, from its parent's and the records since."""
    watched = before.verdict is not GradientVerdict.UNWATCHED and all(
        one.watched for one in records
    )
    clean = before.clean_steps
    for one in records:
        clean = clean + 1 if _is_clean(one) else 0
    observed = any(one.verdict is StepVerdict.OBSERVED for one in records)
    if not watched:
        verdict = GradientVerdict.UNWATCHED
    elif observed or before.verdict is GradientVerdict.REFUSED:
        verdict = GradientVerdict.REFUSED
    else:
        verdict = GradientVerdict.CLEAN
    bad = {StepVerdict.REFUSED, StepVerdict.OBSERVED}
    return GradientRecord(
        verdict=verdict,
        judged=before.judged + sum(one.watched for one in records),
        refused=before.refused + sum(one.verdict in bad for one in records),
        clean_steps=clean,
    )


def judge_rows(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the rows that were read by rules 1 and 3."""
    link = ChainLink.ROWS
    found = _records(link, subject, given)
    if isinstance(found, LinkVerdict):
        return found
    _, kept, records = found
    bound = subject.said.bound.job
    settings = given.memory.of("settings", bound, lambda: settings_of(given.pieces, bound))
    if settings is None:
        return missing(link, "the settings that the job declared")
    dataset = subject.dataset
    if dataset is None:
        return missing(link, f"the dataset {subject.said.dataset.digest[:16]}")
    assert isinstance(dataset.predicate, DatasetPredicate)
    places = _places(dataset.predicate, settings, kept.order)
    asked = [
        *_compared(settings, kept.order),
        *_kind(format_of(dataset.predicate, settings), settings, kept.order),
        *_cursor(subject.said, kept.order),
        ("dataset", subject.said.dataset.digest, dataset.digest),
        ("places to begin", kept.order.starts if places is None else places, kept.order.starts),
    ]
    for name, wanted, has in asked:
        if wanted != has:
            return broken(link, f"the {name}", expected=str(wanted), found=str(has))
    looked = 0
    for record in _drawn(records, kept.order, kept.root):
        looked += 1
        if (root := kept.order.root(record.step)) != record.rows:
            return broken(link, f"the rows of step {record.step}", expected=root, found=record.rows)
    counted = "; tokens as the ranks counted them" if places is None else ""
    return verified(link, f"{looked} of {len(records)} steps worked out again{counted}")


def _cursor(said: CheckpointPredicate, order: RowOrder) -> Iterator[tuple[str, object, object]]:
    cursor = said.dataset.cursor
    yield "cursor's step", said.step, cursor.get("step")
    yield "cursor's rows", said.step * order.batch_rows, cursor.get("rows")


Segment: TypeAlias = tuple[CheckpointPredicate | None, StepRecords, list[StepRecord]]
"""The parent that a checkpoint goes on from, and the records since."""


def _records(link: ChainLink, subject: Subject, given: Given) -> Segment | LinkVerdict:
    """The records of a checkpoint by rule 1, read once for both links."""

    def read() -> tuple[Subject, Segment | LinkVerdict]:
        return subject, _read_records(link, subject, given)

    # The subject is kept with it, so that no other can come to lie where it lay.
    _, found = given.memory.of("records", id(subject), read, room=1)
    return msgspec.structs.replace(found, link=link) if isinstance(found, LinkVerdict) else found


def _read_records(link: ChainLink, subject: Subject, given: Given) -> Segment | LinkVerdict:
    said = subject.said
    if said.bound.step_records is None:
        return missing(link, "the steps were not recorded")
    if not said.signed_ranks:
        return missing(link, "the ranks did not sign the records")
    for problem in members.check(said, given.trust, required=True):
        return broken(link, f"the ranks' signatures: {problem.what}")
    found = records_of(given.pieces, said.bound.step_records)
    if found is None:
        return missing(link, f"the evidence {said.bound.step_records[:16]}")
    before = [one.digest for one in said.parents if one.role is ParentRole.PREVIOUS]
    if len(before) > 1:
        return broken(link, f"it goes on from {len(before)} checkpoints")
    if before and before[0] not in subject.parents:
        return missing(link, f"the parent {before[0][:16]}, which they go on from")
    parent = subject.parents[before[0]].checkpoint if before else None
    kept, records = found
    for name, wanted, has in (
        ("the run of the records", said.run_id, kept.run),
        ("their last step", said.step, kept.last),
        ("the step before the first", 0 if parent is None else parent.step, kept.after),
    ):
        if wanted != has:
            return broken(link, name, expected=str(wanted), found=str(has))
    return parent, kept, records


def _compared(settings: Mapping[str, Any], order: RowOrder) -> Iterator[tuple[str, object, object]]:
    """Each setting that decides about rows, as it was declared and as the order has it."""
    data = settings.get("data")
    data = data if isinstance(data, dict) else {}
    yield "order's seed", settings.get("seed"), order.seed
    yield "order's split", data.get("train_split"), order.split
    yield "row length", data.get("seq_len"), order.seq_len
    yield "rows of a step", data.get("batch_rows"), order.batch_rows
    if order.kind == "epochs":
        yield "order's epochs", data.get("epochs"), order.epochs


def _kind(
    found: str | None, settings: Mapping[str, Any], order: RowOrder
) -> Iterator[tuple[str, object, object]]:
    """The kind of order, and whether windows come in turn: as the job says, or as the trainer takes
    data of this format. Only documents were shuffled before they came to be windows.
    """
    data = settings.get("data")
    chosen = data.get("order") if isinstance(data, dict) else None
    if chosen is None and found is not None:
        chosen = "epochs" if found in DOCUMENTS else "random"
    if chosen is not None:
        yield "order's kind", chosen, order.kind
    if found is not None:
        in_turn = found in DOCUMENTS and order.kind == "epochs"
        yield "order of windows", in_turn, order.sequential


def _places(dataset: DatasetPredicate, settings: Mapping[str, Any], order: RowOrder) -> int | None:
    """The places where rows may begin, where a file's size says it: a byte or so many bytes are a
    token. None where documents would have to be counted.
    """
    width = width_of(dataset, settings)
    if width is None:
        return None
    tokens = RowBytes.of(dataset, order, width).num_tokens
    return tokens - order.seq_len if order.kind == "random" else (tokens - 1) // order.seq_len


def _drawn(records: Sequence[StepRecord], order: RowOrder, root: str) -> Iterator[StepRecord]:
    """All records, or as many as have `MAX_ROWS` rows, drawn by the root over all of them."""
    wanted = max(1, MAX_ROWS // order.batch_rows)
    if len(records) <= wanted:
        yield from records
        return
    drawn: set[int] = set()
    number = 0
    while len(drawn) < wanted:
        name = f"securetrain/rows/1:{root}:{number}".encode()
        drawn.add(int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % len(records))
        number += 1
    yield from (records[number] for number in sorted(drawn))
