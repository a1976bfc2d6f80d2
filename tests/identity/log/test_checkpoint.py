# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log import merkle, note
from securetrain.identity.log.checkpoint import (
    CLOCK_SKEW,
    Checkpoint,
    LogPolicy,
    open_checkpoint,
    parse_text,
    sign,
)
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document, sign_root
from tests import vocabulary
from tests.tables import forgeries, items

NOW = datetime(2026, 6, 1, tzinfo=UTC)
LOG, STRANGER = PrivateKey.generate(), PrivateKey.generate()
WITNESSES = [PrivateKey.generate() for _ in range(3)]
HEAD = Checkpoint("log.example", 7, merkle.leaf_hash(b"root"))
POLICY = LogPolicy(
    origin="log.example",
    keys={LOG.key_id: LOG.public},
    witnesses={key.key_id: key.public for key in WITNESSES},
    quorum=2,
)


def cosigned(*keys, time=NOW, head=HEAD, log=LOG, names=None):
    lines = tuple(
        note.cosign(head.text, name, key, int(time.timestamp()))
        for key, name in zip(keys, names or [f"w{n}" for n in range(len(keys))], strict=True)
    )
    return sign(head, log).with_lines(lines).encode()


def refused(code, data, policy=POLICY, now=NOW):
    return vocabulary.refused(IdentityError, code, open_checkpoint, data, policy, now, "checkpoint")


def test_a_quorum():
    found = open_checkpoint(cosigned(*WITNESSES[:2]), POLICY, NOW)
    assert found.checkpoint == HEAD
    assert set(found.cosigned) == {key.key_id for key in WITNESSES[:2]}
    assert found.seen_at(2) == NOW
    assert found.seen_at(3) is None
    assert found.seen_at(0) is None


def test_the_time_by_which_a_quorum_had_seen_it():
    lines = note.parse(cosigned(WITNESSES[0], time=NOW - timedelta(days=2))).lines[1:]
    later = cosigned(WITNESSES[1], time=NOW - timedelta(days=1), names=["other"])
    found = open_checkpoint(note.parse(later).with_lines(lines).encode(), POLICY, NOW)
    assert found.seen_at(1) == NOW - timedelta(days=2)
    assert found.seen_at(2) == NOW - timedelta(days=1)


@forgeries(
    "id, data, quorum",
    ("nobody", sign(HEAD, LOG).encode(), 0),
    ("one of two", cosigned(WITNESSES[0]), 1),
    ("a stranger", cosigned(WITNESSES[0], STRANGER), 1),
    ("one under two names", cosigned(WITNESSES[0], WITNESSES[0]), 1),
    ("the log itself", cosigned(WITNESSES[0], LOG), 0),
)
def test_under_witnessed(data, quorum):
    """T40."""
    assert refused("ST-IDEN-044", data).exit_code == 18
    open_checkpoint(data, replace(POLICY, quorum=quorum), NOW)  # the control


@pytest.mark.forgery
def test_a_log_that_is_its_own_witness():
    policy = replace(POLICY, witnesses={LOG.key_id: LOG.public}, quorum=1)
    refused("ST-IDEN-044", cosigned(LOG), policy)


@pytest.mark.forgery
def test_not_signed_by_the_log():
    """T40."""
    refused("ST-IDEN-040", cosigned(*WITNESSES, log=STRANGER))
    only = note.parse(cosigned(*WITNESSES))
    refused("ST-IDEN-040", replace(only, lines=only.lines[1:]).encode())
    elsewhere = replace(HEAD, origin="other.example")
    refused("ST-IDEN-040", cosigned(*WITNESSES, head=elsewhere))
    # Under the right name, but about another log.
    mixed = note.Note(elsewhere.text, (note.sign(elsewhere.text, HEAD.origin, LOG),))
    refused("ST-IDEN-040", mixed.encode(), replace(POLICY, quorum=0))


def test_a_threshold_of_log_keys():
    second = PrivateKey.generate()
    policy = replace(POLICY, keys={**POLICY.keys, second.key_id: second.public}, threshold=2)
    refused("ST-IDEN-040", cosigned(*WITNESSES), policy)
    for threshold in (0, 1):  # nobody is never enough
        nobody = replace(policy, threshold=threshold, quorum=0)
        refused("ST-IDEN-040", sign(HEAD, STRANGER).encode(), nobody)
    both = note.parse(cosigned(*WITNESSES)).with_lines(sign(HEAD, second).lines)
    assert open_checkpoint(both.encode(), policy, NOW).checkpoint == HEAD


@pytest.mark.forgery
def test_a_cosignature_from_the_future():
    soon = NOW + CLOCK_SKEW
    open_checkpoint(cosigned(*WITNESSES, time=soon), POLICY, NOW)
    refused("ST-IDEN-040", cosigned(*WITNESSES, time=soon + timedelta(seconds=1)))


@pytest.mark.forgery
def test_age():
    policy = replace(POLICY, max_age=timedelta(hours=1))
    data = cosigned(*WITNESSES[:2])
    open_checkpoint(data, policy, NOW + timedelta(hours=1))
    error = refused("ST-IDEN-047", data, policy, NOW + timedelta(hours=1, seconds=1))
    assert error.exit_code == 15
    refused("ST-IDEN-047", data, replace(policy, quorum=0), NOW)  # whose time would count?


@items(
    "text",
    "",
    "log.example\n7\n",
    HEAD.text + "extension\n",
    HEAD.text[:-1],
    HEAD.text + "no newline",
    HEAD.text.replace("log.example", ""),
    HEAD.text.replace("log.example", "log example"),
    HEAD.text.replace("\n7\n", "\n07\n"),
    HEAD.text.replace("\n7\n", "\n-7\n"),
    HEAD.text.replace("\n7\n", "\n+7\n"),
    HEAD.text.replace("\n7\n", "\n7 \n"),
    HEAD.text.replace("\n7\n", "\n\u0667\n"),
    HEAD.text.replace("\n7\n", "\n9999999999999999\n"),
    HEAD.text.replace("\n7\n", "\n" + "9" * 5000 + "\n"),
    HEAD.text.replace("\n7\n", "\n0\n"),  # not the root of the empty tree
    "log.example\n7\nAAAA\n",
    "log.example\n7\n????\n",
)
def test_malformed(text):
    vocabulary.refused(IdentityError, "ST-IDEN-040", parse_text, text)
    assert parse_text(HEAD.text) == HEAD  # the control


ROOT = PrivateKey.generate()


def trust(without=(), **changes) -> TrustRoot:
    roles = {TrustRole.LOG: [LOG.public], TrustRole.WITNESS: [key.public for key in WITNESSES]}
    data = sign_root(roles, ROOT, NOW, NOW + timedelta(days=1))
    document = TrustRoot.parse(data, NOW).document
    document = msgspec.structs.replace(document, log_origin="log.example")
    named = {
        **document.roles,
        TrustRole.WITNESS: msgspec.structs.replace(document.roles[TrustRole.WITNESS], threshold=2),
    }
    named = {role: keys for role, keys in named.items() if role not in without}
    changed = msgspec.structs.replace(document, roles=named, **changes)
    return TrustRoot.parse(sign_document(changed, [ROOT]), NOW)


def test_a_trust_root_says_which_log_counts():
    assert LogPolicy.from_trust_root(trust()) == POLICY


def test_a_trust_root_that_names_no_log_or_no_witnesses():
    for changes, code in (
        ({"log_origin": ""}, "ST-IDEN-040"),
        ({"without": [TrustRole.LOG]}, "ST-IDEN-040"),
        ({"without": [TrustRole.WITNESS]}, "ST-IDEN-044"),
    ):
        vocabulary.refused(IdentityError, code, LogPolicy.from_trust_root, trust(**changes))


@pytest.mark.forgery
def test_a_cosignature_of_a_time_that_no_clock_has():
    """In seconds it is a number like any other; it is the year 142 million."""
    line = note.cosign(HEAD.text, "w0", WITNESSES[0], 1 << 52)
    found = refused("ST-IDEN-040", sign(HEAD, LOG).with_lines((line,)).encode())
    assert found.what == f"a cosignature of time {1 << 52}"


def test_an_age_without_a_quorum_is_a_refusal():
    """Nobody says how old it is."""
    policy = replace(POLICY, quorum=0, max_age=timedelta(hours=1))
    refused("ST-IDEN-047", cosigned(*WITNESSES), policy)
