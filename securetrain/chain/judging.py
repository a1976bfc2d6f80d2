# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The judges, one for each link, and what becomes of their verdicts, wherever evidence lies.

Rules:

1. a link without a judge in this version is ``missing``: required, it is a refusal;
2. an exception in a judge is ``broken``, never a pass;
3. links are judged one by one: a broken one makes no other one pass or fail, and all are said;
4. every link of the checkpoint that was asked about is judged, but those of `ON_REQUEST`; of its
   ancestors with ``depth: all`` those that the policy requires. Each is asked for itself: one that
   was not found, or by another statement than the one that is bound, has every required link
   missing, so that leaving a statement out is no way to have it not asked;
5. what the policy asks of a statement itself, and of what lies with it, is asked of each that rule
   4 judges: of an ancestor everything but which artifact was expected and whether it is the newest.
   A proof that lies with one must hold, and there is one where the policy asks for a log;
6. a required link that is not verified refuses, and so does a broken one, whoever requires it;
7. nothing here recurses: a run saves thousands of checkpoints in a row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from securetrain.artifacts import STATEMENT, Expectation, Problem, rules
from securetrain.artifacts.lineage import LogProof, judging, proof_name
from securetrain.chain import kept, nodes, steps
from securetrain.chain.kept import judge_replay
from securetrain.chain.links import Given, Judge, LinkVerdict, Subject, broken, code_of, missing
from securetrain.chain.tables import judge_tables
from securetrain.core.errors import SecureTrainError, reason
from securetrain.core.vocabulary import ChainDepth, ChainLink, LinkState
from securetrain.identity import dsse
from securetrain.policy.schema import Policy

JUDGES: Final[dict[ChainLink, Judge]] = {
    ChainLink.NODES: nodes.judge_nodes,
    ChainLink.MEMBERSHIP: nodes.judge_membership,
    ChainLink.POLICY: kept.judge_policy,
    ChainLink.JOB: kept.judge_job,
    ChainLink.CODE: kept.judge_code,
    ChainLink.ENVIRONMENT: kept.judge_environment,
    ChainLink.DATASET: kept.judge_dataset,
    ChainLink.ROWS: steps.judge_rows,
    ChainLink.GRADIENTS: steps.judge_gradients,
    ChainLink.PARENTS: kept.judge_parents,
    ChainLink.LEDGER: kept.judge_ledger,
    ChainLink.LOG: kept.judge_log,
    ChainLink.TIME: kept.judge_time,
    ChainLink.TABLES: judge_tables,
    ChainLink.REPLAY: judge_replay,
}
"""The judges of this version."""

ON_REQUEST: Final = frozenset({ChainLink.REPLAY, ChainLink.TABLES})
"""Links of which there is mostly no evidence, and nobody misses it."""
MAX_PROBLEMS: Final = 1000
_NOT_ASKED: Final = {link: LinkVerdict(link=link, state=LinkState.NOT_ASKED) for link in ChainLink}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts on one checkpoint of a chain."""

    digest: str
    step: int
    run: str
    verdicts: Mapping[ChainLink, LinkVerdict]

    def shows(self, link: ChainLink) -> bool:
        """Tell whether evidence shows what the statement says of a link."""
        return self.verdicts[link].state is LinkState.VERIFIED


def judge(link: ChainLink, subject: Subject, given: Given) -> LinkVerdict:
    """Judge one link; never raises (rule 2)."""
    found = JUDGES.get(link)
    if found is None:
        return missing(link, "this version cannot verify it")
    try:
        verdict = found(subject, given)
    except SecureTrainError as error:
        return broken(link, f"{error.code}: {reason(error)}", where=error.where)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is no pass
        return broken(link, f"it could not be judged: {type(error).__name__}: {error}"[:500])
    if verdict.link is not link:
        return broken(link, f"its judge spoke of {verdict.link}")
    return verdict


def judge_all(subject: Subject, given: Given, required: Iterable[ChainLink]) -> Judged:
    """Judge every link that is asked; the others are said not to be."""
    asked = frozenset(required)
    return Judged(
        digest=subject.opened.digest,
        step=subject.said.step,
        run=subject.said.run_id,
        verdicts={
            link: judge(link, subject, given) if link in asked else not_asked
            for link, not_asked in _NOT_ASKED.items()
        },
    )


class Source(Protocol):
    """A checkpoint and what it was made from, as far as that is at hand: a pack, or a directory and
    what lies around it.
    """

    @property
    def refused(self) -> str:
        """A statement that did not verify, and why; empty when there is none."""

    def subjects(self) -> Iterator[Subject]:
        """The checkpoint, then what it was made from, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The demands on a chain."""

    policy: Policy | None = None
    expect: Expectation | None = None
    """With the name of a dataset, the link ``dataset`` is required: the statement only says it."""
    known: judging.Freshness | None = None
    """What the verifier knows of its run besides."""
    again: bool = False
    """Whether evidence behind results is judged again: that requires the link ``nodes``."""
    at_hand: frozenset[ChainLink] = frozenset()
    """Of `ON_REQUEST`, the links of which there is evidence."""
    statement: bool = True
    """Whether the checkpoint's own statement is asked here, and nowhere else."""

    @property
    def required(self) -> frozenset[ChainLink]:
        """The links that must be verified."""
        found = set() if self.policy is None else set(self.policy.chain.require)
        if self.again or (self.policy is not None and self.policy.chain.appraise):
            found.add(ChainLink.NODES)
        mine = None if self.policy is None else self.policy.checkpoint.expect
        if any(one is not None and one.dataset_name for one in (self.expect, mine)):
            found.add(ChainLink.DATASET)
        return frozenset(found)

    @property
    def of_all(self) -> bool:
        """True when ancestors are asked, too."""
        return self.policy is not None and self.policy.chain.depth is ChainDepth.ALL

    @property
    def walks(self) -> bool:
        """True when more is asked than what it was made from at once."""
        counts = self.policy is not None and self.policy.checkpoint.counts_steps
        return self.of_all or counts

    def links(self, *, first: bool) -> frozenset[ChainLink]:
        """The links that are judged of the checkpoint, or of an ancestor."""
        asked = frozenset(ChainLink) if first else self.required
        return asked - (ON_REQUEST - self.required - self.at_hand)


@dataclass(slots=True, kw_only=True)
class Judgement:
    """The verdicts on a checkpoint and on the ancestors that were asked, and what refuses them."""

    judged: list[Judged] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    first: Subject | None = None
    """The checkpoint that was asked about."""
    excused: list[Problem] = field(default_factory=list)
    """What waivers let pass of its statement, where that is asked here."""

    def add(self, code: str, what: str, where: str = "") -> None:
        """Take a problem, unless there are `MAX_PROBLEMS`."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code=code, what=what, file=where))


def judge_chain(source: Source, given: Given, demand: Demand) -> Judgement:
    """Judge a checkpoint by its evidence; see the module."""
    chain = Judgement()
    lost: list[tuple[str, str]] = []
    for found in source.subjects():
        first = not chain.judged
        if not first and not demand.of_all:
            break
        subject, unproven = _proven(found, given, demand)
        judged = judge_all(subject, given, demand.links(first=first))
        chain.judged.append(judged)
        if first:
            chain.first = subject
            chain.problems += counted_steps(subject, given, demand.policy)
        if demand.statement or not first:
            _ask_statement(chain, subject, given, demand, unproven)
        _ask_links(chain, judged, demand, source.refused)
        lost += _lost(subject) if demand.of_all else ()
    for which, why in lost:
        for link in sorted(demand.required):
            chain.add(code_of(link), f"{which}: {link} missing: {why}")
    return chain


def _lost(subject: Subject) -> Iterator[tuple[str, str]]:
    """The parents of a checkpoint whose bound statement is not there."""
    said = subject.said
    whole = len(said.bound.parents) == len(said.parents)
    bound = said.bound.parents if whole else [None] * len(said.parents)
    for parent, statement in zip(said.parents, bound, strict=True):
        there = subject.parents.get(parent.digest)
        if there is None or statement not in {None, there.statement}:
            why = "it is not at hand" if there is None else "not by the bound statement"
            yield f"parent {parent.role} {parent.digest[:16]} of step {said.step}", why


def _proven(subject: Subject, given: Given, demand: Demand) -> tuple[Subject, list[Problem]]:
    """A checkpoint with its place in the log, and why the proof of that does not count."""
    opened, beside = subject.opened, subject.beside
    log = None if demand.policy is None else demand.policy.checkpoint.log
    try:
        has_proof = beside.above().has(proof_name(beside.base))
        if subject.logged is not None or not (log or has_proof):
            return subject, []
        data = beside.read(STATEMENT, dsse.ENVELOPE_LIMIT)
        logged = LogProof.beside(beside).judge(data, opened.kind, given.trust, given.now, log)
    except (OSError, SecureTrainError) as error:
        code = error.code if isinstance(error, SecureTrainError) else "ST-CKPT-180"
        return subject, [Problem(code, reason(error), "its proof")]
    return replace(subject, logged=logged), []


def counted_steps(subject: Subject, given: Given, policy: Policy | None) -> list[Problem]:
    """Ask for the documents of what a policy counts."""
    lacking = () if policy is None else steps.window(subject, given, policy.checkpoint)
    return [
        Problem(code_of(one.link), f"{one.link} {one.state}: {one.what}", "") for one in lacking
    ]


def _ask_statement(
    chain: Judgement, subject: Subject, given: Given, demand: Demand, unproven: Sequence[Problem]
) -> None:
    """Rule 5."""
    judged, first = chain.judged[-1], len(chain.judged) == 1
    tiers = judged.verdicts[ChainLink.NODES]
    is_asked = tiers.state is not LinkState.NOT_ASKED
    problem = tiers.problem() if is_asked else None
    shown = rules.Shown(tiers=tiers.tiers, problem=problem, steps=True)
    asked = judging.Asked(
        trust=given.trust,
        policy=demand.policy,
        now=given.now,
        known=demand.known if first else None,
        newest=first,
        nodes=first or is_asked,
        expect=demand.expect if first else None,
        shown=shown,
    )
    answer = judging.judge(subject.opened, subject.beside, asked)
    chain.excused += answer.excused if first else ()
    for one in (*answer.problems, *unproven):
        chain.add(one.code, f"step {judged.step}: {one.what}", one.file)


def _ask_links(chain: Judgement, judged: Judged, demand: Demand, refused: str) -> None:
    """Rule 6."""
    where = f"run {judged.run}, step {judged.step} ({judged.digest[:16]}): "
    for link, verdict in judged.verdicts.items():
        if verdict.state is LinkState.NOT_ASKED or (problem := verdict.problem()) is None:
            continue
        if link in demand.required or verdict.state is LinkState.BROKEN:
            hint = f"; {refused}" if refused else ""
            chain.add(problem.code, where + problem.what + hint, problem.file)
