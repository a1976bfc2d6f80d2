# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network.addresses import address
from securetrain.network.epoch import resolve
from securetrain.network.wireguard import Endpoint
from tests.tables import items
from tests.vocabulary import refused


def meaning(job, members, own="node-0"):
    return resolve("job-1", own, job.keys[own].public, members)


def test_an_epoch_for_one_node(job):
    members = job.members("node-0")
    epoch = meaning(job, members)
    assert epoch.address == address("job-1", 0)
    assert epoch.hosts == {f"node-{n}": address("job-1", n) for n in range(3)}
    assert [peer.public_key for peer in epoch.peers] == [
        job.keys[node].public for node in ("node-1", "node-2")
    ]
    assert epoch.peers[0].address == address("job-1", 1)
    assert epoch.peers[0].endpoint == job.endpoints["node-1"]
    assert epoch.peers[0].preshared_key == members[1].preshared_key
    assert members[0].preshared_key == b""


def test_both_ends_of_an_epoch_agree(job):
    here, there = meaning(job, job.members("node-0")), meaning(job, job.members("node-1"), "node-1")
    assert here.peers[0].preshared_key == there.peers[0].preshared_key
    assert here.peers[0].address == there.address


def test_a_node_alone(job):
    epoch = meaning(job, job.members("node-0", ["node-0"]))
    assert epoch.peers == ()
    assert list(epoch.hosts) == ["node-0"]


def test_a_subset_keeps_its_slots(job):
    epoch = meaning(job, job.members("node-0", ["node-0", "node-2"]))
    assert [peer.address for peer in epoch.peers] == [address("job-1", 2)]


@items(
    "change, code, says",
    (lambda a, b, c: [a, replace(b, node="node-2"), c], "ST-NETW-018", "one node"),
    (lambda a, b, c: [a, replace(b, node="node-0"), c], "ST-NETW-018", "one node"),
    (
        lambda a, b, c: [a, replace(b, public_key=c.public_key), c],
        "ST-NETW-018",
        "one public key",
    ),
    (
        lambda a, b, c: [a, replace(b, public_key=a.public_key), c],
        "ST-NETW-018",
        "one public key",
    ),
    (lambda a, b, c: [a, replace(b, slot=2), c], "ST-NETW-018", "one slot"),
    (lambda a, b, c: [a, replace(b, endpoint=c.endpoint), c], "ST-NETW-018", "one endpoint"),
    (lambda a, b, c: [a, replace(b, slot=4094), c], "ST-NETW-018", "slot 4094"),
    (lambda a, b, c: [a, replace(b, slot=-1), c], "ST-NETW-018", "slot -1"),
    (lambda a, b, c: [b, c], "ST-NETW-018", "node-0 is not in it"),
    (lambda a, b, c: [], "ST-NETW-018", "node-0 is not in it"),
    (
        lambda a, b, c: [replace(a, public_key=bytes([9] * 32)), b, c],
        "ST-NETW-018",
        "announced",
    ),
    (lambda a, b, c: [a, replace(b, public_key=b"x"), c], "ST-NETW-017", "key"),
    (lambda a, b, c: [a, replace(b, public_key=bytes(32)), c], "ST-NETW-017", "key"),
    (lambda a, b, c: [a, replace(b, preshared_key=b""), c], "ST-NETW-017", "key"),
    (lambda a, b, c: [a, replace(b, preshared_key=bytes(32)), c], "ST-NETW-017", "key"),
    (lambda a, b, c: [a, replace(b, preshared_key=bytes([1] * 33)), c], "ST-NETW-017", "key"),
)
def test_members_that_contradict_each_other(job, change, code, says):
    refused(NetworkError, code, meaning, job, change(*job.members("node-0")), says=says)


def test_the_refusal_names_the_node(job):
    a, b, c = job.members("node-0")
    with pytest.raises(NetworkError) as error:
        meaning(job, [a, b, replace(c, preshared_key=b"")])
    assert "node-2" in error.value.where


def test_endpoints_of_both_families_are_told_apart(job):
    a, b, c = job.members("node-0")
    found = meaning(job, [a, replace(b, endpoint=Endpoint.parse("[2001:db8::2]:51820")), c])
    assert found.peers[0].endpoint.address.version == 6
