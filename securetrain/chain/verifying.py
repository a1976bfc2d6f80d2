# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judge a checkpoint, and its ancestors, by the evidence of their runs.

Rules:

1. evidence lies in the run directory that holds the checkpoint, and in the folders that are given;
   it counts by its digest and its signatures, wherever it lies;
2. the links that a policy requires are asked of the checkpoint, and with ``depth: all`` of every
   ancestor for itself; one that was not found, or by another statement than the bound one, has all
   of them missing. Of each ancestor is asked, too, what the policy asks of a statement, whether it
   was set aside, and for the proof where the policy asks for a log;
3. nothing here recurses: a run saves thousands of checkpoints in a row.

`answer` is everything that ``verify`` can be asked, whichever kind of artifact there is:

4. a pack, what a script saved, and the transcript of a dispute are known by their form; anything
   else is a checkpoint or a dataset;
5. evidence of nodes is asked where there is a policy: from the run directory around the artifact,
   and the directories that are named;
6. at its witnesses' time, a pack is judged as of the moment at which they had seen it, by the trust
   root of that time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.artifacts import (
    CheckedWords,
    Examined,
    Expectation,
    Problem,
    SavedResult,
    VerifyResult,
    Wanted,
    check_words,
    examine,
    has_saved,
    is_words,
    verify_saved,
)
from securetrain.artifacts.lineage import Asked, Link, LogProof, judge_statement, quarantine
from securetrain.artifacts.statement import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
    Shown,
    read_statement,
)
from securetrain.chain.container import Pack, is_pack
from securetrain.chain.judging import Judged, judge, judge_all
from securetrain.chain.links import Given, Subject, code_of
from securetrain.chain.packed import PackResult, claimed_time, verify_pack, witnessed
from securetrain.chain.replayed import read_replay
from securetrain.chain.store import Places
from securetrain.core.errors import IntegrityError, SecureTrainError, reason
from securetrain.core.files import read_file
from securetrain.core.vocabulary import ChainDepth, ChainLink, LinkState
from securetrain.identity import load_trust
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import Policy, TransparencyLog

LEDGER_LIMIT: Final = 1 << 30
MAX_PROBLEMS: Final = 1000
Found: TypeAlias = Examined | PackResult | SavedResult | CheckedWords
"""The answer about an artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence that a verifier has, and its judgement of artifacts by that."""

    trust: TrustRoot
    places: Sequence[Path]
    """Run directories, or their folders of evidence."""
    now: datetime
    again: bool = False
    """See `Given`."""

    def required(self, policy: Policy) -> frozenset[ChainLink]:
        """The links that are required: the policy's, and `nodes` where that is judged again."""
        return frozenset(policy.chain.require) | ({ChainLink.NODES} if self.again else set())

    def shows(self, opened: Opened) -> Shown:
        """The tiers that evidence shows for a checkpoint's nodes."""
        verdict = judge(ChainLink.NODES, Subject(opened=opened), self._given())
        return Shown(tiers=verdict.tiers, problem=verdict.problem())

    def problems(self, policy: Policy, chain: Link, result: VerifyResult) -> list[Problem]:
        """The links that a policy requires and that are not verified."""
        found: list[Problem] = []
        required = self.required(policy)
        for number, (link, judged) in enumerate(self._every(policy, chain, result)):
            told = [
                problem
                for verdict in judged.verdicts.values()
                if verdict.link in required and (problem := verdict.problem()) is not None
            ]
            if number:
                told += self._of_ancestor(link, judged, policy)
            where = f"run {judged.run}, step {judged.step} ({judged.digest[:16]}): "
            found += [Problem(code=one.code, what=where + one.what) for one in told]
            if len(found) > MAX_PROBLEMS:
                return found[:MAX_PROBLEMS]
        if required and policy.chain.depth is ChainDepth.ALL:
            found += self._not_found(required, chain)
        return found

    def _of_ancestor(self, link: Link, judged: Judged, policy: Policy) -> Iterator[Problem]:
        """The end of rule 2, without its links."""
        assert link.opened is not None
        nodes = judged.verdicts[ChainLink.NODES]
        is_asked = nodes.state is not LinkState.NOT_ASKED
        asked = Asked(
            trust=self.trust,
            policy=policy,
            now=self.now,
            nodes=is_asked,
            shown=Shown(tiers=nodes.tiers, problem=nodes.problem() if is_asked else None),
        )
        yield from judge_statement(link.opened, asked)
        if isinstance(link.path, Path):
            yield from quarantine.check(link.path, link.opened, self.trust)
        if policy.checkpoint.log is not None:
            yield from self._unproven(link, policy.checkpoint.log)

    def _unproven(self, link: Link, asked: TransparencyLog) -> Iterator[Problem]:
        """The reason why an ancestor is not proven to be logged: the proof lies beside it."""
        assert link.opened is not None
        assert link.path is not None
        try:
            statement = read_statement(link.path, link.opened.kind)
            proof = LogProof.beside(link.path)
            proof.judge(statement, link.opened.kind, self.trust, self.now, asked)
        except SecureTrainError as error:
            yield Problem(code=error.code, what=reason(error))

    def judged(self, policy: Policy, chain: Link, result: VerifyResult) -> Iterator[Judged]:
        """The verdicts on each checkpoint that the policy asks about."""
        return (judged for _, judged in self._every(policy, chain, result))

    def _every(
        self, policy: Policy, chain: Link, result: VerifyResult
    ) -> Iterator[tuple[Link, Judged]]:
        given, ledgers = self._given(), dict[Path, bytes | None]()
        known = {
            one.digest: one.opened
            for one in chain.every()
            if one.opened is not None and isinstance(one.opened.predicate, CheckpointPredicate)
        }
        for number, link in enumerate(chain.every()):
            opened = link.opened
            if opened is None or not isinstance(opened.predicate, CheckpointPredicate):
                continue
            if number and (policy.chain.depth is not ChainDepth.ALL or _is_repeated(link)):
                continue
            subject = Subject(
                opened=opened,
                parents=_opened(link, CheckpointPredicate),
                known=known,
                dataset=next(iter(_opened(link, DatasetPredicate).values()), None),
                logged=result.logged if number == 0 else None,
                ledger=self._ledger(link, ledgers),
            )
            yield link, judge_all(subject, given, self.required(policy))

    def _given(self) -> Given:
        return Given(
            trust=self.trust, pieces=Places.of(self.places), now=self.now, again=self.again
        )

    @staticmethod
    def _ledger(link: Link, known: dict[Path, bytes | None]) -> bytes | None:
        """The ledger of the run whose directory holds a checkpoint; read once."""
        if not isinstance(link.path, Path):
            return None
        path = link.path.absolute().parent.parent / "ledger.jsonl"
        if path not in known:
            try:
                known[path] = read_file(path, LEDGER_LIMIT) if path.is_file() else None
            except SecureTrainError:
                known[path] = None
        return known[path]

    @staticmethod
    def _not_found(required: frozenset[ChainLink], chain: Link) -> list[Problem]:
        """Rule 2, for ancestors of which there is no statement."""
        lost = list(islice(_lost(chain), 100))
        return [
            Problem(code=code_of(link), what=f"{one.role} {one.digest[:16]}: {link} missing: {why}")
            for one, why in lost
            for link in sorted(required)
        ]


def _lost(chain: Link) -> Iterator[tuple[Link, str]]:
    """Parents of which the bound statement is not there, and why."""
    for link in chain.every():
        if not isinstance(link.said, CheckpointPredicate) or _is_repeated(link):
            continue
        bound: Sequence[str | None] = link.said.bound.parents or [None] * len(link.said.parents)
        below = [one for one in link.links if "parent" in one.role]
        for one, statement in zip(below, bound, strict=True):
            if one.opened is None:
                yield one, one.problem
            elif statement not in {None, one.opened.statement}:
                yield one, "not by the bound statement"


def near(path: Path | str) -> list[Path]:
    """The run directory around a checkpoint that lies where a run saves it."""
    if not isinstance(path, Path):
        return []
    return [path.absolute().parent.parent]


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


class Form(Enum):
    """The kinds of artifact, by their form."""

    PACK = auto()
    SAVED = auto()
    TRANSCRIPT = auto()
    NATIVE = auto()

    @classmethod
    def of(cls, path: Path | str) -> "Form":
        """Rule 4. What lies in a store is a checkpoint or a dataset."""
        if isinstance(path, Path):
            for form, found in ((cls.PACK, is_pack), (cls.SAVED, has_saved)):
                if found(path):
                    return form
        return cls.TRANSCRIPT if is_words(path) else cls.NATIVE


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
    match Form.of(path):
        case Form.PACK:
            with Pack.open(Path(path)) as opened:
                return asked.judge(opened, now)
        case Form.SAVED:
            policy = None if asked.policy is None else asked.policy.policy
            trust = load_trust(asked.trust, now)
            return verify_saved(
                Path(path), trust=trust, policy=policy, now=now, expect=asked.expect
            )
        case Form.TRANSCRIPT:
            return check_words(Path(path), load_trust(asked.trust, now))
        case Form.NATIVE:
            return _examined(path, asked, now, progress)


def _examined(
    path: Path | str,
    asked: Question,
    now: datetime,
    progress: Callable[[int, int], None] | None,
) -> Examined:
    trust, policy = load_trust(asked.trust, now), asked.policy
    wanted = replace(
        asked.wanted,
        expect=asked.expect,
        data=load_trust(asked.data, now) if asked.data is not None else None,
    )
    if policy is not None:
        places = (*near(path), *asked.evidence)
        evidence = Evidence(trust=trust, places=places, now=now, again=asked.again)
        required = bool(evidence.required(policy.policy))
        links = partial(evidence.problems, policy.policy) if required else None
        wanted = replace(wanted, shows=evidence.shows, links=links)
    return examine(path, wanted, trust=trust, policy=policy, now=now, progress=progress)


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
