# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judge a checkpoint, and its ancestors, by the evidence of their runs.

Rules:

1. evidence lies in the run directory that holds the checkpoint, and in the folders that are given;
   it counts by its digest and its signatures, wherever it lies;
2. links are judged with or without a policy, and a broken one refuses (`judging`). Without a policy
   that requires links, parents and dataset are looked for right beside the checkpoint and its run
   only, and what is not found there is missing, which refuses nothing;
3. of each ancestor is asked, too, whether it was set aside, and for the proof where the policy asks
   for a log.

`answer` is everything that ``verify`` can be asked, whichever kind of artifact there is:

4. `artifacts.guess` tells a pack, what a script saved, and the transcript of a dispute; anything
   else is a checkpoint or a dataset;
5. evidence of nodes is asked where there is a policy: from the run directory around the artifact,
   and the directories that are named;
6. at its witnesses' time, a pack is judged as of the moment at which they had seen it, by the trust
   root of that time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts import (
    CheckedWords,
    Examined,
    Expectation,
    Problem,
    SavedResult,
    TargetKind,
    VerifyResult,
    Wanted,
    check_words,
    examine,
    guess,
    verify_saved,
)
from securetrain.artifacts.lineage import Link, LogProof, quarantine
from securetrain.artifacts.statement import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    Shown,
    read_statement,
)
from securetrain.chain.container import Pack
from securetrain.chain.judging import Demand, Judged, Judgement, judge, judge_chain
from securetrain.chain.links import Given, Subject
from securetrain.chain.packed import PackResult, claimed_time, verify_pack, witnessed
from securetrain.chain.replayed import read_replay
from securetrain.chain.store import Places
from securetrain.core.errors import IntegrityError, SecureTrainError, reason
from securetrain.core.files import read_file
from securetrain.core.vocabulary import ChainLink
from securetrain.identity import load_trust
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import Policy, TransparencyLog

LEDGER_LIMIT: Final = 1 << 30
Found: TypeAlias = Examined | PackResult | SavedResult | CheckedWords
"""The answer about an artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedArtifact(Examined):
    """The answers about a checkpoint, with the verdicts on its links."""

    judged: tuple[Judged, ...]
    """The checkpoint's, and those of the ancestors that were asked."""
    required: frozenset[ChainLink]


@dataclass(slots=True, kw_only=True)
class Evidence:
    """The evidence that a verifier has, and its judgement of a checkpoint by that."""

    trust: TrustRoot
    places: Sequence[Path]
    """Run directories, or their folders of evidence."""
    now: datetime
    policy: Policy | None
    expect: Expectation | None = None
    again: bool = False
    """See `Given`."""
    found: Judgement | None = None
    """The verdicts, once it was judged."""
    given: Given = field(init=False)
    demand: Demand = field(init=False)

    def __post_init__(self) -> None:
        pieces = Places.of(self.places)
        self.given = Given(trust=self.trust, pieces=pieces, now=self.now, again=self.again)
        # Its own statement was asked when the directory was verified.
        self.demand = Demand(
            policy=self.policy, expect=self.expect, again=self.again, statement=False
        )

    def shows(self, opened: Opened) -> Shown:
        """The tiers that evidence shows for a checkpoint's nodes."""
        verdict = judge(ChainLink.NODES, Subject(opened=opened), self.given)
        return Shown(tiers=verdict.tiers, problem=verdict.problem())

    def problems(self, result: VerifyResult, chain: Link) -> list[Problem]:
        """Judge a checkpoint that was verified; returns what refuses it.

        Args:
            result: What verifying it found.
            chain: The checkpoint, with what it was made from as far as that was found.
        """
        opened = result.opened
        if opened is None or not isinstance(opened.predicate, CheckpointPredicate):
            return []
        source = _Directories(
            chain=chain,
            trust=self.trust,
            now=self.now,
            log=None if self.policy is None else self.policy.checkpoint.log,
            logged=result.logged,
        )
        self.found = judge_chain(source, self.given, self.demand)
        return self.found.problems


@dataclass(slots=True, kw_only=True)
class _Directories:
    """Signed directories that lead to a checkpoint; a source of evidence (`judging.Source`)."""

    chain: Link
    trust: TrustRoot
    now: datetime
    log: TransparencyLog | None
    logged: Logged | None
    """The place of the checkpoint itself in the log."""
    ledgers: dict[Path, bytes | None] = field(default_factory=dict)
    refused: str = ""

    def subjects(self) -> Iterator[Subject]:
        """See `judging.Source`."""
        known = {
            one.digest: one.opened
            for one in self.chain.every()
            if one.opened is not None and isinstance(one.opened.predicate, CheckpointPredicate)
        }
        for link in self.chain.every():
            opened, first = link.opened, link is self.chain
            if opened is None or not isinstance(opened.predicate, CheckpointPredicate):
                continue
            if not first and _is_repeated(link):
                continue
            logged, doubts = (self.logged, []) if first else self._beside(link, opened)
            yield Subject(
                opened=opened,
                parents=_opened(link, CheckpointPredicate),
                known=known,
                dataset=next(iter(_opened(link, DatasetPredicate).values()), None),
                logged=logged,
                ledger=self._ledger(link),
                doubts=doubts,
            )

    def _beside(self, link: Link, opened: Opened) -> tuple[Logged | None, list[Problem]]:
        """Rule 3: an ancestor's place in the log, and what speaks against it."""
        assert link.path is not None
        doubts = quarantine.check(link.path, opened, self.trust)
        try:
            proof = LogProof.beside(link.path)
            statement = read_statement(link.path, opened.kind)
            return proof.judge(statement, opened.kind, self.trust, self.now, self.log), doubts
        except SecureTrainError as error:
            if self.log is not None:
                doubts.append(Problem(code=error.code, what=reason(error)))
            return None, doubts

    def _ledger(self, link: Link) -> bytes | None:
        """The ledger of the run whose directory holds a checkpoint; read once."""
        if not isinstance(link.path, Path):
            return None
        path = link.path.absolute().parent.parent / "ledger.jsonl"
        if path not in self.ledgers:
            try:
                self.ledgers[path] = read_file(path, LEDGER_LIMIT) if path.is_file() else None
            except SecureTrainError:
                self.ledgers[path] = None
        return self.ledgers[path]

    def lost(self) -> Iterator[tuple[str, str]]:
        """See `judging.Source`."""
        for link in self.chain.every():
            if not isinstance(link.said, CheckpointPredicate) or _is_repeated(link):
                continue
            bound: Sequence[str | None] = link.said.bound.parents or [None] * len(link.said.parents)
            below = [one for one in link.links if "parent" in one.role]
            for one, statement in zip(below, bound, strict=True):
                if one.opened is None:
                    yield f"{one.role} {one.digest[:16]}", one.problem
                elif statement not in {None, one.opened.statement}:
                    yield f"{one.role} {one.digest[:16]}", "not by the bound statement"


def near(path: Path | str) -> list[Path]:
    """The run directory around a checkpoint that lies where a run saves it."""
    return [path.absolute().parent.parent] if isinstance(path, Path) else []


def _opened(
    link: Link, kind: type[CheckpointPredicate] | type[DatasetPredicate]
) -> dict[str, Opened]:
    return {
        one.digest: one.opened
        for one in link.links
        if one.opened is not None and isinstance(one.opened.predicate, kind)
    }


def _is_repeated(link: Link) -> bool:
    """Tell whether a link's own links stand elsewhere: it was judged there."""
    said = link.said
    return isinstance(said, CheckpointPredicate) and bool(said.parents) and not link.links


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question about an artifact, and the signatures that count."""

    trust: Path
    """The file of the trust root."""
    data: Path | None = None
    """That of whoever made its dataset, where `trust` does not name them."""
    auditors: Path | None = None
    """That of whoever did steps again, likewise."""
    policy: LoadedPolicy | None = None
    expect: Expectation | None = None
    again: bool = False
    """Whether the evidence behind results is judged again."""
    at_witness: bool = False
    """Rule 6."""
    replayed: Sequence[Path] = ()
    """Of a pack: signed results of steps that were done again."""
    evidence: Sequence[Path] = ()
    """Further run directories with evidence of its nodes."""
    wanted: Wanted = field(default_factory=Wanted)
    """Of a checkpoint or dataset: what else is asked."""

    def judge(self, pack: Pack, now: datetime) -> PackResult:
        """A pack's verification, now or at its witnesses' time."""
        auditors = load_trust(self.auditors or self.trust, now) if self.replayed else None
        replays = [read_replay(one, auditors) for one in self.replayed] if auditors else []
        if self.at_witness:
            now = _seen(pack, self.trust, now)
        return verify_pack(
            pack,
            trust=load_trust(self.trust, now),
            data=None if self.data is None else load_trust(self.data, now),
            policy=None if self.policy is None else self.policy.policy,
            expect=self.expect,
            again=self.again,
            replays=replays,
            now=now,
        )


def answer(
    path: Path | str,
    asked: Question,
    now: datetime,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Verify what is at `path`, whichever kind of artifact it is."""
    match guess(path).kind:
        case TargetKind.PACK:
            with Pack.open(Path(path)) as opened:
                return asked.judge(opened, now)
        case TargetKind.SAVED:
            policy = None if asked.policy is None else asked.policy.policy
            trust = load_trust(asked.trust, now)
            return verify_saved(
                Path(path), trust=trust, policy=policy, now=now, expect=asked.expect
            )
        case TargetKind.TRANSCRIPT:
            return check_words(Path(path), load_trust(asked.trust, now))
        case _:
            return _examined(path, asked, now, progress)


def _examined(
    path: Path | str,
    asked: Question,
    now: datetime,
    progress: Callable[[int, int], None] | None,
) -> Examined:
    trust, policy = load_trust(asked.trust, now), asked.policy
    data = None if asked.data is None else load_trust(asked.data, now)
    evidence = Evidence(
        trust=trust,
        places=(*near(path), *asked.evidence),
        now=now,
        policy=None if policy is None else policy.policy,
        expect=asked.expect,
        again=asked.again,
    )
    wanted = replace(
        asked.wanted,
        expect=asked.expect,
        data=data,
        walk=asked.wanted.walk or asked.again or bool(policy and policy.policy.chain.require),
        shows=evidence.shows,
        links=evidence.problems,
    )
    found = examine(path, wanted, trust=trust, policy=policy, now=now, progress=progress)
    if evidence.found is None:
        return found
    answers = {one.name: getattr(found, one.name) for one in fields(found)}
    return JudgedArtifact(
        **answers, judged=tuple(evidence.found.judged), required=evidence.demand.required
    )


def _seen(opened: Pack, trust: Path, now: datetime) -> datetime:
    """The time at which the witnesses had seen it, by the trust root of that time."""
    claimed = claimed_time(opened)
    if claimed is None or claimed > now:
        claimed = now
    seen = witnessed(opened, load_trust(trust, claimed), now)
    if seen is not None and seen <= now:
        # What counted when they saw it decides; the claim only said where to look first.
        seen = witnessed(opened, load_trust(trust, seen), seen)
    if seen is None or seen > now:
        raise IntegrityError(
            "ST-CHAN-021",
            "no witness says when it was signed, so it cannot be judged at that time",
            str(opened.path),
            "verify it without --at witness, or have checkpoints logged with witnesses",
        )
    return seen
