# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks and accidents that the removal of one check of the verifier let through. No torch."""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    Parent,
    ParentRole,
    digest_of,
    sign,
)
from securetrain.chain import documents, judging, packing, steps
from securetrain.chain.container import Document, Pack
from securetrain.chain.coordinators import LONGEST, accept, endorse
from securetrain.chain.documents import Appraised, Credential
from securetrain.chain.judging import Judged, judge
from securetrain.chain.links import Subject, broken, missing, verified
from securetrain.chain.packed import contents
from securetrain.chain.records import StepRecord, StepVerdict, Word
from securetrain.chain.rows import RowOrder
from securetrain.chain.store import InMemory
from securetrain.chain.verdict import Form, Verdict
from securetrain.core import ExitCode, canonical
from securetrain.core.errors import IdentityError, IntegrityError
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity import Chain, Role
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import Authority, TrustRole, TrustRoot, sign_document, sign_root
from tests import vocabulary
from tests.chain.test_replay import Replays
from tests.chain.test_steps import declare, ordered
from tests.chain.worlds import (
    MINUTE,
    NOW,
    ORDER,
    Job,
    Roles,
    Run,
    Segment,
    codes,
    opened,
    policy,
    put_together,
    rebound,
    taken_apart,
)
from tests.tables import items


@pytest.mark.forgery
def test_a_node_of_the_cluster_is_no_coordinator(tmp_path: Path) -> None:
    """With one node's key: an authority may vouch for nodes and coordinators alike."""
    root = PrivateKey.generate()
    cluster = ClusterCA.create(tmp_path / "ca", "cluster.example", NOW, None)
    try:
        ca = cluster.job("job-1", NOW, cluster.key)
        plain = TrustRoot.parse(sign_root({}, root, NOW, NOW + timedelta(days=99)), NOW).document
        entry = Authority(
            role=TrustRole.NODE,
            certificate=Chain.of([cluster.certificate]).certificates[0],
            trust_domain="cluster.example",
            parties=[Role.NODE, Role.COORDINATOR],
        )
        named = msgspec.structs.replace(plain, authorities=[entry])
        trust = TrustRoot.parse(sign_document(named, [root]), NOW)

        def credential(role: Role, **of: Any) -> Credential:
            key = PrivateKey.generate(KeyKind.P256).public
            leaf = ca.issue(role, key, NOW, lifetime=timedelta(minutes=10), **of)
            first, second = Chain.of([leaf, ca.certificate]).certificates
            return Credential(job="job-1", certificates=(first, second))

        assert accept(credential(Role.COORDINATOR), trust).spiffe.role is Role.COORDINATOR
        with pytest.raises(IdentityError, match="ST-IDEN-006"):
            accept(credential(Role.NODE, node="node-0"), trust)
        other = msgspec.structs.replace(credential(Role.COORDINATOR), job="job-2")
        vocabulary.refused(IdentityError, "ST-IDEN-006", accept, other, trust)
    finally:
        cluster.close()


@pytest.mark.forgery
@items(
    "begins, ends, code",
    (timedelta(0), LONGEST, ""),
    (timedelta(0), LONGEST + timedelta(days=1), "ST-IDEN-005"),
    (timedelta(0), timedelta(0), "ST-IDEN-005"),
    (timedelta(days=2), timedelta(days=1), "ST-IDEN-005"),
)
def test_an_endorsement_has_a_sound_time(job, begins, ends, code):
    (kept,) = (
        documents.decode(data, Credential)
        for data in job.pieces.pieces.values()
        if str(Credential.__struct_config__.tag).encode() in data
    )
    word = endorse(job.ca.certificate, job.name, NOW + begins, NOW + ends, job.roles.node)
    made = msgspec.structs.replace(kept, endorsement=word)
    if not code:
        assert accept(made, job.roles.trust()).own
        return
    vocabulary.refused(IdentityError, code, accept, made, job.roles.trust())


@pytest.mark.forgery
def test_a_document_about_another_result_than_its_tokens_does_not_count(job: Job) -> None:
    """Evidence is swapped: a renewal's document says that it is of another node, or result."""
    for node in job.nodes:
        job.attest(node, NOW + 8 * MINUTE)
    job.form()
    said = job.checkpoint(NOW + 15 * MINUTE)
    assert judge(ChainLink.NODES, Subject(opened=opened(said)), job.given()).state == "verified"
    assert said.bound.membership is not None
    kept = documents.decode(job.pieces.pieces[said.bound.membership], documents.Membership)
    last = documents.decode(job.pieces.pieces[kept.appraised[-1]], Appraised)
    for change in ({"node": "node-0"}, {"result": "ab" * 32}):
        swapped = job.pieces.keep(msgspec.structs.replace(last, **change))
        made = rebound(job, said, {"appraised": (*kept.appraised[:-1], swapped)})
        verdict = judge(ChainLink.NODES, Subject(opened=opened(made)), job.given())
        assert verdict.state is LinkState.BROKEN
        assert "no result of" in verdict.what


def test_a_membership_whose_bytes_are_gone_is_missing(job: Job) -> None:
    said = job.checkpoint()
    assert said.bound.membership is not None
    kept = documents.decode(job.pieces.pieces[said.bound.membership], documents.Membership)
    left = InMemory({k: v for k, v in job.pieces.pieces.items() if k != kept.envelope})
    for link in (ChainLink.MEMBERSHIP, ChainLink.NODES):
        verdict = judge(link, Subject(opened=opened(said)), job.given(pieces=left))
        assert verdict.state is LinkState.MISSING
        assert "the membership" in verdict.what


# --- the list of a pack ---


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run").saved(2)


@pytest.mark.forgery
def test_a_pack_is_about_its_subject(run: Run, tmp_path: Path) -> None:
    """Its list begins with the parent, which is honest, too."""
    subject, found, plain = taken_apart(run.pack())
    plain["statements"].reverse()
    out = put_together(tmp_path / "x.stpack", subject, found, plain)
    with pytest.raises(IntegrityError, match="another statement"), Pack.open(out) as pack:
        contents(pack)


@pytest.mark.forgery
@pytest.mark.parametrize("kind", ["a stranger's", "twice"])
def test_bytes_belong_to_one_statement_that_verified(run: Run, tmp_path: Path, kind: str) -> None:
    subject, found, plain = taken_apart(run.pack())
    stranger = Document.of(packing.STATEMENT_TYPE, sign(run.made[0], "x", PrivateKey.generate()))
    any_bytes = next(one.digest for one in found.values() if one.media_type != subject.media_type)
    if kind == "twice":
        plain["statements"][1]["holds"] = any_bytes
        plain["statements"].append(plain["statements"][1])
    else:
        found[stranger.digest] = stranger
        plain["statements"].append({"statement": stranger.digest, "holds": any_bytes})
    out = put_together(tmp_path / "x.stpack", subject, found, plain)
    result = run.verify(out, policy=policy("nodes"))
    assert any("of nothing that verified, or twice" in one.what for one in result.problems)
    assert "ST-PACK-101" in codes(result)


def test_a_ledger_that_is_listed_and_not_there_is_missing(run: Run, tmp_path: Path) -> None:
    subject, found, plain = taken_apart(run.pack())
    plain["statements"][0]["ledger"] = "0" * 64
    out = put_together(tmp_path / "x.stpack", subject, found, plain)
    result = run.verify(out, policy=policy("nodes"))
    assert result.ok
    assert result.judged[0].verdicts[ChainLink.LEDGER].state is LinkState.MISSING


def test_a_link_that_this_version_cannot_judge_is_missing(run, monkeypatch):
    path = run.pack()
    monkeypatch.delitem(judging.JUDGES, ChainLink.NODES)
    result = run.verify(path, policy=policy("nodes"))
    assert codes(result) == {"ST-CHAN-010"}
    verdict = result.judged[0].verdicts[ChainLink.NODES]
    assert verdict.state is LinkState.MISSING
    assert "this version cannot" in verdict.what


def test_a_document_says_itself_what_it_is() -> None:
    """Otherwise bytes could be read as one kind here and as another there, under one digest."""
    plain = documents.encode(documents.Declared(program="p", settings={"seed": 7}))
    assert documents.decode(plain, documents.Declared).settings == {"seed": 7}
    fields = canonical.loads(plain)
    tag = documents.Declared.__struct_config__.tag
    (name,) = (name for name, value in fields.items() if value == tag)
    del fields[name]
    with pytest.raises(IntegrityError, match="in full") as refused:
        documents.decode(canonical.dumps(fields), documents.Declared)
    assert refused.value.code == "ST-CHAN-001"


def test_no_step_comes_after_the_last_epoch() -> None:
    """A record that claims one would be of rows that the job had not asked for."""
    order = RowOrder(
        kind="epochs", seed=7, split="train", starts=6, seq_len=8, batch_rows=2, epochs=2
    )
    assert len(order.rows(6)) == 2
    vocabulary.refused(ValueError, "step 7 comes after the last row of 2 epochs", order.rows, 7)


def test_what_is_missing_refuses_nothing_that_nobody_required() -> None:
    made = Verdict.of(Path("x"), form=Form.PACK, at=NOW)
    for link in (None, ChainLink.ROWS):
        verdicts = {one: (missing if one is link else verified)(one, "") for one in ChainLink}
        made.judged = (Judged(digest="aa" * 32, step=1, run="r", verdicts=verdicts),)
        assert (made.exit_code, made.missing) == (ExitCode.OK, (link,) if link else ())


def test_a_refusal_says_what_was_expected_and_what_was_found() -> None:
    link = ChainLink.POLICY
    for expected, found, words in (
        ("a", "b", "(expected a, found b)"),
        ("a", "", "(expected a, found nothing)"),
        ("", "b", "(expected something, found b)"),
    ):
        problem = broken(link, "x", expected=expected, found=found).problem()
        assert problem is not None
        assert problem.what.endswith(words)
    plain = broken(link, "x").problem()
    assert plain is not None
    assert "expected" not in plain.what


# --- beside directories ---


def test_a_merge_is_judged_once_and_its_ancestors_too(tmp_path: Path) -> None:
    """Two parents share one: it is reached twice, and its own links stand where it was first."""
    run = Run(tmp_path / "run").saved(2)
    fork = digest_of(run.made[1])

    def branch(step: int, seq: int) -> CheckpointPredicate:
        said = run.said(step=step, seq=seq, created=NOW + (5 + seq) * MINUTE)
        return msgspec.structs.replace(
            said,
            files=[msgspec.structs.replace(said.files[0], root=f"{step:064x}")],
            parents=[Parent(digest=fork)],
            bound=msgspec.structs.replace(said.bound, parents=run.statements[1:2]),
        )

    run.save(branch(30, 2))
    run.save(branch(40, 3))
    said = run.said(step=50, seq=4, created=NOW + 9 * MINUTE)
    parents = [Parent(digest=digest_of(one), role=ParentRole.MERGE) for one in run.made[2:4]]
    bound = msgspec.structs.replace(said.bound, parents=run.statements[2:4])
    run.save(msgspec.structs.replace(said, parents=parents, bound=bound))
    asked = policy("nodes", "parents")
    assert run.beside(asked).problems == []
    assert [one.step for one in run.beside(asked).judged] == [50, 30, 20, 10, 40]
    # Left out, it is missing where all are asked, and there alone.
    shutil.rmtree(run.root / "checkpoints" / "step-00000020")
    assert {one.code for one in run.beside(asked).problems} == {"ST-CHAN-010", "ST-CHAN-018"}
    alone = policy("nodes", "parents", depth="checkpoint")
    assert run.beside(alone).problems == []
    # The checkpoint itself is asked all the same.
    rows = policy("rows", depth="checkpoint")
    assert {one.code for one in run.beside(rows).problems} == {"ST-CHAN-016"}


# --- coordinators and their results ---


@pytest.mark.forgery
def test_an_endorsement_is_of_one_job_ca(job: Job) -> None:
    """A stranger's coordinator of the same job, under the endorsement of the true one's CA."""
    stranger = Job(roles=Roles())
    mine, theirs = (credential_of(one) for one in (job, stranger))
    assert accept(mine, job.roles.trust()).own
    stolen = msgspec.structs.replace(theirs, endorsement=mine.endorsement)
    vocabulary.refused(IdentityError, "ST-IDEN-006", accept, stolen, job.roles.trust())


def credential_of(job: Job) -> Credential:
    tag = str(Credential.__struct_config__.tag).encode()
    (found,) = (data for data in job.pieces.pieces.values() if tag in data)
    return documents.decode(found, Credential)


@pytest.mark.forgery
@pytest.mark.parametrize("change", [{"job": "job-2"}, {"policy": "ee" * 32}])
def test_a_renewal_of_another_job_or_policy_does_not_count(job, change):
    """The same coordinator has signed it, for the same node and key."""
    said: dict[str, Any] = {"tier": job.tier}
    job.attest("node-0", NOW + 8 * MINUTE, **change)
    job.attest("node-1", NOW + 8 * MINUTE, **said)
    job.form()
    made = job.checkpoint(NOW + 15 * MINUTE)
    verdict = judge(ChainLink.NODES, Subject(opened=opened(made)), job.given())
    assert verdict.state is LinkState.BROKEN
    assert "node-0" in verdict.what


@pytest.mark.forgery
def test_a_coordinator_speaks_of_its_own_job_alone(job: Job) -> None:
    """Whatever the run is called: its certificate says which job is its."""
    job.form(job="job-2")
    made = rebound(job, job.checkpoint(run_id="job-2"), {"job": "job-2"})
    verdict = judge(ChainLink.MEMBERSHIP, Subject(opened=opened(made)), job.given())
    assert (verdict.state, verdict.what) == (LinkState.BROKEN, "its job")
    assert (verdict.expected, verdict.found) == ("job-2", "job-1")


# --- steps ---


def step(number: int, **said: Any) -> StepRecord:
    plain: dict[str, Any] = {"loss": "0x1.0p+0", "norm": "0x1.0p+0", "lr": "0x1.0p+0"}
    plain |= {"verdict": StepVerdict.CLEAN, "rows": "ab" * 32}
    return StepRecord(step=number, **(plain | said))


CLEAN, REFUSED, UNWATCHED = (
    GradientRecord(verdict=verdict, judged=4, clean_steps=4)
    for verdict in (GradientVerdict.CLEAN, GradientVerdict.REFUSED, GradientVerdict.UNWATCHED)
)


def test_the_summary_of_steps(subtests):
    rows: tuple[tuple[GradientRecord, list[dict[str, Any]], str, int, int, int], ...] = (
        (CLEAN, [{}], "clean", 5, 0, 5),
        (CLEAN, [{"verdict": StepVerdict.OBSERVED}, {}], "refused", 6, 1, 1),
        (CLEAN, [{"verdict": StepVerdict.REFUSED}, {}], "clean", 6, 1, 1),
        (CLEAN, [{"verdict": StepVerdict.SETTLED}, {}], "clean", 6, 0, 1),
        (CLEAN, [{"without": (1,)}, {}, {}], "clean", 7, 0, 2),
        # Nobody watched it: what it calls itself counts for nothing.
        (CLEAN, [{"watched": False}, {}], "unwatched", 5, 0, 1),
        (REFUSED, [{}], "refused", 5, 0, 5),
        (UNWATCHED, [{}], "unwatched", 5, 0, 5),
    )
    for before, steps_, verdict, judged, refused, clean in rows:
        with subtests.test(before=before, steps_=steps_):
            records = [step(number, **said) for number, said in enumerate(steps_, 5)]
            found = steps.expected_gradients(before, records)
            assert (found.verdict, found.judged) == (verdict, judged)
            assert (found.refused, found.clean_steps) == (refused, clean)


@pytest.mark.forgery
def test_no_step_was_done_and_none_was_judged(job: Job) -> None:
    segment = Segment(job, after=0, count=0)
    bare: dict[str, Any] = {"parents": [], "seq": 0}
    none = GradientRecord(verdict=GradientVerdict.CLEAN)
    digest = segment.kept()
    assert segment.judge(segment.said(digest, gradients=none, **bare), ChainLink.GRADIENTS)[0] == (
        LinkState.VERIFIED
    )
    lied = segment.said(digest, gradients=CLEAN, **bare)
    assert segment.judge(lied, ChainLink.GRADIENTS)[0] is LinkState.BROKEN


@pytest.mark.forgery
def test_more_rows_of_a_step_than_the_job_declared(job: Job) -> None:
    """All ranks have recorded, signed and counted them."""
    segment = Segment(job)
    segment.order = msgspec.structs.replace(ORDER, batch_rows=8)
    segment.lines = segment.record()
    ref = DatasetRef(name="prose", digest="da" * 32, cursor={"step": 16, "rows": 128})
    state, what = segment.judge(segment.said(segment.kept(), dataset=ref), ChainLink.ROWS)
    assert (state, what) == (LinkState.BROKEN, "the rows of a step")


@items(
    "order, kind, in_turn, state",
    (None, "epochs", True, LinkState.VERIFIED),
    (None, "epochs", False, LinkState.BROKEN),
    (None, "random", False, LinkState.BROKEN),
    ("random", "random", False, LinkState.VERIFIED),
    ("random", "random", True, LinkState.BROKEN),
)
def test_documents_come_in_turn_once_an_epoch(job, order, kind, in_turn, state):
    segment = Segment(job)
    declare(segment, format="jsonl", epochs=9, order=order)
    made = msgspec.structs.replace(ORDER, kind=kind, sequential=in_turn, starts=31)
    if kind == "epochs":
        made = msgspec.structs.replace(made, epochs=9)
    assert segment.judge(ordered(segment, made), ChainLink.ROWS)[0] is state


@pytest.mark.forgery
@pytest.mark.parametrize("cut", [slice(None, -1), slice(1, None)])
def test_records_that_are_cut_show_no_rows(job: Job, cut: slice) -> None:
    segment = Segment(job)
    segment.lines = segment.lines[cut]
    if cut.start:
        segment.after += 1
    digest = segment.kept()
    segment.after, segment.count = 8, 8
    state, what = segment.judge(segment.said(digest), ChainLink.ROWS)
    assert state is LinkState.BROKEN
    assert what in {"their last step", "the step before the first"}


def test_a_first_checkpoints_steps_are_done_again_from_the_beginning(job: Job) -> None:
    replays = Replays(job)
    first = replays.job.checkpoint(step=16, seq=0, parents=[])
    replays.opened = replace(replays.opened, predicate=first)
    said = replays.said(replays.segment(after=0, begin=""))
    given = replace(job.given(), replays=(said,))
    about = Subject(opened=replays.opened)
    assert judge(ChainLink.REPLAY, about, given).state is LinkState.VERIFIED


@pytest.mark.forgery
def test_an_endorsement_is_of_one_job(job: Job) -> None:
    mine = credential_of(job)
    word = endorse(job.ca.certificate, "job-2", NOW, NOW + LONGEST, job.roles.node)
    with pytest.raises(IdentityError, match="ST-IDEN-006"):
        accept(msgspec.structs.replace(mine, endorsement=word), job.roles.trust())


def test_a_coordinators_certificate_is_found_or_missing(job: Job) -> None:
    """One that a membership does not name proves itself, wherever it lies; no other will do."""
    said = job.checkpoint()
    unnamed = rebound(job, said, {"credentials": ()})
    link = ChainLink.MEMBERSHIP
    assert judge(link, Subject(opened=opened(unnamed)), job.given()).state is LinkState.VERIFIED
    gone = documents.digest_of(credential_of(job))
    left = InMemory({k: v for k, v in job.pieces.pieces.items() if k != gone})
    for made in (said, unnamed):
        verdict = judge(link, Subject(opened=opened(made)), job.given(pieces=left))
        assert verdict.state is LinkState.MISSING
        assert "the coordinator's certificate" in verdict.what


def test_a_replay_that_did_nothing_says_so(job: Job) -> None:
    replays = Replays(job)
    said = replays.said(replays.segment(word=Word.OPEN))
    given = replace(job.given(), replays=(said,))
    about = Subject(opened=replays.opened, parents={"aa" * 32: replays.parent})
    verdict = judge(ChainLink.REPLAY, about, given)
    assert verdict.state is LinkState.MISSING
    assert "were not done again" in verdict.what


@pytest.mark.forgery
def test_the_least_tier_is_asked_of_ancestors_too(tmp_path: Path, monkeypatch: Any) -> None:
    run = Run(tmp_path / "run")
    strong, weak = (
        Job(roles=run.roles, policy=run.policy, lease=timedelta(hours=3), tier=tier)
        for tier in (NodeTier.TPM, NodeTier.VTPM)
    )
    policies = dict(run.job.pieces.pieces)
    for one in (weak, strong):
        run.job = one
        one.pieces.pieces.update(policies)
        run.save()
    strong.pieces.pieces.update(weak.pieces.pieces)
    path = run.pack()
    assert run.verify(path, policy=policy("nodes", tier="vtpm")).ok
    assert run.verify(path, policy=policy("nodes", tier="tpm", depth="checkpoint")).ok
    result = run.verify(path, policy=policy("nodes", tier="tpm"))
    assert codes(result) == {"ST-CKPT-121"}
    assert "step 10" in result.problems[0].what
    ask = judging._ask_statement
    monkeypatch.setattr(
        judging,
        "_ask_statement",
        lambda chain, *rest: ask(chain, *rest) if len(chain.judged) == 1 else None,
    )
    assert run.verify(path, policy=policy("nodes", tier="tpm")).ok, "the control"


@pytest.mark.forgery
def test_steps_go_on_from_one_checkpoint(job: Job) -> None:
    segment = Segment(job)
    twice = [Parent(digest="aa" * 32), Parent(digest="aa" * 32)]
    said = segment.said(segment.kept(), parents=twice)
    for link in (ChainLink.ROWS, ChainLink.GRADIENTS):
        state, what = segment.judge(said, link)
        assert (state, what) == (LinkState.BROKEN, "it goes on from 2 checkpoints")


@pytest.mark.forgery
def test_a_cursor_is_where_the_steps_ended(job: Job) -> None:
    segment = Segment(job)
    ref = DatasetRef(name="prose", digest="da" * 32, cursor={"step": 15, "rows": 64})
    state, what = segment.judge(segment.said(segment.kept(), dataset=ref), ChainLink.ROWS)
    assert (state, what) == (LinkState.BROKEN, "the cursor's step")


@pytest.mark.forgery
def test_a_statement_of_nobodys_kind_is_no_ancestor(run: Run, tmp_path: Path) -> None:
    """Bytes that are called a statement and are none: said, and never a crash."""
    subject, found, plain = taken_apart(run.pack())
    odd = Document.of(packing.STATEMENT_TYPE, b'{"payload":"e30="}')
    plain["statements"].append({"statement": odd.digest})
    out = put_together(tmp_path / "x.stpack", subject, {**found, odd.digest: odd}, plain)
    assert run.verify(out, policy=policy("nodes")).ok
    plain["statements"] = [{"statement": odd.digest}]
    out = put_together(tmp_path / "y.stpack", odd, found, plain)
    assert codes(run.verify(out, policy=policy("nodes"))) == {"ST-CKPT-101"}


@pytest.mark.forgery
def test_the_least_tier_is_asked_whatever_links_are_required(tmp_path: Path) -> None:
    run = Run(tmp_path / "run").saved(1)
    result = run.verify(run.pack(), policy=policy("policy", tier="tee+gpu", depth="checkpoint"))
    assert codes(result) == {"ST-CKPT-121"}
