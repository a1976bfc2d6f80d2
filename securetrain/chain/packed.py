# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify a pack: with a trust root and a clock, and nothing else but the file.

Rules, in order:

1. the pack is whole (`container`), and lists its statements; the first one is what it is about;
2. a statement counts when it verifies under the trust root. One that does not is as if it were not
   there, and is said; the first one is a checkpoint's;
3. ancestors are followed by the statements that are bound, and where none is, by the digests of
   their trees. Nothing recurses, and nothing is followed twice;
4. links are judged as beside a run directory (`judging`): all of the checkpoint's, and with
   ``depth: all`` those that the policy requires of every ancestor. One that is not in the pack, or
   by another statement than the one that is bound, has all of them missing: leaving a statement out
   is no way to have it not asked;
5. what the policy asks of a statement itself is asked of each that rule 4 judges: of an ancestor
   everything but which artifact was expected. Where it asks for a log (``checkpoint.log``), each
   needs its proof, by the log and the quorum that the policy names;
6. a link that is required and not verified refuses. Without a policy nothing is required: a broken
   link refuses, and a missing one leaves the answer incomplete;
7. at the witnesses' time (`seen_at`), everything is judged as of the moment at which the quorum of
   the log's witnesses had seen the checkpoint: what has expired since then counts;
8. weights and rows that the pack lists are verified byte by byte (`unpacking`), whatever is asked.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts import Problem
from securetrain.artifacts.lineage import Asked, LogProof, judge_statement
from securetrain.artifacts.statement import (
    CheckpointPredicate,
    DatasetPredicate,
    Expectation,
    Opened,
    Shown,
    claimed_kind,
    open_statement,
)
from securetrain.chain import packing
from securetrain.chain.container import Descriptor, Pack
from securetrain.chain.held import main_line, rows_wanted
from securetrain.chain.judging import Judged, judge_all
from securetrain.chain.links import Given, Subject, code_of
from securetrain.chain.pack_pieces import PackPieces
from securetrain.chain.replayed import Replay
from securetrain.chain.unpacking import Holding, check
from securetrain.core import CODES, ExitCode, canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError, reason
from securetrain.core.vocabulary import ChainDepth, ChainLink, LinkState
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy, TransparencyLog

STATEMENT_LIMIT: Final = 64 << 20
CONTENTS_LIMIT: Final = 32 << 20
MAX_PROBLEMS: Final = 1000
MAX_LEDGERS: Final = 2
"""Ledgers that are kept in memory: checkpoints of one run follow each other."""
MALFORMED: Final = "ST-PACK-101"
_ON_REQUEST: Final = frozenset({ChainLink.REPLAY, ChainLink.TABLES})
"""Links of which most packs have no evidence; nobody misses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult:
    """The answer of a pack's verification."""

    path: Path
    subject: Opened | None
    """The checkpoint that it is about; None when its statement does not verify."""
    judged: tuple[Judged, ...] = ()
    """The checkpoint's links, and those of the ancestors that were asked."""
    problems: tuple[Problem, ...] = ()
    required: frozenset[ChainLink] = frozenset()
    num_ancestors: int = 0
    num_documents: int = 0
    at: datetime
    """The time that was judged by."""
    seen: datetime | None = None
    """When the quorum of witnesses had seen the checkpoint; None without."""
    ancestors: tuple[Opened, ...] = ()
    """What it was made from, as far as that is in the pack and verified."""
    dataset: Opened | None = None
    """The dataset's statement, likewise."""
    held: tuple[Holding, ...] = ()
    """The weights and rows that are in the pack, and were verified."""

    @property
    def missing(self) -> tuple[ChainLink, ...]:
        """Links of the checkpoint itself of which the pack has no evidence."""
        return tuple(
            link
            for one in self.judged[:1]
            for link, verdict in one.verdicts.items()
            if verdict.state is LinkState.MISSING
        )

    @property
    def exit_code(self) -> ExitCode:
        """0 when all that is required is verified; 3 when nothing is, and evidence is missing."""
        if self.problems:
            return CODES[self.problems[0].code].exit
        return ExitCode.INCOMPLETE if self.missing and not self.required else ExitCode.OK

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong and nothing is open."""
        return self.exit_code is ExitCode.OK


def verify_pack(
    pack: Pack,
    *,
    trust: TrustRoot,
    data: TrustRoot | None = None,
    policy: Policy | None = None,
    expect: Expectation | None = None,
    again: bool = False,
    replays: Sequence[Replay] = (),
    now: datetime,
) -> PackResult:
    """Verify a pack that is open.

    Args:
        pack: The pack.
        trust: The keys that may sign checkpoints, and whoever vouches for coordinators.
        data: The keys that may sign its datasets; by default `trust` names them, too.
        policy: What is asked; None asks for what is there.
        expect: Which checkpoint is wanted; None takes any.
        again: Whether the evidence behind results is judged again (`reappraise`).
        replays: Results of steps that were done again, whose signatures verified.
        now: The time to judge by.

    Raises:
        IntegrityError: ST-PACK-101 to 141 when the file is no whole pack.
    """
    verifier = _Verifier(
        pack=pack,
        trust=trust,
        data=data or trust,
        policy=policy,
        now=now,
        again=again,
        replays=replays,
    )
    return verifier.result(expect)


def witnessed(pack: Pack, trust: TrustRoot, now: datetime) -> datetime | None:
    """The time at which a quorum of the log's witnesses had seen the checkpoint of a pack.

    Args:
        pack: The pack.
        trust: Names the log and its witnesses.
        now: The latest time that is believed.

    Raises:
        IntegrityError: There is a proof, and it does not hold; or see `verify_pack`.
    """
    entry = contents(pack).statements[0]
    logged = _logged(pack, entry, trust, now)
    return None if logged is None else logged.seen


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
    if first != pack.subject.hex or not _is_statement(pack.subject):
        raise IntegrityError(MALFORMED, "it is about another statement", str(pack.path))
    return listed


def _is_statement(descriptor: Descriptor) -> bool:
    return descriptor.media_type == packing.STATEMENT_TYPE


def _logged(
    pack: Pack,
    entry: packing.Entry,
    trust: TrustRoot,
    now: datetime,
    asked: TransparencyLog | None = None,
) -> Logged | None:
    if entry.proof is None:
        return None
    statement = pack.read(entry.statement, STATEMENT_LIMIT)
    kind = claimed_kind(statement)
    if kind is None:
        return None
    proof = LogProof(pack.read(entry.proof, packing.PROOF_LIMIT))
    return proof.judge(statement, kind, trust, now, asked)


@dataclass(slots=True, kw_only=True)
class _Verifier:
    pack: Pack
    trust: TrustRoot
    data: TrustRoot
    policy: Policy | None
    now: datetime
    again: bool
    replays: Sequence[Replay] = ()
    problems: list[Problem] = field(default_factory=list)
    by_statement: dict[str, Opened] = field(default_factory=dict)
    by_tree: dict[str, Opened] = field(default_factory=dict)
    entries: dict[str, packing.Entry] = field(default_factory=dict)
    """By the statement's digest."""
    by_entry: dict[packing.Entry, Opened] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    """The statements that were read: one that is listed again is none more."""
    refused: list[str] = field(default_factory=list)
    ledgers: dict[str, bytes] = field(default_factory=dict)
    given: Given = field(init=False)
    on_request: frozenset[ChainLink] = field(init=False)
    """Of the links that are asked on request, those of which there is evidence."""

    def __post_init__(self) -> None:
        found = {ChainLink.REPLAY} if self.replays else set()
        if any(one.media_type == packing.TABLE_TYPE for one in self.pack.layers.values()):
            found.add(ChainLink.TABLES)
        self.on_request = frozenset(found)
        pieces = PackPieces(self.pack)
        self.given = Given(
            trust=self.trust,
            pieces=pieces,
            now=self.now,
            again=self.again,
            replays=self.replays,
        )

    def result(self, expect: Expectation | None) -> PackResult:
        """Everything; see the module."""
        listed = contents(self.pack)
        for entry in listed.statements:
            self._open(entry)
        opened = self.by_entry.get(listed.statements[0])
        if not opened or not isinstance(opened.predicate, CheckpointPredicate):
            self._refuse_subject()
            return self._made(None, (), None, 0)
        chain = list(self._ancestors(opened))
        judged: list[Judged] = []
        seen: datetime | None = None
        dataset: Opened | None = None
        for number, one in enumerate(chain):
            if number and not self._asks_all:
                break
            subject = self._subject(one)
            verdicts = judge_all(subject, self.given, self._asked(first=not number))
            judged.append(verdicts)
            if not number:
                seen = None if subject.logged is None else subject.logged.seen
                dataset = subject.dataset
            self._ask_statement(one, verdicts, None if number else expect, first=not number)
            self._ask_links(verdicts)
        if self._asks_all:
            self._ask_for_lost(chain)
        held = tuple(self._held(chain, listed))
        made = self._made(opened, tuple(judged), seen, len(chain) - 1)
        return replace(made, ancestors=tuple(chain[1:]), dataset=dataset, held=held)

    def _refuse_subject(self) -> None:
        """The end of rule 2: what is about no checkpoint shows nothing, whoever signed it."""
        if not self.problems:
            self._add(MALFORMED, "it is about no checkpoint", "the checkpoint's statement")

    def _held(self, chain: Sequence[Opened], listed: packing.Contents) -> Iterator[Holding]:
        """Rule 8."""
        line = main_line(chain[0], chain[1:])
        pieces = PackPieces(self.pack)
        known: set[str] = set()
        for entry in listed.statements:
            if entry.holds is None:
                continue
            whose = f"statement {entry.statement[:16]}"
            opened = self.by_entry.get(entry)
            try:
                if opened is None or opened.statement in known:
                    raise IntegrityError(MALFORMED, "bytes of nothing that verified, or twice")
                known.add(opened.statement)
                rows = partial(rows_wanted, line, opened, pieces)
                yield check(self.pack, entry.holds, entry.statement, opened, rows)
            except SecureTrainError as error:
                self._add(error.code, f"{whose}: {reason(error)}", error.where)

    @property
    def _required(self) -> frozenset[ChainLink]:
        named = frozenset() if self.policy is None else frozenset(self.policy.chain.require)
        return named | ({ChainLink.NODES} if self.again else frozenset())

    @property
    def _asks_all(self) -> bool:
        return self.policy is not None and self.policy.chain.depth is ChainDepth.ALL

    def _asked(self, *, first: bool) -> frozenset[ChainLink]:
        asked = frozenset(ChainLink) if first else self._required
        return asked - (_ON_REQUEST - self._required - self.on_request)

    def _made(
        self,
        subject: Opened | None,
        judged: tuple[Judged, ...],
        seen: datetime | None,
        num_ancestors: int,
    ) -> PackResult:
        problems = sorted(self.problems, key=lambda one: CODES[one.code].rank or 0)
        return PackResult(
            path=self.pack.path,
            subject=subject,
            judged=judged,
            problems=tuple(problems[:MAX_PROBLEMS]),
            required=self._required,
            num_ancestors=num_ancestors,
            num_documents=len(self.pack.layers),
            at=self.now,
            seen=seen,
        )

    def _open(self, entry: packing.Entry) -> None:
        """Rule 2."""
        if entry.statement in self.read:
            return
        self.read.add(entry.statement)
        first = entry.statement == self.pack.subject.hex
        try:
            if not _is_statement(self.pack.layers.get(entry.statement, self.pack.subject)):
                raise IntegrityError(MALFORMED, "an entry that is no statement", entry.statement)
            envelope = self.pack.read(entry.statement, STATEMENT_LIMIT)
            kind = claimed_kind(envelope)
            if kind is None:
                raise IntegrityError("ST-CKPT-101", "not a statement of ours", "")
            trust = self.trust if kind.value == "checkpoint" else self.data
            opened = open_statement(envelope, kind, trust, f"statement {entry.statement[:16]}")
        except SecureTrainError as error:
            if first:
                self._add(error.code, reason(error), "the checkpoint's statement")
            else:
                self.refused.append(f"{entry.statement[:16]}: {error.code} {reason(error)}")
            return
        self.by_statement.setdefault(opened.statement, opened)
        self.by_tree.setdefault(opened.digest, opened)
        if self.entries.setdefault(opened.statement, entry) is entry:
            self.by_entry[entry] = opened

    def _found(self, digests: Sequence[str], statements: Sequence[str]) -> Iterator[Opened]:
        """Rule 3: those of some digests that are in the pack."""
        whole = statements if len(statements) == len(digests) else [""] * len(digests)
        for digest, statement in zip(digests, whole, strict=True):
            found = self.by_statement.get(statement) or self.by_tree.get(digest)
            if found is not None:
                yield found

    def _parents(self, opened: Opened) -> Mapping[str, Opened]:
        said = opened.checkpoint
        found = self._found([one.digest for one in said.parents], said.bound.parents)
        return {one.digest: one for one in found if isinstance(one.predicate, CheckpointPredicate)}

    def _ancestors(self, opened: Opened) -> Iterator[Opened]:
        """The checkpoint and all it was made from, each once."""
        waiting, known = [opened], {opened.statement}
        while waiting:
            one = waiting.pop()
            yield one
            for parent in self._parents(one).values():
                if parent.statement not in known:
                    known.add(parent.statement)
                    waiting.append(parent)

    def _ask_for_lost(self, chain: Sequence[Opened]) -> None:
        """The end of rule 4."""
        for one in chain:
            said, found = one.checkpoint, self._parents(one)
            bound: Sequence[str | None] = said.bound.parents or [None] * len(said.parents)
            for parent, statement in zip(said.parents, bound, strict=True):
                there = found.get(parent.digest)
                if there is not None and statement in {None, there.statement}:
                    continue
                why = "it is not in the pack" if there is None else "not by the bound statement"
                what = f"parent {parent.role} {parent.digest[:16]} of step {said.step}"
                for link in sorted(self._required):
                    self._add(code_of(link), f"{what}: {link} missing: {why}", "")

    def _subject(self, opened: Opened) -> Subject:
        said, entry = opened.checkpoint, self.entries[opened.statement]
        bound = [said.bound.dataset] if said.bound.dataset is not None else []
        named = [said.dataset.digest] if said.dataset.digest else []
        dataset = next(iter(self._found(named, bound)), None)
        return Subject(
            opened=opened,
            parents=self._parents(opened),
            known=self.by_tree,
            dataset=dataset
            if dataset is not None and isinstance(dataset.predicate, DatasetPredicate)
            else None,
            logged=self._proof_of(entry, opened),
            ledger=self._ledger_of(entry),
        )

    def _proof_of(self, entry: packing.Entry, opened: Opened) -> Logged | None:
        asked = None if self.policy is None else self.policy.checkpoint.log
        step = f"step {opened.checkpoint.step}"
        if entry.proof is None and asked is not None:
            self._add("ST-CKPT-180", f"{step}: the pack has no proof of it", "its proof")
        try:
            return _logged(self.pack, entry, self.trust, self.now, asked)
        except SecureTrainError as error:
            self._add(error.code, f"{step}: {reason(error)}", "its proof")
            return None

    def _ledger_of(self, entry: packing.Entry) -> bytes | None:
        if entry.ledger is None or entry.ledger not in self.pack:
            return None
        if entry.ledger not in self.ledgers:
            while len(self.ledgers) >= MAX_LEDGERS:
                del self.ledgers[next(iter(self.ledgers))]
            self.ledgers[entry.ledger] = self.pack.read(entry.ledger, packing.LEDGER_LIMIT)
        return self.ledgers[entry.ledger]

    def _ask_statement(
        self, opened: Opened, judged: Judged, expect: Expectation | None, *, first: bool
    ) -> None:
        """Rule 5."""
        nodes = judged.verdicts[ChainLink.NODES]
        shown = Shown(
            tiers=nodes.tiers,
            problem=None if nodes.state is LinkState.NOT_ASKED else nodes.problem(),
        )
        asked = Asked(
            trust=self.trust,
            policy=self.policy,
            now=self.now,
            nodes=first or ChainLink.NODES in self._required,
            expect=expect,
            shown=shown,
        )
        for problem in judge_statement(opened, asked):
            self._add(problem.code, f"step {judged.step}: {problem.what}", problem.file)

    def _ask_links(self, judged: Judged) -> None:
        """Rule 6."""
        for link, verdict in judged.verdicts.items():
            if verdict.state is LinkState.NOT_ASKED:
                continue
            problem = verdict.problem()
            if problem is None:
                continue
            if link in self._required or verdict.state is LinkState.BROKEN:
                where = f"run {judged.run}, step {judged.step} ({judged.digest[:16]}): "
                hint = f"; {self.refused[0]}" if self.refused else ""
                self._add(problem.code, where + problem.what + hint, problem.file)

    def _add(self, code: str, what: str, where: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code=code, what=what, file=where))
