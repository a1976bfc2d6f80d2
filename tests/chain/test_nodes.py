# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tiers come from what coordinators signed; every other word on them is refused by its link."""

import random
from datetime import timedelta

import msgspec
import pytest

from securetrain.chain import documents
from securetrain.chain.judging import JUDGES, judge, judge_all
from securetrain.chain.links import broken, code_of, missing
from securetrain.chain.store import InMemory
from securetrain.core.codes import CODES
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.chain.worlds import MINUTE, NOW, Job, Roles, opened, rebound, subject
from tests.tables import each, items

NODES, MEMBERSHIP = ChainLink.NODES, ChainLink.MEMBERSHIP


def nodes_of(job, said, **more):
    return judge(NODES, subject(said, **more), job.given())


def refused_nodes(verdict, state=LinkState.BROKEN):
    assert verdict.state is state, verdict
    problem = verdict.problem()
    assert problem is not None
    assert problem.code == "ST-CHAN-010"
    return problem.what


def test_an_honest_checkpoint_is_verified(job):
    verdict = nodes_of(job, job.checkpoint())
    assert verdict.state is LinkState.VERIFIED, verdict
    assert set(verdict.tiers.values()) == {NodeTier.TPM}
    assert verdict.problem() is None
    assert judge(MEMBERSHIP, subject(job.checkpoint()), job.given()).state is LinkState.VERIFIED


@pytest.mark.parametrize("tier", [tier for tier in NodeTier if tier is not NodeTier.TPM])
def test_a_tier_that_no_result_says_is_refused(job, tier):
    """The measured attack: a worker makes its laptop tee+gpu, and the checkpoint key signs it."""
    nodes = [msgspec.structs.replace(node, tier=tier) for node in job.refs()]
    assert "its tier" in refused_nodes(nodes_of(job, job.checkpoint(nodes=nodes)))


def test_a_claim_without_evidence_is_missing(job):
    said = job.checkpoint()
    unbound = msgspec.structs.replace(said, bound=type(said.bound)())
    refused_nodes(nodes_of(job, unbound), LinkState.MISSING)
    nothing = job.given(pieces=InMemory())
    refused_nodes(judge(NODES, subject(said), nothing), LinkState.MISSING)


def test_each_piece_that_is_removed_is_missing_or_broken(job):
    """Evidence that is removed where it is collected makes no claim pass."""
    said = job.checkpoint()
    for gone in job.pieces.names():
        left = InMemory({k: v for k, v in job.pieces.pieces.items() if k != gone})
        verdict = judge(NODES, subject(said), job.given(pieces=left))
        body = job.pieces.pieces[gone].startswith(b"quote of")
        older = str(documents.Membership.__struct_config__.tag) in str(job.pieces.pieces[gone])
        if not body and not (older and gone != said.bound.membership):
            assert verdict.state is not LinkState.VERIFIED, job.pieces.pieces[gone][:80]


def test_damaged_pieces_are_broken_at_random(job):
    said, dice = job.checkpoint(), random.Random(19)
    for _ in range(60):
        pieces = dict(job.pieces.pieces)
        name = dice.choice(sorted(pieces))
        data = bytearray(pieces[name])
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        pieces[name] = bytes(data)
        verdict = judge(NODES, subject(said), job.given(pieces=InMemory(pieces)))
        if not pieces[name].startswith((b"quote", b"puote")) and b" of node-" not in pieces[name]:
            assert verdict.state is not LinkState.VERIFIED, name


def test_a_forged_coordinator_is_nobodys(job):
    """A worker that knows the code signs results and a membership with a key of its own."""
    liar = PrivateKey.generate(KeyKind.P256)
    job.results = {
        node: job.attest(node, NOW, key=liar, tier=NodeTier.TEE_GPU, label="tee+gpu")
        for node in job.nodes
    }
    job.form(key=liar)
    verdict = nodes_of(job, job.checkpoint())
    assert "no accepted coordinator signed it" in refused_nodes(verdict)


@pytest.mark.parametrize("liar", [False, True])
def test_renewals_of_another_key_do_not_count(job, liar):
    key = PrivateKey.generate(KeyKind.P256) if liar else None
    job.attest("node-0", NOW + 8 * MINUTE, key=key)
    job.attest("node-1", NOW + 8 * MINUTE)
    verdict = nodes_of(job, job.checkpoint(NOW + 15 * MINUTE))
    if liar:
        assert "no result of" in refused_nodes(verdict)
    else:
        assert verdict.state is LinkState.VERIFIED


def test_a_result_counts_by_the_membership_that_names_it(job):
    """The coordinator has signed its digest and tier there: whoever signed the token, or nobody,
    nothing else than that result is read from it.
    """
    liar = PrivateKey.generate(KeyKind.P256)
    honest = job.results["node-0"]
    job.keeper._appraised.clear()
    job.attest("node-0", NOW, key=liar)
    job.attest("node-1", NOW)
    assert nodes_of(job, job.checkpoint()).state is LinkState.VERIFIED
    # The same from the liar, but of a higher tier, is another result, which no membership names.
    job.keeper._appraised.clear()
    job.attest("node-0", NOW, key=liar, tier=NodeTier.TEE)
    job.attest("node-1", NOW)
    assert job.results["node-0"] is honest
    refused_nodes(nodes_of(job, job.checkpoint()), LinkState.MISSING)


@pytest.mark.parametrize("role", ["node", "root", "worker"])
def test_only_a_key_of_the_role_node_vouches(roles, role):
    """An endorsement by the worker's key is the attack again, one floor higher."""
    stranger = Roles(root=roles.root, node=getattr(roles, role), worker=roles.worker)
    job = Job(roles=stranger)
    verdict = judge(NODES, subject(job.checkpoint()), job.given(trust=roles.trust()))
    if role == "node":
        assert verdict.state is LinkState.VERIFIED
    else:
        assert "nobody vouches" in refused_nodes(verdict)


def test_the_evidence_of_another_run_is_refused(roles, job):
    other = Job(name="job-2", roles=roles)
    said = other.checkpoint(run_id="job-1")
    verdict = judge(NODES, subject(said), other.given())
    assert "its job" in refused_nodes(verdict)


def test_another_node_s_result_is_refused(job):
    nodes = job.refs()
    swapped = [
        msgspec.structs.replace(nodes[0], result=nodes[1].result),
        msgspec.structs.replace(nodes[1], result=nodes[0].result),
    ]
    assert "its result" in refused_nodes(nodes_of(job, job.checkpoint(nodes=swapped)))


@items(
    "id, change",
    ("left out", lambda nodes: nodes[:1]),
    ("twice", lambda nodes: [*nodes, nodes[0]]),
    ("none", lambda nodes: []),
    ("renamed", lambda nodes: [msgspec.structs.replace(nodes[0], node="laptop"), nodes[1]]),
    ("ranks", lambda nodes: [msgspec.structs.replace(nodes[0], ranks=[0, 1, 2]), nodes[1]]),
)
def test_the_nodes_are_exactly_the_members(job, change):
    refused_nodes(nodes_of(job, job.checkpoint(nodes=change(job.refs()))))


def test_a_result_that_had_ended_at_the_step_is_refused(job):
    late = NOW + job.lease + 5 * MINUTE
    assert "no result" in refused_nodes(nodes_of(job, job.checkpoint(created=late)))


def test_renewals_carry_a_node_on_and_a_gap_does_not(job):
    for at in (8, 16, 24):
        for node in job.nodes:
            job.attest(node, NOW + at * MINUTE)
    verdict = nodes_of(job, job.checkpoint(created=NOW + 30 * MINUTE))
    assert verdict.state is LinkState.VERIFIED, verdict
    gap = Job(roles=job.roles)
    for node in gap.nodes:
        gap.attest(node, NOW + 13 * MINUTE)
    assert "no result" in refused_nodes(nodes_of(gap, gap.checkpoint(created=NOW + 20 * MINUTE)))


def test_a_renewal_at_a_lower_tier_is_what_counts(job):
    job.attest("node-0", NOW + 4 * MINUTE)
    job.attest("node-1", NOW + 4 * MINUTE, tier=NodeTier.VTPM, label="vtpm")
    verdict = nodes_of(job, job.checkpoint(created=NOW + 12 * MINUTE))
    assert verdict.tiers == {
        job.spiffe("node-0"): NodeTier.TPM,
        job.spiffe("node-1"): NodeTier.VTPM,
    }


def test_only_its_own_steps_count(job):
    """The steps before the parent were another checkpoint's; the membership may be older."""
    for node in job.nodes:
        job.attest(node, NOW + 25 * MINUTE)
    said = job.checkpoint(created=NOW + 30 * MINUTE)
    assert "no result" in refused_nodes(nodes_of(job, said))
    parent = opened(job.checkpoint(created=NOW + 26 * MINUTE), digest="bb" * 32)
    verdict = nodes_of(job, said, parents={parent.digest: parent})
    assert verdict.state is LinkState.VERIFIED, verdict


@items(
    "said, what",
    ({"epoch": 2}, "its epoch"),
    ({"epoch": 2**40}, "its epoch"),
    ({"policy": "ab" * 32}, "its policy"),
    ({"run_id": "job-7"}, "its job"),
)
def test_the_membership_is_of_what_the_statement_says(job, said, what):
    if "policy" in said:
        made = job.checkpoint()
        policy = msgspec.structs.replace(made.policy, digest=said["policy"])
        made = msgspec.structs.replace(made, policy=policy)
    else:
        made = msgspec.structs.replace(job.checkpoint(), **said)
    verdict = judge(MEMBERSHIP, subject(made), job.given())
    problem = verdict.problem()
    assert problem is not None
    assert (verdict.state, problem.code) == (LinkState.BROKEN, "ST-CHAN-011")
    assert what in problem.what


def test_a_membership_of_the_future_is_refused(job):
    job.form(issued=NOW + 20 * MINUTE)
    verdict = judge(MEMBERSHIP, subject(job.checkpoint()), job.given())
    assert "younger than the checkpoint" in verdict.what


def test_an_old_membership_under_an_altered_document_is_refused(job):
    said = rebound(job, job.checkpoint(), {"epoch": 9})
    assert "epoch" in judge(MEMBERSHIP, subject(said), job.given()).what
    said = rebound(job, job.checkpoint(), {"job": "job-9"})
    assert "job" in judge(MEMBERSHIP, subject(said), job.given()).what


def test_a_coordinator_whose_time_is_over_does_not_speak(roles):
    job = Job(roles=roles, lease=timedelta(days=3))
    job.form(issued=NOW + timedelta(days=2))
    said = job.checkpoint(created=NOW + timedelta(days=2, minutes=5))
    assert "vouched" in judge(MEMBERSHIP, subject(said), job.given()).what


def test_a_link_without_a_judge_is_missing_and_never_a_pass(job):
    said = subject(job.checkpoint())
    found = judge_all(said, job.given(), ChainLink).verdicts
    for link in ChainLink:
        if link not in JUDGES:
            assert found[link].state is LinkState.MISSING
    assert all(
        verdict.state is LinkState.NOT_ASKED
        for verdict in judge_all(said, job.given(), ()).verdicts.values()
    )


def test_an_exception_in_a_judge_is_broken(job, monkeypatch):
    def fails(_subject, _given):
        raise RuntimeError("boom")

    monkeypatch.setitem(JUDGES, NODES, fails)
    assert refused_nodes(nodes_of(job, job.checkpoint()))
    monkeypatch.setitem(JUDGES, NODES, lambda *_: missing(MEMBERSHIP, "of another"))
    assert refused_nodes(nodes_of(job, job.checkpoint()))


CODES_OF_LINKS = {
    ChainLink.NODES: "ST-CHAN-010",
    ChainLink.MEMBERSHIP: "ST-CHAN-011",
    ChainLink.POLICY: "ST-CHAN-012",
    ChainLink.CODE: "ST-CHAN-013",
    ChainLink.ENVIRONMENT: "ST-CHAN-014",
    ChainLink.DATASET: "ST-CHAN-015",
    ChainLink.ROWS: "ST-CHAN-016",
    ChainLink.GRADIENTS: "ST-CHAN-017",
    ChainLink.PARENTS: "ST-CHAN-018",
    ChainLink.LEDGER: "ST-CHAN-019",
    ChainLink.LOG: "ST-CHAN-020",
    ChainLink.TIME: "ST-CHAN-021",
    ChainLink.JOB: "ST-CHAN-022",
    ChainLink.REPLAY: "ST-CHAN-023",
    ChainLink.TABLES: "ST-CHAN-026",
}


@each("link", *list(ChainLink))
def test_every_link_has_one_code(link):
    problem = broken(link, "altered").problem()
    assert problem is not None
    assert problem.code == code_of(link) == CODES_OF_LINKS[link]
    assert problem.code in CODES
    assert len(set(CODES_OF_LINKS.values())) == len(ChainLink)


def test_results_are_found_where_the_membership_does_not_name_them(job):
    """A launcher that joins a coordinator elsewhere cannot name them; they prove themselves."""
    said = rebound(job, job.checkpoint(), {"appraised": ()})
    assert nodes_of(job, said).state is LinkState.VERIFIED
    for digest, data in list(job.pieces.pieces.items()):
        if b"chain.appraised.v1+json" in data:
            del job.pieces.pieces[digest]
    refused_nodes(nodes_of(job, said), LinkState.MISSING)


def test_results_of_a_time_when_nobody_vouched_do_not_count(job):
    """The certificate begins after the result: the work of an earlier time is not taken over."""
    for node in job.nodes:
        job.results[node] = job.attest(node, NOW - 20 * MINUTE, expires=NOW + 10 * MINUTE)
    job.form()
    refused_nodes(nodes_of(job, job.checkpoint()), LinkState.MISSING)
    for node in job.nodes:
        job.results[node] = job.attest(node, NOW, expires=NOW + 10 * MINUTE)
    job.form()
    assert nodes_of(job, job.checkpoint()).state is LinkState.VERIFIED


def test_a_result_after_the_checkpoint_says_nothing_of_it(job):
    for node in job.nodes:
        job.attest(node, NOW + 8 * MINUTE, tier=NodeTier.TEST_ONLY)
    shown = nodes_of(job, job.checkpoint(NOW + 5 * MINUTE)).tiers
    assert set(shown.values()) == {NodeTier.TPM}
    shown = nodes_of(job, job.checkpoint(NOW + 9 * MINUTE)).tiers
    assert set(shown.values()) == {NodeTier.TEST_ONLY}
