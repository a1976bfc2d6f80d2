# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What nodes show each other through the coordinator, which neither opens nor believes it."""

import threading

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.wire.membership import Membership, gather
from securetrain.rendezvous.wire.protocol import (
    FLOOR_LIMIT,
    MAX_FLOORS,
    MAX_SHOWN,
    PROTOCOL,
    Ready,
    decode_message,
    encode_frame,
)
from tests.tables import items
from tests.vocabulary import refused


def told(membership: Membership) -> list[tuple[str, bytes]]:
    return [(shown.node, shown.floor) for shown in membership.floors]


def rounds(job, shown, **settings):
    """One round of nodes that show these floors; each member's membership."""
    found = {}

    def take_part(member, node):
        found[node] = member.next_round(lambda _: 4711).membership

    members = {node: job.join(node, floors=lambda f=f: f) for node, f in shown.items()}
    threads = [threading.Thread(target=take_part, args=(m, n)) for n, m in members.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[node] for node in shown]


def test_every_member_is_told_what_every_member_showed(job):
    job.start(min_nodes=2, max_nodes=2)
    one, two = rounds(job, {"node-0": (b"seen 7",), "node-1": (b"seen 9", b"seen 7")})
    assert one == two
    assert told(one) == [("node-0", b"seen 7"), ("node-1", b"seen 9")]
    (formed,) = [event for event in job.events() if event.event == "round-formed"]
    assert formed.details["floors"] == 2


def test_who_has_seen_nothing_shows_nothing(job):
    job.start(min_nodes=1, max_nodes=1)
    (only,) = rounds(job, {"node-0": ()})
    assert only.floors == ()


def test_what_is_shown_is_asked_anew_for_every_round(job):
    job.start(min_nodes=1, max_nodes=1)
    newest = [b"seen 1"]
    member = job.join("node-0", floors=lambda: tuple(newest))
    assert told(member.next_round(lambda _: 1).membership) == [("node-0", b"seen 1")]
    newest[:] = [b"seen 2"]
    assert told(member.next_round(lambda _: 1).membership) == [("node-0", b"seen 2")]


@items(
    "id, floors",
    ("too many", (b"x",) * (MAX_FLOORS + 1)),
    ("too large", (b"x" * (FLOOR_LIMIT + 1),)),
    ("empty", (b"",)),
)
def test_a_node_that_shows_more_than_it_may_is_out(job, tools, floors):
    """The control is the same node within the bounds."""
    largest = (b"x" * FLOOR_LIMIT,) * MAX_FLOORS
    assert decode_message(encode_frame(Ready(floors=largest))[4:]) == Ready(floors=largest)
    job.start(min_nodes=1, max_nodes=1)
    member = job.join("node-0", floors=lambda: floors)
    refused(AdmissionError, "ST-ADMN-001", member.next_round, lambda _: 1, tools.PATIENCE)
    job.expect("ST-ADMN-001", "node-evicted")


def test_a_ready_of_the_protocol_before_is_refused():
    """Without a word about floors: such a node is refused before that, by ALPN and Hello."""
    refused(AdmissionError, "ST-ADMN-001", decode_message, b'{"type":"ready"}')
    assert PROTOCOL == "securetrain-rdzv/6"


# Which are handed on.


def test_each_floor_once_with_the_first_node_that_showed_it():
    found = gather({"b": (b"1", b"2"), "a": (b"2", b"1"), "c": (b"3",), "d": ()})
    assert [(shown.node, shown.floor) for shown in found] == [
        ("b", b"1"),
        ("a", b"2"),
        ("c", b"3"),
    ]


def test_what_most_nodes_showed_comes_before_a_crowd_of_lies():
    shown: dict[str, tuple[bytes, ...]] = {f"honest-{n}": (b"newest",) for n in range(2)}
    shown |= {f"liar-{n:02}": tuple(b"%d-%d" % (n, k) for k in range(4)) for n in range(99)}
    found = gather(shown)
    assert len(found) == MAX_SHOWN
    assert found[0].floor == b"newest"


def test_no_node_pushes_out_anothers_first_word_with_its_second():
    """Nor do two that agree on theirs."""
    shown: dict[str, tuple[bytes, ...]] = {"honest": (b"newest",)}
    for n in range(62):
        shown[f"liar-{n:02}"] = (b"%d" % n, *(b"%d-%d" % (n // 2, k) for k in range(3)))
    found = [one.floor for one in gather(shown)]
    assert len(found) == MAX_SHOWN
    assert b"newest" in found


def test_repeating_it_does_not_make_a_lie_more_common():
    found = gather({"liar": (b"lie", b"lie", b"lie"), "a": (b"newest",), "b": (b"newest",)})
    assert [one.floor for one in found] == [b"newest", b"lie"]
