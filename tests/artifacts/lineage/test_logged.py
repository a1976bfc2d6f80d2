# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""T37, T38: what a revoked key signed, and what a log saves of it."""

import base64
from datetime import timedelta

import pytest
import torch
from msgspec.structs import replace

from securetrain import artifacts
from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.artifacts.lineage.folder import LogProof
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.checkpoint import LogPolicy
from securetrain.identity.log.proof import LIMIT
from securetrain.identity.log.store import Log
from securetrain.identity.log.witness import Witness, request_for
from securetrain.identity.trust import (
    Revoked,
    RoleKeys,
    TrustRole,
    TrustRoot,
    key_table,
    sign_document,
)
from securetrain.policy import load_policy
from securetrain.policy.schema import Policy, TransparencyLog
from tests import vocabulary

ORIGIN = "log.example/team"


class Logbook:
    """A log with two witnesses, and trust roots that know it."""

    def __init__(self, folder, keys, now):
        self.folder, self.keys, self.now = folder, keys, now
        self.key, *self.witnesses = (PrivateKey.generate() for _ in range(3))
        Log.create(folder / "log", ORIGIN, self.key)
        self.log = Log(folder / "log", LogPolicy.from_trust_root(self.trust()))

    def trust(self, *revoked: Revoked, **changes) -> TrustRoot:
        document = TrustRoot.parse(self.keys.trust_file(), self.now).document
        extra = {
            TrustRole.LOG: RoleKeys([self.key.key_id]),
            TrustRole.WITNESS: RoleKeys([key.key_id for key in self.witnesses], 2),
        }
        known = {**document.keys, **key_table([k.public for k in (self.key, *self.witnesses)])}
        changed = replace(
            document,
            keys=known,
            roles={**document.roles, **extra},
            revoked=list(revoked),
            **{"log_origin": ORIGIN, **changes},
        )
        return TrustRoot.parse(sign_document(changed, [self.keys.root]), self.now)

    def append(self, root) -> int:
        return self.log.append((root / STATEMENT).read_bytes(), self.trust().keys, self.key)

    def cosign(self) -> None:
        text = self.log.state()[1].text
        for number, key in enumerate(self.witnesses):
            policy = self.log.policy
            node = Witness(f"w{number}", key, self.folder / f"w{number}", {ORIGIN: policy})
            line = node.cosign(request_for(self.log, node.seen(ORIGIN)), self.now)
            self.log.add_cosignatures(text, [line])


@pytest.fixture
def logbook(tmp_path, keys, now):
    return Logbook(tmp_path, keys, now)


@pytest.fixture
def dataset(tmp_path, keys, now):
    documents = [("train", "a", b"x" * 1000)]
    signed = sign_documents(documents, tmp_path / "data", name="d", key=keys.dataset, now=now)
    return signed.path


def check(path, trust, now, proof=None):
    log_proof = None if proof is None else LogProof(proof)
    return verify_path(path, trust=trust, policy=None, now=now, log_proof=log_proof)


def refused(result, code, exit_code):
    assert [problem.code for problem in result.problems] == [code], result.problems
    assert int(result.exit_code) == exit_code
    assert not result.ok


@pytest.mark.forgery
def test_a_key_that_was_revoked_later(forge, logbook, keys, now, dataset):
    forge(logbook.folder / "c")
    for path, key, family in (
        (logbook.folder / "c", keys.checkpoint, "CKPT"),
        (dataset, keys.dataset, "DATA"),
    ):
        index = logbook.append(path)
        logbook.cosign()
        proof = logbook.log.prove(index)
        assert check(path, logbook.trust(), now).ok
        found = check(path, logbook.trust(), now, proof)
        assert found.ok
        assert found.logged is not None
        assert (found.logged.index, found.logged.seen) == (index, now)
        lost = Revoked(key_id=key.key_id, since=now, valid_before=index + 1)
        trust = logbook.trust(lost)
        refused(check(path, trust, now), f"ST-{family}-161", 16)
        assert check(path, trust, now, proof).ok
        for earlier in (index, None):
            gone = logbook.trust(replace(lost, valid_before=earlier))
            refused(check(path, gone, now, proof), f"ST-{family}-161", 16)


@pytest.mark.forgery
def test_proofs_that_do_not_hold(forge, tmp_path, logbook, now):
    root = tmp_path / "c"
    forge(root)
    forge(tmp_path / "other", step=101)
    index = logbook.append(root)
    refused(check(root, logbook.trust(), now, logbook.log.prove(index)), "ST-CKPT-180", 18)
    logbook.cosign()
    proof = logbook.log.prove(index)
    assert check(root, logbook.trust(), now, proof).ok  # the control
    for path, trust, data in (
        (tmp_path / "other", logbook.trust(), proof),
        (root, logbook.trust(), b""),
        (root, logbook.trust(log_origin="other.example"), proof),
        (root, logbook.trust(log_origin=""), proof),
    ):
        refused(check(path, trust, now, data), "ST-CKPT-180", 18)
    refused(check(root, logbook.trust(), now - timedelta(hours=1), proof), "ST-CKPT-180", 18)


def test_a_dataset_with_a_proof_that_does_not_hold(logbook, now, dataset):
    proof = logbook.log.prove(logbook.append(dataset))
    refused(check(dataset, logbook.trust(), now, proof), "ST-DATA-180", 18)
    logbook.cosign()
    proof = logbook.log.prove(0)
    assert check(dataset, logbook.trust(), now, proof).ok  # the control


# What a policy asks for.


def spki(key):
    return base64.b64encode(key.public.spki).decode()


def asking(**log) -> Policy:
    policy = load_policy("dev").policy
    checkpoint = replace(policy.checkpoint, log=TransparencyLog(**log))
    return replace(policy, checkpoint=checkpoint)


@pytest.fixture
def logged(forge, logbook):
    """A checkpoint with its proof beside it."""
    path = logbook.folder / "c"
    forge(path)
    index = logbook.append(path)
    logbook.cosign()
    (logbook.folder / "c.tlog-proof").write_bytes(logbook.log.prove(index))
    return path


@pytest.mark.forgery
def test_a_policy_asks_for_the_proof_beside_it(logged, logbook, now, trust):
    def codes(path=logged, trust=None, **log):
        asked = asking(**log)
        found = verify_path(path, trust=trust or logbook.trust(), policy=asked, now=now)
        if found.ok:
            assert found.logged is not None
        return [problem.code for problem in found.problems if problem.code[-3:] != "121"]

    keys = {"origin": ORIGIN, "keys": (spki(logbook.key),)}
    both = tuple(spki(key) for key in logbook.witnesses)
    assert codes() == []
    assert codes(**keys) == []
    assert codes(**keys, witnesses=both, quorum=2) == []
    lacking = ["ST-CKPT-180"]
    assert codes(origin="other.example", keys=keys["keys"]) == lacking
    assert codes(origin=ORIGIN, keys=both[:1]) == lacking  # signed by another key
    assert codes(witnesses=both[:1]) == lacking  # the trust root's quorum is two
    assert codes(witnesses=(*both, spki(logbook.key)), quorum=3) == lacking
    assert codes(trust=trust) == lacking  # a trust root that names no log
    proof = logbook.folder / "c.tlog-proof"
    good = proof.read_bytes()
    proof.write_bytes(good[:-20])
    assert codes() == lacking
    proof.write_bytes(b"x" * (LIMIT + 1))
    assert codes() == lacking
    proof.unlink()
    assert codes() == lacking
    # A proof that is given is taken instead.
    result = verify_path(
        logged, trust=logbook.trust(), policy=asking(), now=now, log_proof=LogProof(good)
    )
    assert "ST-CKPT-180" not in {problem.code for problem in result.problems}


def test_a_loader_asks_for_it_too(logged, logbook, now):
    policy = asking()
    gradients = replace(policy.checkpoint, require_clean_verdict=False)
    policy = replace(policy, checkpoint=gradients)
    target = {"first": torch.zeros(1000, dtype=torch.uint8)}

    def load():
        return artifacts.load(
            target, logged, trust=logbook.trust(), policy=policy, now=now, strict=False
        )

    assert load().step == 100
    (logbook.folder / "c.tlog-proof").unlink()
    vocabulary.refused(IntegrityError, "ST-CKPT-180", load)


def test_a_dataset_is_not_asked_for_what_checkpoints_are(dataset, logbook, now):
    found = verify_path(dataset, trust=logbook.trust(), policy=asking(), now=now)
    assert found.ok
    assert found.logged is None
