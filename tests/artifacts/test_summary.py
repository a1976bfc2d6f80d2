# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verification summary says PASSED only of what was verified, and its level is computed."""

import datetime as dt
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    IndexFile,
    NodeRef,
    Opened,
    PolicyRef,
    TreeInfo,
)
from securetrain.artifacts.tree.layout import Kind
from securetrain.chain import links
from securetrain.chain.judging import Judged
from securetrain.chain.links import verified
from securetrain.chain.verdict import INTEGRITY, Form, Verdict, levels, summarize, write_summary
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import ChainLink, NodeTier
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.policy.load import LoadedPolicy, load_policy
from tests.tables import each
from tests.vocabulary import refused

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
POLICY = LoadedPolicy(policy=load_policy("baseline").policy, digest="b" * 64)
SAID = CheckpointPredicate(
    run_id="r1",
    step=1,
    seq=0,
    save_id="0" * 32,
    created=NOW,
    world_size=1,
    tree=TreeInfo(algorithm=HashAlgorithm.BLAKE3, leaf_size=1 << 20),
    files=[],
    index=IndexFile(name="index.json", size=1, sha256="0" * 64),
    dataset=DatasetRef(name="d", digest="d" * 64),
    policy=PolicyRef(id="baseline", digest="b" * 64),
    nodes=[NodeRef(node="n1", tier=NodeTier.TPM)],
)
OPENED = Opened(kind=Kind.CHECKPOINT, predicate=SAID, digest="a" * 64, key_ids=frozenset({"k"}))


def found(
    policy: LoadedPolicy | None = POLICY,
    *,
    tier: NodeTier = NodeTier.TPM,
    node: str = "n1",
    missing: tuple[str, ...] = (),
    num_files: int = 3,
    **changes: object,
) -> Verdict:
    """A checkpoint of which all links are verified but some."""
    import msgspec

    made = Verdict.of(Path("/data/step-1"), form=Form.DIRECTORY, at=NOW, policy=policy)
    made.opened = replace(OPENED, predicate=msgspec.structs.replace(SAID, **changes))
    made.num_files = num_files
    verdicts = {link: verified(link, "", {node: tier}) for link in ChainLink}
    verdicts |= {ChainLink(one): links.missing(ChainLink(one), "") for one in missing}
    made.judged = (Judged(digest=made.digest, step=1, run="r1", verdicts=verdicts),)
    return made


def bad(policy: LoadedPolicy | None = POLICY) -> Verdict:
    made = found(policy)
    made.refuse("ST-CKPT-130", "changed")
    return made


def depth(made: Verdict) -> int:
    return len([one for one in levels(made) if "LINK" not in one])


def test_a_verified_artifact_passes_with_its_digest_and_policy() -> None:
    said = json.loads(summarize(found()))
    assert said["subject"][0]["digest"] == {"securetrainTree1": "a" * 64}
    predicate = said["predicate"]
    assert predicate["verificationResult"] == "PASSED"
    assert predicate["timeVerified"] == "2026-05-01T12:00:00Z"
    assert predicate["policy"]["digest"] == {"sha256": "b" * 64}
    assert predicate["verifiedLevels"][:4][2:] == ["SECURETRAIN_L3", "SECURETRAIN_LINK_NODES"]


def test_a_refused_artifact_fails_and_has_no_level() -> None:
    predicate = json.loads(summarize(bad()))["predicate"]
    assert predicate["verificationResult"] == "FAILED"
    assert predicate["verifiedLevels"] == []


@each(
    "made, level",
    (found(None), 1),
    (found(), 3),
    (found(missing=("nodes",)), 2),
    (found(tier=NodeTier.SELF_ASSERTED), 2),
    (found(node="other"), 2),
    (found(nodes=[]), 2),
    (found(tier=NodeTier.TEST_ONLY), 2),
    (found(run_id=""), 1),
    (found(missing=("dataset",)), 1),
    (found(missing=("policy",)), 1),
    (bad(), 0),
    (found(num_files=0), 0),
)
def test_the_level_is_computed(made, level):
    assert depth(made) == level


@pytest.mark.parametrize("policy", [None, POLICY])
@pytest.mark.parametrize("make", [found, bad])
def test_a_summary_has_what_slsa_requires(make: Any, policy: LoadedPolicy | None) -> None:
    """The table of required fields in slsa.dev/spec/v1.1/verification_summary, and in-toto's."""
    said = json.loads(summarize(make(policy)))
    assert set(said) == {"_type", "subject", "predicateType", "predicate"}
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/verification_summary/v1"
    predicate = said["predicate"]
    required = {"verifier", "timeVerified", "resourceUri", "policy", "verificationResult"}
    assert set(predicate) == required | {"verifiedLevels"}
    assert "://" in predicate["verifier"]["id"]
    assert set(predicate["policy"]) == {"uri", "digest"}
    assert predicate["policy"]["uri"]
    assert re.fullmatch("[0-9a-f]{64}", predicate["policy"]["digest"]["sha256"])
    assert predicate["resourceUri"].startswith("urn:")
    assert predicate["verificationResult"] in {"PASSED", "FAILED"}
    assert dt.datetime.fromisoformat(predicate["timeVerified"]) == NOW
    assert not [level for level in predicate["verifiedLevels"] if level.startswith("SLSA_")]
    assert policy is not None or predicate["policy"]["uri"] == INTEGRITY[0]
    assert summarize(make(None)) != summarize(make(POLICY))


def test_without_a_digest_there_is_no_summary() -> None:
    refused(UsageError, "ST-USAG-001", summarize, replace(bad(), opened=None))


def test_a_signed_summary_verifies(tmp_path: Path) -> None:
    key = PrivateKey.generate()
    write_summary(tmp_path / "vsa.json", found(None), key)
    envelope = (tmp_path / "vsa.json").read_bytes()
    payload = dsse.verify(envelope, dsse.IN_TOTO, {key.key_id: key.public})
    assert json.loads(payload.data)["predicate"]["verificationResult"] == "PASSED"
