# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The link `tables`: the verdicts on the gradients, worked out again from what the ranks said.

Rules:

1. the tables are those that the records name, which every rank has signed with its file; without
   them, or without one of a step that the guard has judged, the link is missing;
2. a step's seeds are hashes of the ranks' preimages; these hash to those of the steps before, and
   the first ones to what the ranks had committed to. The rows of the ranks that count begin with
   the digest of a transcript under these seeds, and of no others;
3. the run is followed from its first step with the guard's own code (`guard.Rejudge`), under the
   policy that the checkpoint binds. A step that its table speaks against was not clean;
4. all of it is what the ranks themselves said: all of them together can make up tables that fit.
   Whether the gradients were those is shown by who does the steps again (`replay`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from securetrain.artifacts import members
from securetrain.artifacts.statement.statements import Opened, ParentRole
from securetrain.chain.held import main_line
from securetrain.chain.links import Given, LinkVerdict, Subject, broken, missing, verified
from securetrain.chain.records import StepRecord, StepVerdict, records_of
from securetrain.chain.store import Pieces
from securetrain.core import canonical
from securetrain.core.vocabulary import ChainLink
from securetrain.guard import (
    Layout,
    StepTable,
    hash_of,
    layout_of,
    read_anchors,
    read_layout,
    read_table,
    values_of,
)
from securetrain.policy.schema import Policy

if TYPE_CHECKING:
    from securetrain.guard import Rejudge

LINK: Final = ChainLink.TABLES
MAX_BETWEEN: Final = 64
"""Draws between the tables of two steps: what was reduced again draws, too."""


def names_of(pieces: Pieces, records: Sequence[StepRecord]) -> Iterator[str]:
    """The digests of everything that some records name: tables, layouts, openings, anchors.

    A layout stands behind the table that names it, once.
    """
    known: set[str] = set()
    for record in records:
        if record.table is not None:
            yield record.table
            data = pieces.get(record.table)
            try:
                layout = "" if data is None else layout_of(data)
            except ValueError:
                layout = ""
            if layout and layout not in known:
                known.add(layout)
                yield layout
        yield from record.seeds
        if record.anchors is not None:
            yield record.anchors


def judge_tables(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the verdicts by the tables; see the module."""
    key = subject.opened.statement, subject.opened.digest
    if not subject.said.step:
        return verified(LINK, "no step was done")
    if find_spec("numpy") is None:
        return missing(LINK, "numpy is not installed, which the guard judges with")
    known: dict[tuple[str, str], LinkVerdict] = given.memory.of("tables", "all", dict)
    if key not in known:
        line = main_line(subject.opened, subject.known.values())[::-1]
        known.update(_judged(line, given))
    return known[key]


@dataclass(slots=True, kw_only=True)
class _Run:
    """The knowledge of a run between its steps."""

    judge: "Rejudge"
    pieces: Pieces
    last: tuple[bytes, ...] | None = None
    """The ranks' values of the last draw that is known."""
    layouts: dict[str, Layout] = field(default_factory=dict)


def _judged(line: Sequence[Opened], given: Given) -> dict[tuple[str, str], LinkVerdict]:
    """The verdict on each checkpoint of a line."""
    found: dict[tuple[str, str], LinkVerdict] = {}
    run: _Run | None = None
    stopped: LinkVerdict | None = None
    for number, opened in enumerate(line):
        if stopped is None:
            verdict, run = _segment(opened, line[number - 1] if number else None, run, given)
            if run is None:
                stopped = missing(
                    LINK, f"the steps up to {opened.checkpoint.step} could not be followed"
                )
        else:
            verdict = stopped
        found[opened.statement, opened.digest] = verdict
    return found


def _segment(
    opened: Opened, parent: Opened | None, run: _Run | None, given: Given
) -> tuple[LinkVerdict, _Run | None]:
    """The verdict on one checkpoint, and the run after it; None when it cannot be followed on."""
    said = opened.checkpoint
    records = _records(opened, parent, given)
    if isinstance(records, LinkVerdict):
        return records, None
    if run is None:
        policy = _policy(given.pieces, said.bound.policy)
        if policy is None:
            return missing(LINK, "the policy in force"), None
        from securetrain.guard import Rejudge  # noqa: PLC0415 - numpy: a verifier may be without

        judge = Rejudge(said.world_size, policy.gradients)
        run = _Run(judge=judge, pieces=given.pieces)
    elif run.judge.ranks != said.world_size:
        return missing(LINK, f"the run went on with {said.world_size} ranks"), None
    clean = 0
    for record in records:
        verdict = _step(record, run)
        if verdict is not None:
            return verdict, None
        clean += record.verdict is StepVerdict.CLEAN
    return verified(LINK, f"{clean} of {len(records)} steps clean, by the ranks' tables"), run


def _records(opened: Opened, parent: Opened | None, given: Given) -> list[StepRecord] | LinkVerdict:
    """The records since the parent (rule 1)."""
    said = opened.checkpoint
    if parent is None and any(one.role is ParentRole.PREVIOUS for one in said.parents):
        return missing(LINK, "the steps from the beginning of the run")
    if said.bound.step_records is None:
        return missing(LINK, "the steps were not recorded")
    for problem in members.check(said, given.trust, required=True):
        return broken(LINK, f"the ranks' signatures: {problem.what}")
    read = records_of(given.pieces, said.bound.step_records)
    if read is None:
        return missing(LINK, f"the evidence {said.bound.step_records[:16]}")
    kept, records = read
    after = 0 if parent is None else parent.checkpoint.step
    if (kept.run, kept.after, kept.last) != (said.run_id, after, said.step):
        return broken(LINK, "the records are of other steps")
    return records


def _policy(pieces: Pieces, digest: str | None) -> Policy | None:
    data = None if digest is None else pieces.get(digest)
    if data is None:
        return None
    return canonical.decode(data, Policy, where="the policy", canonical=True)


def _step(record: StepRecord, run: _Run) -> LinkVerdict | None:
    """Judge one step; None when its table agrees with its record."""
    where = f"step {record.step}"
    if record.table is None or record.learned is None or not record.seeds:
        return missing(LINK, f"{where} has no table of what the ranks said")
    try:
        table = _table(record, run)
        if table is None:
            return missing(LINK, f"{where}: the table {record.table[:16]}", where=where)
        missed = _check_seeds(record, run, table)
        if missed:
            return missing(LINK, f"{where}: {missed}", where=where)
        if record.anew:
            run.judge.begin_anew()
        codes = run.judge.judge(table, out=record.without, learned=record.learned)
    except ValueError as error:
        return broken(LINK, f"{where}: {error}"[:500], where=where)
    if codes and record.verdict is StepVerdict.CLEAN:
        return broken(
            LINK,
            f"the verdict on {where}",
            expected=f"not clean, by its table: {', '.join(codes)}",
            found=record.verdict,
            where=where,
        )
    return None


def _table(record: StepRecord, run: _Run) -> StepTable | None:
    assert record.table is not None
    data = run.pieces.get(record.table)
    if data is None:
        return None
    digest = layout_of(data)
    if digest not in run.layouts:
        layout = run.pieces.get(digest)
        if layout is None:
            return None
        run.layouts = {digest: read_layout(layout)}
    return read_table(data, run.layouts[digest])


def _check_seeds(record: StepRecord, run: _Run, table: StepTable) -> str:
    """Rule 2; what is missing, or nothing.

    Raises:
        ValueError: The seeds are not the ranks'.
    """
    from securetrain.guard import transcripts_agree  # noqa: PLC0415 - numpy

    ranks = run.judge.ranks
    out = frozenset(record.without)
    if record.anchors is not None:
        data = run.pieces.get(record.anchors)
        if data is None:
            return f"what the ranks committed to ({record.anchors[:16]})"
        anchors: tuple[bytes, ...] | None = read_anchors(data, ranks)
    else:
        anchors = None
    if len(record.seeds) != len(table.layout.batches):
        raise ValueError(f"{len(record.seeds)} seeds for {len(table.layout.batches)} batches")
    for number, seed in enumerate(record.seeds):
        opening = run.pieces.get(seed)
        if opening is None:
            return f"the preimages of its seed {seed[:16]}"
        context, values = values_of(opening, ranks)
        if not context.startswith(f"batch|{number}|"):
            raise ValueError(f"seed {number} was drawn for something else ({context[:40]})")
        silent = out.union(table.unopened[number])
        # New commitments come in the middle of a step when a chain ends there.
        if not any(
            before is not None and _opens(values, before, silent) for before in (run.last, anchors)
        ):
            raise ValueError(f"the preimages of seed {number} open no commitment of the ranks")
        run.last = values
    if not transcripts_agree(table, [bytes.fromhex(seed) for seed in record.seeds], out):
        raise ValueError("its table was not made under the seeds that the ranks drew")
    return ""


def _opens(values: Sequence[bytes], before: Sequence[bytes], silent: frozenset[int]) -> bool:
    """Tell whether values lead to those before, by equally many hashes each."""
    # Of a rank that opened nothing the last time, nothing is known.
    known = [rank for rank, value in enumerate(before) if any(value)]
    live = [rank for rank in known if rank not in silent]
    if not live:
        return False
    hashed = {rank: values[rank] for rank in live}
    for _ in range(MAX_BETWEEN):
        hashed = {rank: hash_of(value) for rank, value in hashed.items()}
        if all(hashed[rank] == before[rank] for rank in live):
            return True
    return False
