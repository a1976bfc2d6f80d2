# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Each thing that a member checks, changed by an attacker; the first test is the control."""

import base64
from dataclasses import replace
from datetime import timedelta

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.dsse import sign
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.wire.membership import (
    PAYLOAD_TYPE,
    Evicted,
    Expected,
    Shown,
    sign_membership,
    verify_membership,
    verify_staffed,
)
from securetrain.rendezvous.wire.protocol import FLOOR_LIMIT, MAX_SHOWN
from tests import vocabulary
from tests.rendezvous.worlds import entry, membership_of
from tests.tables import each

KEY = PrivateKey.generate(KeyKind.P256)
COORDINATOR = "spiffe://securetrain.local/job/job-1/coordinator"


def member(rank, **changes):
    said = {"local_world": 8, "wireguard": f"{rank}" * 43 + "=", "wireguard_port": 51820}
    return entry(rank, **{**said, **changes})


MEMBERSHIP = membership_of(member(0), member(1), epoch=5, round=2)
EXPECTED = Expected(
    job="job-1",
    coordinator=COORDINATOR,
    key=KEY.public,
    policy="a" * 64,
    epoch=4,
    node="node-1",
    certificate=f"{2:064x}",
    results={f"{101:064x}": NodeTier.SELF_ASSERTED},
    address="127.0.0.1",
    local_world=8,
    wireguard="1" * 43 + "=",
    wireguard_port=51820,
)


def evicted(**changes):
    fields = {
        "node": "node-7",
        "code": "ST-ATTS-007",
        "last_good": MEMBERSHIP.issued,
        "epoch": 4,
        "led": False,
    }
    return Evicted(**{**fields, **changes})


def changed(**changes):
    return msgspec.structs.replace(MEMBERSHIP, **changes)


def with_member(rank, **changes):
    members = list(MEMBERSHIP.members)
    members[rank] = member(rank, **changes)
    return changed(members=tuple(members))


def refused(envelope, code, expected=EXPECTED):
    vocabulary.refused(AdmissionError, code, verify_membership, envelope, expected)


def test_an_honest_membership():
    assert verify_membership(sign_membership(MEMBERSHIP, KEY), EXPECTED) == MEMBERSHIP
    after = changed(evicted=(evicted(),))
    assert verify_membership(sign_membership(after, KEY), EXPECTED) == after


def test_what_nodes_showed_is_bounded():
    def shown(count, size):
        floors = tuple(Shown(node="node-7", floor=bytes([n]) * size) for n in range(count))
        return sign_membership(changed(floors=floors), KEY)

    found = verify_membership(shown(MAX_SHOWN, FLOOR_LIMIT), EXPECTED)
    assert len(found.floors) == MAX_SHOWN
    refused(shown(MAX_SHOWN + 1, 1), "ST-ADMN-006")
    refused(shown(1, FLOOR_LIMIT + 1), "ST-ADMN-006")
    refused(shown(1, 0), "ST-ADMN-006")


def test_the_epoch_never_goes_back():
    for epoch in (5, 6, 1000):
        refused(sign_membership(MEMBERSHIP, KEY), "ST-ADMN-006", replace(EXPECTED, epoch=epoch))


@each(
    "name, membership",
    ("other job", changed(job="job-2")),
    ("other policy", changed(policy="b" * 64)),
    ("coordinator", changed(coordinator=COORDINATOR.replace("job-1", "job-2"))),
    ("order", changed(members=(member(1), member(0)))),
    ("rank twice", changed(members=(member(0), member(0), member(1)))),
    ("rank missing", changed(members=(member(1),))),
    ("name twice", with_member(0, node="node-1")),
    ("key twice", with_member(0, certificate=f"{2:064x}")),
    ("WireGuard key twice", with_member(0, wireguard="1" * 43 + "=")),
    ("no address", with_member(0, address="192..2.1")),
    ("a member without a WireGuard key", with_member(0, wireguard="")),
    ("evicted from this epoch", changed(evicted=(evicted(epoch=5),))),
    (
        "believed until after it was evicted",
        changed(evicted=(evicted(last_good=MEMBERSHIP.issued + timedelta(seconds=1)),)),
    ),
    ("evicted with no code", changed(evicted=(evicted(code="a whim"),))),
    ("too many evictions", changed(evicted=(evicted(),) * 257)),
)
def test_a_signed_membership_that_makes_no_sense(name, membership):
    refused(sign_membership(membership, KEY), "ST-ADMN-006")


@each(
    "name, membership",
    ("not in it", changed(members=(member(0),))),
    ("certificate", with_member(1, certificate="c" * 64)),
    ("result", with_member(1, result="c" * 64)),
    ("tier", with_member(1, tier=NodeTier.TPM)),
    ("address", with_member(1, address="192.0.2.1")),
    ("local world", with_member(1, local_world=9)),
    ("WireGuard key", with_member(1, wireguard="2" * 43 + "=")),
    ("WireGuard port", with_member(1, wireguard_port=51821)),
)
def test_an_own_entry_that_is_not_what_was_sent(name, membership):
    refused(sign_membership(membership, KEY), "ST-ADMN-009")


def test_a_result_of_the_lease_before_is_still_ones_own():
    older = replace(EXPECTED, results={**EXPECTED.results, f"{7:064x}": NodeTier.SELF_ASSERTED})
    envelope = sign_membership(with_member(1, result=f"{7:064x}"), KEY)
    assert verify_membership(envelope, older).epoch == 5
    refused(envelope, "ST-ADMN-009")


def test_signed_by_somebody_else():
    refused(sign_membership(MEMBERSHIP, PrivateKey.generate(KeyKind.P256)), "ST-ADMN-006")


def test_every_byte_counts():
    envelope = sign_membership(MEMBERSHIP, KEY)
    fields = canonical.loads(envelope.encode())
    payload = base64.b64decode(fields["payload"])
    tampered = payload.replace(b'"address":"127.0.0.1"', b'"address":"192.0.2.1"', 1)
    assert tampered != payload
    fields["payload"] = base64.b64encode(tampered).decode()
    refused(canonical.dumps(fields).decode(), "ST-ADMN-006")


def test_not_an_envelope():
    for envelope in ("", "{}", "[]", "\ud7ff", '{"payload":""}'):
        refused(envelope, "ST-ADMN-006")


def test_signed_documents_of_other_kinds_are_not_memberships():
    refused(sign(canonical.encode(MEMBERSHIP), "application/json", [KEY]).decode(), "ST-ADMN-006")
    refused(sign(b'{"job":"job-1"}', PAYLOAD_TYPE, [KEY]).decode(), "ST-ADMN-006")


# The membership of an epoch once more, with everybody's workers.

UNSTAFFED = changed(members=(member(0, local_world=0), member(1)))
STAFFED = changed(members=(member(0, local_world=2, role="a"), member(1, role="default")))
SAID = replace(EXPECTED, role="default")


def again(staffed, current=UNSTAFFED, expected=SAID, key=KEY):
    return verify_staffed(sign_membership(staffed, key), current, expected)


def first_with(**said):
    first = member(0, **{"local_world": 2, "role": "a", **said})
    return changed(members=(first, STAFFED.members[1]))


def second_with(**said):
    return changed(members=(STAFFED.members[0], member(1, **said)))


def test_a_membership_that_comes_again_with_everybodys_workers():
    assert again(STAFFED) == STAFFED
    assert STAFFED.is_staffed
    assert not UNSTAFFED.is_staffed


def test_nothing_but_the_workers_that_were_not_known_may_differ():
    for staffed, code in (
        (changed(epoch=6, members=STAFFED.members), "ST-ADMN-006"),
        (changed(round=3, members=STAFFED.members), "ST-ADMN-006"),
        (changed(members=STAFFED.members[:1]), "ST-ADMN-006"),
        (changed(members=(*STAFFED.members, member(2, role="a"))), "ST-ADMN-006"),
        (changed(members=STAFFED.members[::-1]), "ST-ADMN-006"),
        (first_with(role=""), "ST-ADMN-006"),
        (first_with(local_world=0), "ST-ADMN-006"),
        (first_with(address="127.0.0.9"), "ST-ADMN-006"),
        (second_with(local_world=9, role="default"), "ST-ADMN-009"),
        (second_with(role="other"), "ST-ADMN-009"),
    ):
        vocabulary.refused(AdmissionError, code, again, staffed)


def test_what_a_node_has_said_before_is_not_changed_when_it_comes_again():
    current = changed(members=(member(0, local_world=2, role="a"), member(1)))
    assert again(STAFFED, current) == STAFFED
    other = first_with(local_world=3)
    vocabulary.refused(AdmissionError, "more than its workers changed", again, other, current)


def test_a_membership_that_comes_again_is_signed_by_the_coordinator():
    key = PrivateKey.generate(KeyKind.P256)
    vocabulary.refused(AdmissionError, "ST-ADMN-006", again, STAFFED, key=key)
