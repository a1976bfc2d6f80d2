# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What nodes say of their tunnels and what they get; the network itself is a recording."""

from contextlib import contextmanager
from ipaddress import ip_address
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.structs import replace

from securetrain.core.errors import NetworkError, SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.identity.keys import PrivateKey
from securetrain.network.addresses import address
from securetrain.network.epoch import resolve
from securetrain.network.wireguard import WireGuardKey, decode_key, encode_key, pairwise_psk
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import Network
from securetrain.rendezvous.wire.protocol import PROTOCOL, Formed, Hello
from securetrain.rendezvous.wire.tunnel import (
    Tunnel,
    announce,
    check_hello,
    pair_keys,
    require_alike,
    store_host,
)
from tests.rendezvous.worlds import entry, membership_of
from tests.tables import each
from tests.vocabulary import refused

KEYS = [encode_key(WireGuardKey.generate().public) for _ in range(3)]
BASELINE = Network(require=(NetworkProfile.LOOPBACK, NetworkProfile.OVERLAY))
HARDENED = Network(require=(NetworkProfile.OVERLAY,))


def hello(number=0, **changes):
    fields = {
        "protocol": PROTOCOL,
        "job": "job-1",
        "node": f"node-{number}",
        "address": "192.0.2.1",
        "wireguard": KEYS[number],
        "wireguard_port": 5000 + number,
        "network": NetworkProfile.OVERLAY,
    }
    return Hello(**{**fields, **changes})


NONE = {"wireguard": "", "wireguard_port": 0}
BARE = {**NONE, "network": None}


def membership(num_members=3, **changes):
    entries = [
        entry(
            n, address="192.0.2.1", **{"wireguard": KEYS[n], "wireguard_port": 5000 + n, **changes}
        )
        for n in range(num_members)
    ]
    return membership_of(*entries, epoch=4, round=1)


class Recorded:
    """An overlay that checks what it is told as the real one does, and builds nothing."""

    def __init__(self, node="node-0", job="job-1") -> None:
        self.plan = SimpleNamespace(key=WireGuardKey.generate(), node=node, job=job)
        self.port = 5000
        self.epochs: list[Any] = []
        self.inside = 0
        self.num_clears = 0
        self.namespace = SimpleNamespace(entered=self._entered)

    def apply(self, epoch, members):
        plan = self.plan
        self.epochs.append((epoch, resolve(plan.job, plan.node, plan.key.public, members)))

    def clear(self):
        self.num_clears += 1

    @contextmanager
    def _entered(self):
        self.inside += 1
        yield


@each(
    "name, changes",
    ("a port without a key", {"wireguard": ""}),
    ("a key without a port", {"wireguard_port": 0}),
    ("the key of nobody", {"wireguard": "A" * 43 + "="}),
    ("no key", {"wireguard": "x"}),
    ("for no profile", {"network": None}),
    ("for a profile without one", {"network": NetworkProfile.LOOPBACK}),
    ("a profile without its tunnel", {**NONE}),
    ("everybody's address", {"address": "0.0.0.0"}),
    ("a group's address", {"address": "224.0.0.1"}),
)
def test_what_is_no_tunnel_is_refused(name, changes):
    refused(SecureTrainError, "ST-ADMN-001", check_hello, hello(**changes))


def test_a_tunnel_and_none_are_accepted():
    check_hello(hello())
    check_hello(hello(**BARE))
    require_alike(hello(**BARE), [hello(1, **BARE)], BASELINE)
    require_alike(hello(), [hello(1), hello(2)], HARDENED)


@each(
    "name, said, others, network, code",
    ("overlay only", hello(**BARE), [], HARDENED, "ST-NETW-001"),
    ("the others have", hello(**BARE), [hello(1)], BASELINE, "ST-NETW-001"),
    ("the others have none", hello(), [hello(1, **BARE)], BASELINE, "ST-NETW-001"),
    ("another's endpoint", hello(), [hello(1, wireguard_port=5000)], BASELINE, "ST-ADMN-001"),
    (
        "a profile that the policy does not name",
        hello(network=NetworkProfile.RDMA_TRUSTED),
        [],
        HARDENED,
        "ST-NETW-001",
    ),
    (
        "another profile than the others'",
        hello(network=NetworkProfile.NCCL_TLS),
        [hello(1)],
        Network(require=(NetworkProfile.NCCL_TLS, NetworkProfile.OVERLAY)),
        "ST-NETW-001",
    ),
)
def test_all_or_none(name, said, others, network, code):
    refused(SecureTrainError, code, require_alike, said, others, network)


def test_each_member_gets_its_own_pairs_and_no_others():
    secret = bytes(range(1, 33))
    drawn = pair_keys(membership(), secret)
    assert {node: set(keys) for node, keys in drawn.items()} == {
        "node-0": {"node-1", "node-2"},
        "node-1": {"node-0", "node-2"},
        "node-2": {"node-0", "node-1"},
    }
    expected = pairwise_psk(secret, decode_key(KEYS[0]), decode_key(KEYS[1]))
    assert drawn["node-0"]["node-1"] == drawn["node-1"]["node-0"] == encode_key(expected)
    assert len({key for keys in drawn.values() for key in keys.values()}) == 3
    assert pair_keys(membership(**NONE), secret) == {}


def test_all_members_get_nccls_key_and_it_is_none_of_the_pairs():
    signer, secret = PrivateKey.generate(), bytes(range(1, 33))
    formed = dict(announce(membership(), signer, lambda size: secret[:size]))
    (nccl,) = {message.nccl for message in formed.values()}
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"nccl")
    assert decode_key(nccl) == hkdf.derive(secret)
    assert nccl not in {key for message in formed.values() for key in message.preshared.values()}
    bare = dict(announce(membership(**NONE), signer, lambda size: secret[:size]))
    assert {message.nccl for message in bare.values()} == {""}


def test_pre_shared_keys_are_not_shown():
    formed = Formed(membership="m", preshared={"node-1": KEYS[1]}, nccl=KEYS[2])
    assert KEYS[1] not in repr(formed)
    assert KEYS[2] not in repr(formed)
    assert KEYS[1] not in f"{formed}"


def test_where_the_store_is():
    assert store_host(membership()) == str(address("job-1", 0))
    assert store_host(membership(**NONE)) == "192.0.2.1"


def test_an_epoch_is_handed_to_the_network():
    overlay: Any = Recorded()
    seen: list[Any] = []
    tunnel = Tunnel(
        overlay=overlay,
        endpoint=ip_address("192.0.2.1"),
        applied=lambda *what: seen.append(what),
    )
    assert tunnel.key == encode_key(overlay.plan.key.public)
    given = membership(2)
    own = replace(given.members[0], wireguard=tunnel.key)
    given = replace(given, members=(own, given.members[1]))
    tunnel.apply(given, pair_keys(given, bytes([7]) * 32)["node-0"], KEYS[2])
    ((epoch, applied),) = overlay.epochs
    assert epoch == 4
    assert applied.address == address("job-1", 0)
    (peer,) = applied.peers
    assert encode_key(peer.public_key) == KEYS[1]
    assert str(peer.endpoint) == "192.0.2.1:5001"
    assert seen == [(given, KEYS[2])]


def test_a_pair_without_a_key_is_refused():
    overlay: Any = Recorded()
    given = membership(2)
    own = replace(given.members[0], wireguard=encode_key(overlay.plan.key.public))
    given = replace(given, members=(own, given.members[1]))
    with pytest.raises(NetworkError) as error:
        Tunnel(overlay=overlay, endpoint=ip_address("192.0.2.1")).apply(given, {})
    assert error.value.code == "ST-NETW-017"
    assert overlay.epochs == []


def overlay_policy(tools, *require):
    policy = tools.make_policy().policy
    network = replace(policy.network, require=require)
    return LoadedPolicy(policy=replace(policy, network=network), digest="0" * 64)


def joined(job, node, **changes):
    overlay: Any = Recorded(node, job.name)
    overlay.port = 5000 + int(node[-1])
    return overlay, job.join(node, tunnel=Tunnel(overlay=overlay, endpoint=ip_address("127.0.0.1")))


def test_members_apply_the_epoch_before_the_store(job, tools):
    job.start(2, 2, policy=overlay_policy(tools, NetworkProfile.OVERLAY))
    first, one = joined(job, "node-0")
    second, two = joined(job, "node-1")
    rounds = {}

    def run(member, overlay):
        def open_store(_membership):
            assert overlay.epochs, "the epoch comes before the store"
            assert overlay.num_clears == 1, "the epoch before is over"
            return 4711

        rounds[overlay.plan.node] = member.next_round(open_store)

    threads = [Thread(target=run, args=pair) for pair in ((one, first), (two, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {found.host for found in rounds.values()} == {str(address(job.name, 0))}
    (ours,), (theirs,) = (applied.peers for _, applied in (*first.epochs, *second.epochs))
    assert ours.preshared_key == theirs.preshared_key
    assert ours.address == address(job.name, 1)
    assert encode_key(ours.preshared_key) not in job.ledger.path.read_text()
    assert encode_key(ours.preshared_key) not in job.coordinator.membership.__repr__()


def test_a_node_without_a_tunnel_is_not_admitted_where_one_is_needed(job, tools):
    job.start(1, 1, policy=overlay_policy(tools, NetworkProfile.OVERLAY))
    refused(NetworkError, "ST-NETW-001", job.join)
    job.expect("ST-NETW-001", "node-refused")


def test_a_store_on_the_underlay_is_refused(job, tools, monkeypatch):
    job.start(1, 1, policy=overlay_policy(tools, NetworkProfile.OVERLAY))
    _, member = joined(job, "node-0")
    monkeypatch.setattr("securetrain.rendezvous.member.client.store_host", lambda _: "127.0.0.1")
    with pytest.raises(SecureTrainError):
        member.next_round(lambda _: 4711)
    job.expect("ST-ADMN-001")
