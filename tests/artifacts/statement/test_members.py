# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks' own signatures: what a lying coordinator or a mixed-up store cannot do."""

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.members import RankSigner, issue, messages_of
from securetrain.artifacts.statement.statements import CheckpointPredicate, NodeRef, RankFile
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests import vocabulary
from tests.artifacts.statement.worlds import signature_of
from tests.tables import items
from tests.vocabulary import refused

NODES = ("spiffe://t/job/r/node/a", "spiffe://t/job/r/node/b")
WORLD = 4


def replace(predicate: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(predicate, **changes)


@pytest.fixture(scope="module")
def signers(keys, now):
    """One signer a node, of the run."""
    term = (now - timedelta(hours=2), now + timedelta(hours=2))
    return [issue("run-1", node, term, keys.admitter) for node in NODES]


@pytest.fixture
def predicate(forge, tmp_path):
    """A statement of four ranks on two nodes; rank 3 wrote no file."""
    made = forge(tmp_path / "made")
    (only,) = made.files
    files = [
        RankFile(name=f"rank-{rank:05d}.bin", size=only.size + rank, root=only.root, rank=rank)
        for rank in range(3)
    ]
    nodes = [
        NodeRef(node=node, tier=NodeTier.TPM, ranks=[2 * number, 2 * number + 1])
        for number, node in enumerate(NODES)
    ]
    return replace(made, world_size=WORLD, files=files, nodes=nodes)


def signed(predicate, signers, *, by=None) -> CheckpointPredicate:
    """The statement with the signatures of its ranks; `by` exchanges a rank's signer."""
    messages = messages_of(predicate)
    of = {rank: signers[rank // 2] for rank in range(predicate.world_size)} | (by or {})
    found: CheckpointPredicate = replace(
        predicate,
        members=sorted({signer.certificate for signer in of.values()}),
        signatures=[signature_of(rank, of[rank], messages[rank]) for rank in sorted(of)],
    )
    return found


def codes(predicate, trust, *, required=True):
    return [problem.code for problem in members.check(predicate, trust, required=required)]


def test_signatures_of_every_rank_are_accepted(predicate, signers, trust):
    assert codes(signed(predicate, signers), trust) == []


def test_without_signatures_the_policy_decides(predicate, trust):
    assert codes(predicate, trust) == ["ST-CKPT-122"]
    assert codes(predicate, trust, required=False) == []


def test_a_trust_root_that_names_nobody_who_admits(predicate, signers, keys, now):
    roles = {TrustRole.CHECKPOINT: [keys.checkpoint.public]}
    data = sign_root(roles, keys.root, now, now + timedelta(days=1))
    trust = TrustRoot.parse(data, now)
    assert codes(signed(predicate, signers), trust) == ["ST-CKPT-122"]
    assert codes(signed(predicate, signers), trust, required=False) == []


def test_what_is_signed_must_hold_even_where_it_is_not_asked_for(predicate, signers, trust):
    bad = replace(signed(predicate, signers), step=predicate.step + 1)
    assert codes(bad, trust, required=False) == ["ST-CKPT-111"]


@items(
    "change",
    {"run_id": "run-2"},
    {"step": 99},
    {"save_id": "1" * 32},
    {"world_size": 5},
)
def test_signatures_of_another_save_do_not_fit(predicate, signers, trust, change):
    assert codes(replace(signed(predicate, signers), **change), trust) in (
        ["ST-CKPT-111"],
        ["ST-CKPT-122"],
    )


def test_a_file_of_another_step_with_its_own_signature(predicate, signers, trust):
    """T5, T41: everything is good by itself, and the coordinator's key signs the mixture."""
    now_saved = signed(predicate, signers)
    old = signed(replace(predicate, step=50, save_id="2" * 32), signers)
    mixed = [old.signatures[0], *now_saved.signatures[1:]]
    assert codes(replace(now_saved, signatures=mixed), trust) == ["ST-CKPT-111"]


def test_a_coordinator_drops_renames_and_exchanges_files(predicate, signers, trust):
    """T42."""
    good = signed(predicate, signers)
    first, second, third = good.files
    for files in (
        [first, second],
        [replace(first, name="rank-00009.bin"), second, third],
        [replace(first, rank=1), replace(second, rank=0), third],
        [replace(first, root=third.root, size=third.size), second, third],
        [*good.files, RankFile(name="rank-00003.bin", size=1, root=first.root, rank=3)],
    ):
        assert codes(replace(good, files=files), trust) == ["ST-CKPT-111"]


def test_every_rank_of_the_world_must_have_signed(predicate, signers, trust):
    good = signed(predicate, signers)
    for missing in range(WORLD):
        kept = [s for s in good.signatures if s.rank != missing]
        found = members.check(replace(good, signatures=kept), trust, required=False)
        assert [p.code for p in found] == ["ST-CKPT-122"]
        assert f"rank {missing} did not sign" in found[0].what


def test_a_rank_of_another_node(predicate, signers, trust):
    assert codes(signed(predicate, signers, by={0: signers[1]}), trust) == ["ST-CKPT-122"]


def test_a_node_that_the_statement_does_not_name(predicate, signers, trust, keys, now):
    other = issue("run-1", "spiffe://t/job/r/node/z", (now - timedelta(days=1), now), keys.admitter)
    assert codes(signed(predicate, signers, by={0: other}), trust) == ["ST-CKPT-122"]
    # Nor does it help that the statement does not say which ranks ran where.
    nodes = [replace(node, ranks=[]) for node in predicate.nodes]
    unplaced = replace(predicate, nodes=nodes)
    assert codes(signed(unplaced, signers), trust) == []
    assert codes(signed(unplaced, signers, by={0: other}), trust) == ["ST-CKPT-122"]


@pytest.mark.parametrize("how", ["stranger", "checkpoint key", "run", "early", "late", "none"])
def test_a_key_that_nobody_admitted(predicate, signers, *, trust, keys, now, how):
    hour = timedelta(hours=1)
    run, by, term = "run-1", keys.admitter, (now - 2 * hour, now + hour)
    match how:
        case "stranger":
            by = keys.stranger
        case "checkpoint key":
            by = keys.checkpoint
        case "run":
            run = "run-2"
        case "early":
            term = (now - 9 * hour, now - 8 * hour)
        case "late":
            term = (now + hour, now + 2 * hour)
        case _:
            pass
    forged = issue(run, NODES[0], term, by)
    bad = signed(predicate, signers, by={0: forged})
    if how == "none":
        assert codes(bad, trust) == []  # the control: the same, with everything right
        bad = replace(bad, members=[c for c in bad.members if c != forged.certificate])
    assert codes(bad, trust) == ["ST-CKPT-122"]


def test_damaged_certificates_and_signatures(predicate, signers, trust):
    good = signed(predicate, signers)
    assert codes(replace(good, members=["{}", *good.members]), trust) == ["ST-CKPT-122"]
    assert codes(replace(good, members=[*good.members, good.members[0]]), trust) == ["ST-CKPT-122"]
    for sig in ("", "!!", good.signatures[1].sig):
        changed = [replace(good.signatures[0], sig=sig), *good.signatures[1:]]
        assert codes(replace(good, signatures=changed), trust) == ["ST-CKPT-111"]


def test_a_signer_is_kept_in_two_private_files(signers, tmp_path):
    signers[0].store(tmp_path / "k.pem", tmp_path / "k.json")
    again = RankSigner.load(tmp_path / "k.pem", tmp_path / "k.json")
    assert again.certificate == signers[0].certificate
    assert again.key.key_id == signers[0].key.key_id
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600


def test_the_keys_in_certificates_can_be_read_before_they_are_believed(signers):
    found = members.keys_named([signer.certificate for signer in signers])
    assert set(found) == {signer.key.key_id for signer in signers}
    damaged = msgspec.json.decode(signers[0].certificate)
    damaged["payload"] = "?" + damaged["payload"][1:]
    with pytest.raises(IdentityError, match="bad base64"):
        members.keys_named([msgspec.json.encode(damaged).decode()])
    refused(Exception, "ST-", members.keys_named, ["nonsense"])


def test_a_thousand_ranks(predicate, keys, trust, now):
    """1,024 ranks on 128 nodes are verified, and one wrong one among them is named."""
    term = (now - timedelta(hours=2), now + timedelta(hours=2))
    nodes = [f"spiffe://t/job/r/node/{number}" for number in range(128)]
    many = [issue("run-1", node, term, keys.admitter) for node in nodes]
    files = [
        RankFile(name=f"rank-{rank:05d}.bin", size=1, root="0" * 64, rank=rank)
        for rank in range(1024)
    ]
    refs = [
        NodeRef(node=node, tier=NodeTier.TPM, ranks=list(range(8 * n, 8 * n + 8)))
        for n, node in enumerate(nodes)
    ]
    large = replace(predicate, world_size=1024, files=files, nodes=refs)
    messages = messages_of(large)
    large = replace(
        large,
        members=sorted(signer.certificate for signer in many),
        signatures=[signature_of(r, many[r // 8], messages[r]) for r in range(1024)],
    )
    assert codes(large, trust) == []
    wrong = list(large.signatures)
    wrong[700] = signature_of(700, many[87], messages[701])
    (problem,) = members.check(replace(large, signatures=wrong), trust, required=True)
    assert "rank 700 " in problem.what


def test_problems_are_raised_as_integrity_errors(predicate, trust):
    (problem,) = members.check(predicate, trust, required=True)
    assert isinstance(problem.error("x"), IntegrityError)


def test_a_signing_key_of_any_kind_signs(predicate, keys, trust, now):
    key = PrivateKey.generate()
    hour = timedelta(hours=1)
    by = issue("run-1", NODES[0], (now - 2 * hour, now + hour), keys.admitter)
    spki = base64.b64encode(key.public.spki).decode()
    document = members.RankKey(
        run_id="run-1", node=NODES[0], key=spki, issued=now - 2 * hour, expires=now + hour
    )
    ed25519 = RankSigner(key, members.certify(document, keys.admitter))
    mixed = signed(predicate, [by, issue("run-1", NODES[1], (now - hour, now), keys.admitter)])
    assert codes(mixed, trust) == []
    assert codes(signed(predicate, [ed25519, by], by={2: ed25519, 3: ed25519}), trust) == [
        "ST-CKPT-122"  # ranks 2 and 3 are another node's
    ]


def test_all_messages_are_those_of_each_rank_alone(predicate):
    for run in ("run-1", 'a "{,\\ run', "l\u00e4uft", '{"file":null,"rank":0,'):
        for records in (None, "ab" * 32):
            bound = replace(predicate.bound, step_records=records)
            said = replace(predicate, run_id=run, bound=bound)
            files = {file.rank: file for file in said.files}
            assert messages_of(said) == [
                members.rank_message(
                    run_id=run,
                    step=said.step,
                    save_id=said.save_id,
                    world_size=WORLD,
                    rank=rank,
                    tree=said.tree,
                    file=files.get(rank),
                    step_records=records,
                )
                for rank in range(WORLD)
            ]


@pytest.mark.forgery
def test_recorded_steps_are_part_of_what_each_rank_signs(predicate, signers, trust):
    bound = [replace(predicate.bound, step_records=digest * 32) for digest in ("ab", "cd")]
    first, second = (signed(replace(predicate, bound=one), signers) for one in bound)
    assert codes(first, trust) == []
    # Records exchanged, stripped, or added behind the ranks' backs.
    for lie in (
        replace(first, bound=second.bound),
        replace(first, bound=predicate.bound),
        replace(signed(predicate, signers), bound=first.bound),
        replace(first, signatures=[*first.signatures[:3], second.signatures[3]]),
    ):
        assert codes(lie, trust) == ["ST-CKPT-111"]
    for message in (*messages_of(first), *messages_of(predicate)):
        assert members.read_message(message).step == predicate.step
    for message in messages_of(first):
        older = message.replace(b"rank-file/2", b"rank-file/1")
        newer = messages_of(predicate)[0].replace(b"rank-file/1", b"rank-file/2")
        for bad in (older, newer, b"securetrain/rank-file/2\n" + message):
            vocabulary.refused(UsageError, "ST-USAG-008", members.read_message, bad)
