# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""T40 and what a verifier does with a log years later."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.proof import LIMIT, Proof, parse_proof, verify_logged
from tests import vocabulary
from tests.identity.log.conftest import KIND, NOW, World
from tests.tables import items


def refused(code, world, proof, *, envelope=None, policy=None, now=NOW, verifiers=None):
    return vocabulary.refused(
        IdentityError,
        code,
        lambda: verify_logged(
            envelope or world.envelope("b"),
            proof,
            verifiers or world.verifiers,
            policy or world.policy,
            now,
            "proof",
        ),
    )


@pytest.fixture
def logged(world):
    world.append("a", "b", "c")
    world.cosign(0, 1)
    return world


def test_an_envelope_that_was_logged(logged):
    found = verify_logged(
        logged.envelope("b"), logged.log.prove(1), logged.verifiers, logged.policy, NOW
    )
    assert found.index == 1
    assert found.seen == NOW
    assert found.signed.checkpoint.size == 3


@pytest.mark.forgery
def test_one_that_was_not(logged):
    """T40: bad inclusion."""
    for index in (0, 2):
        error = refused("ST-IDEN-041", logged, logged.log.prove(index))
        assert error.exit_code == 18
    refused("ST-IDEN-041", logged, logged.log.prove(1), envelope=logged.envelope("planted"))


def test_the_same_statement_signed_again_is_another_entry(logged):
    other = PrivateKey.generate()
    both = dsse.add_signatures(logged.envelope("b"), KIND, [other])
    verifiers = {**logged.verifiers, other.key_id: other.public}
    refused("ST-IDEN-041", logged, logged.log.prove(1), envelope=both, verifiers=verifiers)


@pytest.mark.forgery
def test_a_proof_whose_checkpoint_is_not_witnessed_enough(logged):
    logged.append("d")
    refused("ST-IDEN-044", logged, logged.log.prove(1))
    logged.cosign(2)
    refused("ST-IDEN-044", logged, logged.log.prove(1))
    logged.cosign(0)
    verify_logged(logged.envelope("b"), logged.log.prove(1), logged.verifiers, logged.policy, NOW)


@pytest.mark.forgery
def test_a_proof_of_another_log(logged):
    stranger = PrivateKey.generate()
    keys = {stranger.key_id: stranger.public}
    refused("ST-IDEN-040", logged, logged.log.prove(1), policy=replace(logged.policy, keys=keys))
    elsewhere = replace(logged.policy, origin="other.example")
    refused("ST-IDEN-040", logged, logged.log.prove(1), policy=elsewhere)


def test_an_old_checkpoint_can_be_refused(logged):
    policy = replace(logged.policy, max_age=timedelta(days=1))
    late = NOW + timedelta(days=2)
    error = refused("ST-IDEN-047", logged, logged.log.prove(1), policy=policy, now=late)
    assert error.exit_code == 15


@pytest.mark.forgery
@items(
    "id, change",
    ("nothing", lambda p: b""),
    ("version", lambda p: p.replace(b"@v1", b"@v2")),
    ("extra data", lambda p: p.replace(b"index", b"extra eA==\nindex")),
    ("leading zero", lambda p: p.replace(b"index 1", b"index 01")),
    ("negative", lambda p: p.replace(b"index 1", b"index -1")),
    ("huge", lambda p: p.replace(b"index 1", b"index " + b"9" * 16)),
    ("hash", lambda p: p.replace(b"index 1", b"index 1\n" + b"x" * 43 + b"=")),
    ("short hash", lambda p: p.replace(b"index 1", b"index 1\nAAAA")),
    ("not ASCII", lambda p: p.replace(b"index", b"\xff")),
    ("no checkpoint", lambda p: p.replace(b"\n\n", b"\n")),
    ("nothing after the hashes", lambda p: p.partition(b"\n\n")[0]),
    ("one line", lambda p: p.partition(b"\n")[0]),
    ("no index", lambda p: b"\n\n".join([p.partition(b"\n")[0], p.partition(b"\n\n")[2]])),
    ("too long", lambda p: p + b"\n" * LIMIT),
    ("too many", lambda p: p.replace(b"index 1", b"index 1" + (b"\n" + b"A" * 43 + b"=") * 65)),
)
def test_malformed(change, logged):
    bent = change(logged.log.prove(1))
    refused("ST-IDEN-041", logged, bent)
    vocabulary.refused(IdentityError, "ST-IDEN-041", parse_proof, bent)


def test_a_proof_round_trips(logged):
    data = logged.log.prove(2)
    assert parse_proof(data).encode() == data
    assert isinstance(parse_proof(data), Proof)


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("proven"))
    world.append("a", "b", "c")
    world.cosign(0, 1)
    return world, world.log.prove(1)


@settings(max_examples=200)
@given(data=st.data())
def test_no_byte_before_the_signatures_can_change(proven, data):
    world, good = proven
    position = data.draw(st.integers(0, good.index("\u2014".encode()) - 1))
    proof = bytearray(good)
    proof[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(IdentityError) as caught:
        verify_logged(world.envelope("b"), bytes(proof), world.verifiers, world.policy, NOW)
    assert caught.value.code in {"ST-IDEN-040", "ST-IDEN-041"}
