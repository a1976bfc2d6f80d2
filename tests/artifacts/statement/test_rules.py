# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest
from msgspec.structs import replace

from securetrain.artifacts.statement import rules
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    NodeRef,
    Parent,
    PolicyRef,
    digest_of,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import NodeTier
from securetrain.policy.load import load_policy
from securetrain.policy.schema import GuardMode, SelfAsserted
from tests.tables import items


@pytest.fixture
def check(forge, trust, now, tmp_path):
    def run(under="baseline", *, after_run=True, change=None, shown=True, **said):
        root = tmp_path / "c"
        forge(root, **said)
        opened = open_statement((root / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
        chosen = load_policy(under).policy
        for section, fields in (change or {}).items():
            part = replace(getattr(chosen, section), **fields)
            chosen = replace(chosen, **{section: part})
        tiers = {one.node: one.tier for one in opened.checkpoint.nodes}
        evidence = rules.Shown(tiers=tiers if shown else {})
        found = rules.check(opened, chosen, now, nodes=after_run, shown=evidence)
        return [p.code for p in found]

    return run


def node(tier: NodeTier, name: str = "n") -> NodeRef:
    return NodeRef(node=name, tier=tier, ranks=[0])


@pytest.mark.parametrize("policy", ["dev", "baseline", "hardened"])
def test_a_complete_statement_meets_every_policy(check, policy):
    assert check(policy) == []


@items(
    "said, codes",
    ({"run_id": ""}, ["ST-CKPT-170"]),
    ({"dataset": DatasetRef()}, ["ST-CKPT-170"]),
    ({"policy": PolicyRef()}, ["ST-CKPT-170"]),
    ({"gradients": GradientRecord()}, ["ST-CKPT-121"]),
    (
        {"gradients": GradientRecord(verdict=GradientVerdict.REFUSED, judged=2, refused=1)},
        ["ST-CKPT-121"],
    ),
    ({"nodes": []}, ["ST-CKPT-121"]),
    ({"nodes": [node(NodeTier.SELF_ASSERTED)]}, ["ST-CKPT-121"]),
    ({"nodes": [node(NodeTier.TPM), node(NodeTier.TEST_ONLY, "m")]}, ["ST-CKPT-121"]),
)
def test_each_rule_refuses(check, said, codes):
    assert check(**said) == codes


def test_nodes_are_asked_for_only_after_the_run(check):
    assert check(after_run=False, nodes=[node(NodeTier.SELF_ASSERTED)]) == []


@items(
    "tiers, ok",
    ([NodeTier.SELF_ASSERTED], True),
    ([NodeTier.TPM], True),
    ([NodeTier.SELF_ASSERTED, NodeTier.SELF_ASSERTED], False),
    ([NodeTier.TEST_ONLY], False),
)
def test_the_exception_of_the_dev_policy_has_its_limit(check, tiers, ok):
    said = [node(tier, f"n{i}") for i, tier in enumerate(tiers)]
    assert (check("dev", nodes=said) == []) is ok


def test_the_algorithm(check):
    fields = {"checkpoint": {"algorithm": HashAlgorithm.SHA256}}
    assert check(change=fields) == ["ST-CKPT-121"]


def test_gradients_that_nobody_watched(check):
    # Even when the verdict need not be clean, a policy that watches wants it watched.
    change = {"checkpoint": {"require_clean_verdict": False}}
    assert check(change=change, gradients=GradientRecord()) == ["ST-CKPT-121"]


def test_a_policy_that_watches_nothing_asks_for_no_verdict(check):
    change = {"checkpoint": {"require_clean_verdict": False}, "gradients": {"mode": GuardMode.OFF}}
    assert check(change=change, gradients=GradientRecord()) == []


def test_a_refused_verdict_where_it_need_not_be_clean(check):
    change = {"checkpoint": {"require_clean_verdict": False}}
    refused = GradientRecord(verdict=GradientVerdict.REFUSED, judged=2, refused=1)
    assert check(change=change, gradients=refused) == []


def test_young_enough(check, now):
    assert check("hardened", created=now - timedelta(days=89)) == []


def test_too_old(check, now):
    assert check("hardened", created=now - timedelta(days=91)) == ["ST-CKPT-150"]


def test_from_the_future(check, now):
    assert check(created=now + timedelta(hours=1)) == ["ST-CKPT-150"]


def test_its_own_parent(forge, trust, now, tmp_path, check):
    first = forge(tmp_path / "first")
    # The digest covers the files and not what is said of them, so a checkpoint could name itself.
    assert check(parents=[Parent(digest=digest_of(first))]) == ["ST-CKPT-170"]


@pytest.mark.parametrize(("days", "codes"), [(1, []), (0, []), (-1, ["ST-CKPT-121"])])
def test_self_asserted_needs_an_exception_that_has_not_ended(check, now, days, codes):
    said = SelfAsserted(max_nodes=1, reason="x", until=(now + timedelta(days=days)).date())
    change = {"node": {"allow_self_asserted": said}}
    assert check("dev", change=change, nodes=[node(NodeTier.SELF_ASSERTED)]) == codes


@items("after_run", True, False)
@items("asked, codes", (1, ["ST-CHAN-017"]), (None, []))
@items("name", "min_clean_steps", "max_audit_age_steps")
def test_who_verifies_and_who_loads_counts_documents(check, name, asked, codes, after_run):
    """The checkpoint's key writes any number; the control is a policy that counts nothing."""
    said = GradientRecord(verdict=GradientVerdict.CLEAN, judged=10**6, clean_steps=10**6, audited=9)
    change = {"checkpoint": {name: asked}}
    assert check(change=change, gradients=said, step=9, after_run=after_run) == codes


@items(
    "under, tier, codes",
    ("hardened", NodeTier.TEE_GPU, ["ST-CHAN-010"]),
    ("baseline", NodeTier.VTPM, ["ST-CHAN-010"]),
    ("dev", NodeTier.TEE_GPU, []),
    ("baseline", NodeTier.SELF_ASSERTED, []),
)
def test_a_tier_is_never_the_statement_s_own_word(check, under, tier, codes):
    """Without evidence it is missing, and no pass; a node that claims nothing needs none."""
    allowed = {"node": {"allow_self_asserted": SelfAsserted(max_nodes=1, reason="a test")}}
    assert check(under, nodes=[node(tier)], shown=False, change=allowed) == codes
