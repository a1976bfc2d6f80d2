# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every way in which something between two nodes is not encrypted by the card is named."""

from ipaddress import ip_address

import pytest

from securetrain.network import xfrm
from securetrain.network.ipsec import problem
from tests.network.fake_rdma import (
    INDEX,
    OWN,
    PEER,
    attribute,
    dump_of,
    offload,
    policy,
    protected,
    state,
    template,
)
from tests.tables import each

INTO, OUT = offload(inbound=True), offload(inbound=False)
THIRD = ip_address("192.0.2.3")


def judge(states, policies, members=(PEER,)):
    dump = dump_of(states, policies)
    return problem(OWN, members, INDEX, xfrm.states(dump), xfrm.policies(dump))


def test_all_is_encrypted():
    assert judge(*protected()) == ""


def test_a_policy_for_a_whole_network_will_do():
    states, _ = protected()
    both = [
        policy("192.0.2.0/24", "192.0.2.0/24", 1, OUT),
        policy("192.0.2.0/24", "192.0.2.0/24", 0, INTO),
    ]
    assert judge(states, both) == ""


def test_what_else_is_blocked_does_no_harm():
    states, policies = protected()
    assert judge(states, [policy(f"{OWN}", f"{PEER}", 1, action=1), *policies]) == ""


@each("source, destination", (THIRD, PEER), (OWN, THIRD))
def test_what_passes_between_others_does_no_harm(source, destination):
    states, policies = protected()
    clear = policy(f"{source}", f"{destination}", 1, templates=[])
    assert judge(states, [clear, *policies]) == ""


def test_without_members_nothing_is_missing():
    assert judge([], [], ()) == ""


def test_every_member_counts():
    states, policies = protected()
    said = judge(states, policies, (PEER, THIRD))
    assert f"{OWN} to {THIRD}: no fully offloaded policy" in said
    assert f"{THIRD} to {OWN}: no fully offloaded security association" in said
    assert f"{PEER}" not in said


@each("number", 0, 1)
def test_both_directions_need_a_state_and_a_policy(number):
    states, policies = protected()
    assert "no fully offloaded security association" in judge(
        [s for n, s in enumerate(states) if n != number], policies
    )
    said = judge(states, [p for n, p in enumerate(policies) if n != number])
    assert "no fully offloaded policy" in said
    assert "security association" not in said, "what is there is not missed"


@each(
    "name, wrong",
    ("in software", state(OWN, PEER)),
    ("crypto offload only", state(OWN, PEER, offload(inbound=False, full=False))),
    ("another interface", state(OWN, PEER, offload(8, inbound=False))),
    ("the other direction", state(OWN, PEER, INTO)),
    ("not an AEAD", state(OWN, PEER, OUT, cipher="")),
    ("GMAC: in the clear", state(OWN, PEER, OUT, cipher="rfc4543(gcm(aes))")),
    ("with a mark", state(OWN, PEER, OUT, attribute(21, bytes(8)))),
    ("of an interface", state(OWN, PEER, OUT, attribute(31, bytes(4)))),
    ("AH", state(OWN, PEER, OUT, protocol=51)),
    ("swapped", state(PEER, OWN, OUT)),
)
def test_a_state_that_does_not_encrypt_on_the_card(name, wrong):
    (_, into), policies = protected()
    assert "no fully offloaded security association" in judge([wrong, into], policies)


@each(
    "name, wrong",
    ("in software", policy(f"{OWN}", f"{PEER}", 1)),
    ("not full", policy(f"{OWN}", f"{PEER}", 1, offload(inbound=False, full=False))),
    ("elsewhere", policy(f"{OWN}", f"{PEER}", 1, offload(8, inbound=False))),
    ("lets it pass", policy(f"{OWN}", f"{PEER}", 1, OUT, templates=[])),
    ("use", policy(f"{OWN}", f"{PEER}", 1, OUT, templates=[template(optional=True)])),
    ("AH", policy(f"{OWN}", f"{PEER}", 1, OUT, templates=[template(51)])),
    (
        "to another end",
        policy(f"{OWN}", f"{PEER}", 1, OUT, templates=[template(destination=THIRD)]),
    ),
    (
        "from another end",
        policy(f"{OWN}", f"{PEER}", 1, OUT, templates=[template(source=THIRD)]),
    ),
    ("UDP in the clear", policy(f"{OWN}", f"{PEER}", 1, templates=[], protocol=17)),
    ("all in the clear", policy("0.0.0.0/0", "0.0.0.0/0", 1, templates=[])),
)
def test_a_policy_that_could_come_first(name, wrong):
    states, policies = protected()
    assert "lets it pass, or leaves it to software" in judge(states, [wrong, *policies])


@pytest.mark.parametrize("narrow", [21, 31], ids=["a mark", "an interface"])
def test_a_policy_for_some_packets_is_not_for_all(narrow):
    states, (_, into) = protected()
    partial = policy(f"{OWN}", f"{PEER}", 1, OUT, attribute(narrow, bytes(8)))
    assert "no fully offloaded policy" in judge(states, [partial, into])


def test_a_policy_uses_the_state_that_it_names():
    states, (_, into) = protected()
    named = [template(source=OWN, destination=PEER, reqid=1)]
    assert judge(states, [policy(f"{OWN}", f"{PEER}", 1, OUT, templates=named), into]) == ""
    other = policy(f"{OWN}", f"{PEER}", 1, OUT, templates=[template(reqid=2)])
    assert "no fully offloaded security association" in judge(states, [other, into])


def test_a_policy_for_one_protocol_is_not_for_all():
    states, (_, into) = protected()
    partial = policy(f"{OWN}", f"{PEER}", 1, OUT, protocol=17)
    assert "no fully offloaded policy" in judge(states, [partial, into])
    blocked = policy(f"{OWN}", f"{PEER}", 1, OUT, action=1)
    assert "no fully offloaded policy" in judge(states, [blocked, into])
    forwarded = policy(f"{OWN}", f"{PEER}", 2, OUT)
    assert "no fully offloaded policy" in judge(states, [forwarded, into])
