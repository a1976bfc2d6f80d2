# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What each judge says, in which state, of each thing that is not there or not the same. No torch.

Both states refuse; which one it is tells an auditor whether to look for evidence or for a liar.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    DatasetRef,
    Opened,
    Parent,
    ParentRole,
    PolicyRef,
)
from securetrain.artifacts.tree.layout import Kind
from securetrain.chain import documents
from securetrain.chain.judging import judge
from securetrain.chain.links import LinkVerdict, Subject
from securetrain.core import canonical
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.policy.load import load_policy
from tests.chain.worlds import MINUTE, NOW, Job, dataset, opened, rebound
from tests.tables import items

MISSING, BROKEN, VERIFIED = LinkState.MISSING, LinkState.BROKEN, LinkState.VERIFIED
PARENT, BASE = "aa" * 32, "ba" * 32


@dataclass
class Case:
    """A checkpoint with everything that a link leads to, of which one thing is changed."""

    job: Job
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = canonical.encode(load_policy("baseline").policy)
        self.policy = self.job.pieces.put(policy)
        keep = self.job.pieces.keep
        self.declared = keep(documents.Declared(program="p", settings={}))
        program = documents.Input(name="train.py", sha256="ab" * 32)
        self.of_job = keep(documents.Job(program=program, declared=self.declared))
        torch = documents.Distribution(name="torch", version="2")
        self.code = keep(documents.Code(distributions=(torch,)))
        self.environment = keep(documents.Environment(torch="2"))
        self.parent = self._opened(self.job.checkpoint(NOW, step=8, seq=0), PARENT, "a1" * 32)
        self.dataset = Opened(
            kind=Kind.DATASET,
            predicate=dataset(),
            digest="da" * 32,
            key_ids=frozenset(),
            statement="d1" * 32,
        )

    @staticmethod
    def _opened(said: CheckpointPredicate, digest: str, statement: str) -> Opened:
        return replace(opened(said, digest), statement=statement)

    def said(self, bound: dict[str, Any] | None = None, **changes: Any) -> CheckpointPredicate:
        binds = {
            "membership": self.job.keeper.bound(1),
            "policy": self.policy,
            "job": self.of_job,
            "code": self.code,
            "environment": self.environment,
            "parents": ["a1" * 32],
            "dataset": "d1" * 32,
        } | (bound or {})
        fields: dict[str, Any] = {
            "bound": Bound(**binds),
            "policy": PolicyRef(id="baseline", digest=self.policy),
            "parents": [Parent(digest=PARENT)],
            "dataset": DatasetRef(name="prose", digest="da" * 32),
        }
        return self.job.checkpoint(**(fields | changes))

    def judge(self, link: ChainLink, said: CheckpointPredicate, **subject: Any) -> LinkVerdict:
        given: dict[str, Any] = {"parents": {PARENT: self.parent}, "dataset": self.dataset}
        about = Subject(opened=opened(said, "cc" * 32), **(given | subject))
        return judge(link, about, self.job.given())


@pytest.fixture
def case(job: Job) -> Case:
    return Case(job)


Change = Callable[[Case], tuple[CheckpointPredicate, dict[str, Any]]]


def bound(**changes: Any) -> Change:
    return lambda case: (case.said(changes), {})


def said(**changes: Any) -> Change:
    return lambda case: (case.said(**changes), {})


def given(**changes: Any) -> Change:
    return lambda case: (case.said(), changes)


def kept(link: str, make: Callable[[], documents.Document]) -> Change:
    return lambda case: (case.said({link: case.job.pieces.keep(make())}), {})


def otherwise(**changes: Any) -> Change:
    """The parent, with another statement or other bytes."""
    return lambda case: (case.said(), {"parents": {PARENT: replace(case.parent, **changes)}})


def parent_said(role: ParentRole, **changes: Any) -> Change:
    def make(case: Case) -> tuple[CheckpointPredicate, dict[str, Any]]:
        made = msgspec.structs.replace(case.parent.checkpoint, **changes)
        of_role = case.said(parents=[Parent(digest=PARENT, role=role)])
        return of_role, {"parents": {PARENT: replace(case.parent, predicate=made)}}

    return make


LATER = NOW + timedelta(hours=2)
PREVIOUS = ParentRole.PREVIOUS
LINK = ChainLink
WORDS: list[tuple[ChainLink, LinkState, str, Change]] = [
    (LINK.POLICY, VERIFIED, "baseline", said()),
    (LINK.POLICY, MISSING, "binds no policy", bound(policy=None)),
    (LINK.POLICY, BROKEN, "two policies", bound(policy="ef" * 32)),
    (LINK.POLICY, MISSING, "the evidence efefef", lambda case: (
        case.said({"policy": "ef" * 32}, policy=PolicyRef(id="baseline", digest="ef" * 32)), {})),
    (LINK.POLICY, BROKEN, "its name", lambda case: (
        case.said(policy=PolicyRef(id="dev", digest=case.policy)), {})),
    (LINK.JOB, VERIFIED, "train.py", said()),
    (LINK.JOB, VERIFIED, "m.n", kept("job", lambda: documents.Job(program=None, module="m.n"))),
    (LINK.JOB, MISSING, "binds no job", bound(job=None)),
    (LINK.JOB, MISSING, "the evidence efefef", bound(job="ef" * 32)),
    (LINK.JOB, MISSING, "what the program declared (efefef",
     kept("job", lambda: documents.Job(program=None, declared="ef" * 32))),
    (LINK.CODE, VERIFIED, "1 distributions", said()),
    (LINK.CODE, MISSING, "binds no code", bound(code=None)),
    (LINK.CODE, BROKEN, "names no distribution", kept("code", documents.Code)),
    (LINK.CODE, BROKEN, "ST-CHAN-001", lambda case: (case.said({"code": case.environment}), {})),
    (LINK.ENVIRONMENT, VERIFIED, "torch 2", said()),
    (LINK.ENVIRONMENT, MISSING, "binds no environment", bound(environment=None)),
    (LINK.DATASET, VERIFIED, "prose", said()),
    (LINK.DATASET, MISSING, "names no dataset", said(dataset=DatasetRef())),
    (LINK.DATASET, MISSING, "binds no statement of its dataset", bound(dataset=None)),
    (LINK.DATASET, MISSING, "the dataset dadada", given(dataset=None)),
    (LINK.DATASET, BROKEN, "its statement", bound(dataset="d2" * 32)),
    (LINK.DATASET, BROKEN, "its bytes", lambda case: (
        case.said(), {"dataset": replace(case.dataset, digest="db" * 32)})),
    (LINK.PARENTS, VERIFIED, "1 parents", said()),
    (LINK.PARENTS, VERIFIED, "a first checkpoint", lambda case: (
        case.said({"parents": []}, parents=[]), {})),
    (LINK.PARENTS, MISSING, "binds no statement of its parents", bound(parents=[])),
    (LINK.PARENTS, BROKEN, "its parents", said(parents=[])),
    (LINK.PARENTS, MISSING, "the parent aaaaaa", given(parents={})),
    (LINK.PARENTS, BROKEN, "its statement", otherwise(statement="a2" * 32)),
    (LINK.PARENTS, BROKEN, "its bytes", otherwise(digest="ab" * 32)),
    (LINK.PARENTS, BROKEN, "it is younger", parent_said(PREVIOUS, created=LATER)),
    (LINK.PARENTS, BROKEN, "it has number 1", parent_said(PREVIOUS, seq=1)),
    # A run that goes on from another one's checkpoint numbers its own; a base model may be newer.
    (LINK.PARENTS, VERIFIED, "1 parents", parent_said(PREVIOUS, seq=9, run_id="job-0")),
    (LINK.PARENTS, VERIFIED, "1 parents", parent_said(ParentRole.BASE, created=LATER, seq=9)),
    (LINK.LEDGER, MISSING, "binds no head", said()),
    (LINK.LEDGER, MISSING, "the run's ledger", bound(ledger_head="ef" * 32)),
    (LINK.LOG, MISSING, "no proof", said()),
    (LINK.TIME, MISSING, "no witness", said()),
    (LINK.MEMBERSHIP, MISSING, "binds no membership", bound(membership=None)),
    (LINK.MEMBERSHIP, MISSING, "binds no membership", said(epoch=None)),
    (LINK.MEMBERSHIP, MISSING, "the evidence efefef", bound(membership="ef" * 32)),
    (LINK.NODES, MISSING, "the membership", bound(membership=None)),
]  # fmt: skip


@pytest.mark.parametrize(("link", "state", "words", "change"), WORDS)
def test_a_judge_says_what_is_missing_and_what_is_broken(case, link, state, words, change):
    made, subject = change(case)
    verdict = case.judge(link, made, **subject)
    assert (verdict.state, verdict.link) == (state, link), verdict
    assert words in verdict.what


# --- the membership: each thing by itself ---

OTHER = "spiffe://securetrain.local/job/job-2/coordinator"


@pytest.mark.forgery
@items(
    "name, signed, kept_as",
    ("its coordinator", {"coordinator": OTHER}, {}),
    ("its job", {"job": "job-2"}, {}),
    ("the evidence's job", {}, {"job": "job-2"}),
    ("the evidence's epoch", {}, {"epoch": 7}),
    ("its policy", {"policy": "ee" * 32}, {}),
)
def test_each_field_of_a_membership_counts_by_itself(job, name, signed, kept_as):
    """The coordinator itself has signed it, so that no other check can find it."""
    if signed:
        job.form(**signed)
    made = job.checkpoint()
    if kept_as or signed.get("job"):
        made = rebound(job, made, kept_as or {"job": "job-2"})
    about = Subject(opened=opened(made))
    verdict = judge(ChainLink.MEMBERSHIP, about, job.given())
    assert (verdict.state, verdict.what) == (BROKEN, name)


@pytest.mark.forgery
def test_a_coordinator_that_signs_another_tier_than_its_results_is_not_believed(job: Job) -> None:
    members = tuple(
        msgspec.structs.replace(one, tier=NodeTier.TEE) for one in job.membership().members
    )
    job.form(members=members)
    refs = [msgspec.structs.replace(one, tier=NodeTier.TEE, label="") for one in job.refs()]
    verdict = judge(
        ChainLink.NODES, Subject(opened=opened(job.checkpoint(nodes=refs))), job.given()
    )
    assert verdict.state is BROKEN
    assert "its tier" in verdict.what
    assert (verdict.expected, verdict.found) == ("tee", "tpm")


def test_only_a_parent_of_the_same_run_says_when_the_steps_began(job: Job) -> None:
    made = job.checkpoint(NOW + 5 * MINUTE)
    mine = opened(job.checkpoint(NOW + 2 * MINUTE), PARENT)
    others = opened(job.checkpoint(NOW + 4 * MINUTE, run_id="job-0"), BASE)
    data = opened(dataset(), "da" * 32, Kind.DATASET)
    about = Subject(opened=opened(made), parents={PARENT: mine, BASE: others, "da" * 32: data})
    assert about.since == NOW + 2 * MINUTE
    assert Subject(opened=opened(made), parents={BASE: others}).since is None
