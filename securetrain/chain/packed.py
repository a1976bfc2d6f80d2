# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify a pack: with a trust root and a clock, and nothing else but the file.

Rules, in order:

1. the pack is whole (`container`), and lists its statements; the first one is what it is about;
2. a statement counts when it verifies under the trust root. One that does not is as if it were not
   there, and is said; the first one is a checkpoint's;
3. ancestors are followed by the statements that are bound, and where none is, by the digests of
   their trees. Nothing recurses, and nothing is followed twice;
4. links and statements are judged as beside a run directory (`judging.judge_chain`). Where the
   policy asks for a log (``checkpoint.log``), each statement needs its proof, by the log and the
   quorum that the policy names;
5. without a policy nothing is required: a broken link refuses all the same, and a missing one is
   named, as of a directory;
6. at the witnesses' time (`seen_at`), everything is judged as of the moment at which the quorum of
   the log's witnesses had seen the checkpoint: what has expired since then counts;
7. weights and rows that the pack lists are verified byte by byte (`unpacking`), whatever is asked.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from securetrain.artifacts import STATEMENT, Kind, Problem
from securetrain.artifacts.lineage import LogProof, machine, proof_name, quarantine, waivers
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    claimed_kind,
    open_statement,
)
from securetrain.chain import packing
from securetrain.chain.container import Pack
from securetrain.chain.held import main_line, rows_wanted
from securetrain.chain.judging import Demand, Judgement, judge_chain
from securetrain.chain.links import Given, PackedFiles, Subject
from securetrain.chain.packing import PackPieces
from securetrain.chain.unpacking import Holding, check
from securetrain.chain.verdict import Contents, Verdict
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError, reason
from securetrain.core.vocabulary import ChainLink
from securetrain.identity.trust import TrustRoot

STATEMENT_LIMIT: Final = 64 << 20
CONTENTS_LIMIT: Final = 32 << 20
MAX_LEDGERS: Final = 2
"""Ledgers that are kept in memory: checkpoints of one run follow each other."""
MALFORMED: Final = "ST-PACK-101"


def check_pack(found: Verdict, pack: Pack, given: Given, demand: Demand, data: TrustRoot) -> None:
    """Judge a pack that is open; `found` takes the answers.

    Args:
        found: The verdict.
        pack: The pack.
        given: The trust root, the time, and the results of steps that were done again.
        demand: What is asked.
        data: The keys that may sign its datasets.

    Raises:
        IntegrityError: ST-PACK-101 to 141 when the file is no whole pack.
    """
    source = _Packed(
        pack=pack,
        trusts={Kind.CHECKPOINT: given.trust, Kind.DATASET: data},
    )
    found.pack = Contents(num_documents=len(pack.layers))
    if source.first is None:
        found.add(*source.refusal())
        return
    if any(one.media_type == packing.TABLE_TYPE for one in pack.layers.values()):
        demand = replace(demand, at_hand=demand.at_hand | {ChainLink.TABLES})
    chain = judge_chain(source, replace(given, pieces=PackPieces(pack)), demand)
    line = tuple(source.line())
    found.opened, held = source.first, tuple(source.held(line, chain))
    found.pack = Contents(ancestors=line[1:], held=held, num_documents=len(pack.layers))
    found.take(chain)
    mine = source.first.statement
    whole = [one for one in held if one.opened.statement == mine and one.steps is None]
    found.num_files = sum(len(one.opened.checkpoint.files) for one in whole)
    found.num_bytes = sum(one.num_bytes for one in held)


def witnessed(pack: Pack, trust: TrustRoot, now: datetime) -> datetime | None:
    """The time at which a quorum of the log's witnesses had seen the checkpoint of a pack.

    Args:
        pack: The pack.
        trust: Names the log and its witnesses.
        now: The latest time that is believed.

    Raises:
        IntegrityError: There is a proof, and it does not hold; or see `verify_pack`.
    """
    beside = _taken(pack, contents(pack).statements[0])
    if not beside.has(proof_name(beside.base)):
        return None
    data, proof = beside.read(STATEMENT, STATEMENT_LIMIT), LogProof.beside(beside)
    return proof.judge(data, claimed_kind(data) or Kind.CHECKPOINT, trust, now).seen


def _taken(pack: Pack, entry: packing.Entry) -> PackedFiles:
    """The files that lay with an artifact when it was packed."""
    digests = {STATEMENT: entry.statement, machine.HEAD: entry.head}
    digests |= {quarantine.RECORD: entry.record, proof_name(PackedFiles.base): entry.proof}
    digests |= {f"{waivers.FOLDER}/{one}": one for one in entry.waivers}
    return PackedFiles(digests, pack.read)


def claimed_time(pack: Pack) -> datetime | None:
    """The time that the checkpoint's statement claims; a hint which version of a trust root to ask
    first, and nothing else: nobody has verified it.
    """
    try:
        envelope = canonical.loads(pack.read(pack.subject.hex, STATEMENT_LIMIT))
        payload = canonical.loads(base64.b64decode(envelope["payload"], validate=True))
        return msgspec.convert(payload["predicate"]["created"], datetime)
    except (SecureTrainError, ValueError, KeyError, TypeError):
        return None


def contents(pack: Pack) -> packing.Contents:
    """The list of a pack's statements.

    Raises:
        IntegrityError: ST-PACK-101 when there is none, two, or it is not about the pack's subject.
    """
    found = [one for one in pack.layers.values() if one.media_type == packing.CONTENTS_TYPE]
    if len(found) != 1:
        raise IntegrityError(MALFORMED, f"{len(found)} lists of contents", str(pack.path))
    try:
        listed = canonical.decode(
            pack.read(found[0].hex, CONTENTS_LIMIT),
            packing.Contents,
            limit=CONTENTS_LIMIT,
            where=str(pack.path),
            canonical=True,
        )
    except UsageError as error:
        raise IntegrityError(MALFORMED, reason(error), str(pack.path)) from error
    first = listed.statements[0].statement
    if first != pack.subject.hex:
        raise IntegrityError(MALFORMED, "it is about another statement", str(pack.path))
    return listed


@dataclass(slots=True, kw_only=True)
class _Packed:
    """The statements of a pack, opened; a source of evidence (`judging.Source`)."""

    pack: Pack
    trusts: Mapping[Kind, TrustRoot]
    listed: packing.Contents = field(init=False)
    problem: Problem | None = None
    """Why the first statement does not count."""
    refusals: list[str] = field(default_factory=list)
    by_statement: dict[str, Opened] = field(default_factory=dict)
    by_tree: dict[str, Opened] = field(default_factory=dict)
    entries: dict[str, packing.Entry] = field(default_factory=dict)
    """By the statement's digest."""
    by_entry: dict[packing.Entry, Opened] = field(default_factory=dict)
    ledgers: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listed = contents(self.pack)
        # One that is listed again is none more.
        firsts = {entry.statement: entry for entry in reversed(self.listed.statements)}
        for entry in self.listed.statements:
            if firsts[entry.statement] is entry:
                self._open(entry)

    @property
    def first(self) -> Opened | None:
        """The checkpoint that the pack is about; None when its statement does not count."""
        opened = self.by_entry.get(self.listed.statements[0])
        if opened is None or not isinstance(opened.predicate, CheckpointPredicate):
            return None
        return opened

    def refusal(self) -> tuple[Problem, ...]:
        """The reason why there is none: what is about no checkpoint shows nothing."""
        what, where = "it is about no checkpoint", "the checkpoint's statement"
        return (self.problem or Problem(code=MALFORMED, what=what, file=where),)

    @property
    def refused(self) -> str:
        """See `judging.Source`."""
        return self.refusals[0] if self.refusals else ""

    def _open(self, entry: packing.Entry) -> None:
        """Rule 2."""
        first = entry.statement == self.pack.subject.hex
        try:
            layer = self.pack.layers.get(entry.statement, self.pack.subject)
            if layer.media_type != packing.STATEMENT_TYPE:
                raise IntegrityError(MALFORMED, "an entry that is no statement", entry.statement)
            envelope = self.pack.read(entry.statement, STATEMENT_LIMIT)
            kind = claimed_kind(envelope)
            if kind is None:
                raise IntegrityError("ST-CKPT-101", "not a statement of ours", "")
            where = f"statement {entry.statement[:16]}"
            opened = open_statement(envelope, kind, self.trusts[kind], where)
        except SecureTrainError as error:
            if first:
                self.problem = Problem(
                    code=error.code, what=reason(error), file="the checkpoint's statement"
                )
            else:
                self.refusals.append(f"{entry.statement[:16]}: {error.code} {reason(error)}")
            return
        self.by_statement.setdefault(opened.statement, opened)
        self.by_tree.setdefault(opened.digest, opened)
        if self.entries.setdefault(opened.statement, entry) is entry:
            self.by_entry[entry] = opened

    def _found(self, digests: Sequence[str], statements: Sequence[str]) -> Iterator[Opened]:
        """Rule 3: those of some digests that are in the pack."""
        whole = statements if len(statements) == len(digests) else [""] * len(digests)
        for digest, statement in zip(digests, whole, strict=True):
            found = self.by_statement.get(statement)
            if found is None or found.digest != digest:
                found = self.by_tree.get(digest)  # under another statement than the bound one
            if found is not None:
                yield found

    def _parents(self, opened: Opened) -> Mapping[str, Opened]:
        said = opened.checkpoint
        found = self._found([one.digest for one in said.parents], said.bound.parents)
        return {one.digest: one for one in found if isinstance(one.predicate, CheckpointPredicate)}

    def line(self) -> Iterator[Opened]:
        """The checkpoint and all it was made from, each once."""
        waiting = [] if self.first is None else [self.first]
        known = {one.statement for one in waiting}
        while waiting:
            one = waiting.pop()
            yield one
            for parent in self._parents(one).values():
                if parent.statement not in known:
                    known.add(parent.statement)
                    waiting.append(parent)

    def subjects(self) -> Iterator[Subject]:
        """See `judging.Source`."""
        for opened in self.line():
            said, entry = opened.checkpoint, self.entries[opened.statement]
            bound = [said.bound.dataset] if said.bound.dataset is not None else []
            named = [said.dataset.digest] if said.dataset.digest else []
            dataset = next(iter(self._found(named, bound)), None)
            yield Subject(
                opened=opened,
                parents=self._parents(opened),
                known=self.by_tree,
                dataset=dataset
                if dataset is not None and isinstance(dataset.predicate, DatasetPredicate)
                else None,
                beside=_taken(self.pack, entry),
                ledger=self._ledger_of(entry),
            )

    def _ledger_of(self, entry: packing.Entry) -> bytes | None:
        if entry.ledger is None or entry.ledger not in self.pack:
            return None
        if entry.ledger not in self.ledgers:
            while len(self.ledgers) >= MAX_LEDGERS:
                del self.ledgers[next(iter(self.ledgers))]
            self.ledgers[entry.ledger] = self.pack.read(entry.ledger, packing.LEDGER_LIMIT)
        return self.ledgers[entry.ledger]

    def held(self, line: Sequence[Opened], chain: Judgement) -> Iterator[Holding]:
        """Rule 7, for what `line` gives."""
        main = main_line(line[0], line[1:])
        pieces = PackPieces(self.pack)
        known: set[str] = set()
        for entry in self.listed.statements:
            if entry.holds is None:
                continue
            whose = f"statement {entry.statement[:16]}"
            opened = self.by_entry.get(entry)
            try:
                if opened is None or opened.statement in known:
                    raise IntegrityError(MALFORMED, "bytes of nothing that verified, or twice")
                known.add(opened.statement)
                rows = partial(rows_wanted, main, opened, pieces)
                yield check(self.pack, entry.holds, entry.statement, opened, rows)
            except SecureTrainError as error:
                chain.add(error.code, f"{whose}: {reason(error)}", error.where)
