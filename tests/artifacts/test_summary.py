# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verification summary says PASSED only of what was verified, and its level is computed."""

import datetime as dt
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from securetrain.artifacts.statement.rules import Shown
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    IndexFile,
    NodeRef,
    Opened,
    PolicyRef,
    TreeInfo,
)
from securetrain.artifacts.summary import INTEGRITY, PolicyUsed, levels, sign, summarize
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.problems import Problem
from securetrain.artifacts.verify import VerifyResult
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from tests.tables import each
from tests.vocabulary import refused

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
POLICY = PolicyUsed(uri="baseline", digest="b" * 64)
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
GOOD = VerifyResult(
    kind=Kind.CHECKPOINT,
    path=Path("/data/step-1"),
    problems=(),
    num_files=3,
    num_bytes=9,
    opened=OPENED,
    shown=Shown(tiers={"n1": NodeTier.TPM}),
)
BAD = replace(GOOD, problems=(Problem(code="ST-CKPT-130", what="changed"),))


def struct_replace(**changes: object) -> VerifyResult:
    import msgspec

    said = msgspec.structs.replace(SAID, **changes)
    return replace(GOOD, opened=replace(OPENED, predicate=said))


def test_a_verified_artifact_passes_with_its_digest_and_policy() -> None:
    said = json.loads(summarize(GOOD, POLICY, NOW))
    assert said["subject"][0]["digest"] == {"securetrainTree1": "a" * 64}
    predicate = said["predicate"]
    assert predicate["verificationResult"] == "PASSED"
    assert predicate["timeVerified"] == "2026-05-01T12:00:00Z"
    assert predicate["policy"]["digest"] == {"sha256": "b" * 64}
    assert predicate["verifiedLevels"][-1] == "SECURETRAIN_L3"


def test_a_refused_artifact_fails_and_has_no_level() -> None:
    predicate = json.loads(summarize(BAD, POLICY, NOW))["predicate"]
    assert predicate["verificationResult"] == "FAILED"
    assert predicate["verifiedLevels"] == []


@each(
    "result, policy, level",
    (GOOD, None, 1),
    (GOOD, POLICY, 3),
    (replace(GOOD, shown=Shown()), POLICY, 2),
    (replace(GOOD, shown=Shown(tiers={"n1": NodeTier.SELF_ASSERTED})), POLICY, 2),
    (replace(GOOD, shown=Shown(tiers={"other": NodeTier.TPM})), POLICY, 2),
    (struct_replace(nodes=[]), POLICY, 2),
    (struct_replace(nodes=[NodeRef(node="n", tier=NodeTier.SELF_ASSERTED)]), POLICY, 2),
    (struct_replace(nodes=[NodeRef(node="n", tier=NodeTier.TEST_ONLY)]), POLICY, 2),
    (struct_replace(run_id=""), POLICY, 1),
    (struct_replace(dataset=DatasetRef()), POLICY, 1),
    (struct_replace(policy=PolicyRef()), POLICY, 1),
    (BAD, POLICY, 0),
    (replace(GOOD, num_files=0), POLICY, 0),
)
def test_the_level_is_computed(result, policy, level):
    assert len(levels(result, policy)) == level


@pytest.mark.parametrize("policy", [None, POLICY])
@pytest.mark.parametrize("result", [GOOD, BAD])
def test_a_summary_has_what_slsa_requires(result: VerifyResult, policy: PolicyUsed | None) -> None:
    """The table of required fields in slsa.dev/spec/v1.1/verification_summary, and in-toto's."""
    said = json.loads(summarize(result, policy, NOW))
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
    assert policy is not None or predicate["policy"]["uri"] == INTEGRITY.uri
    assert summarize(result, None, NOW) != summarize(result, POLICY, NOW)


def test_without_a_digest_there_is_no_summary() -> None:
    refused(UsageError, "ST-USAG-001", summarize, replace(BAD, opened=None), None, NOW)


def test_a_signed_summary_verifies() -> None:
    key = PrivateKey.generate()
    envelope = sign(summarize(GOOD, None, NOW), key)
    payload = dsse.verify(envelope, dsse.IN_TOTO, {key.key_id: key.public})
    assert json.loads(payload.data)["predicate"]["verificationResult"] == "PASSED"
