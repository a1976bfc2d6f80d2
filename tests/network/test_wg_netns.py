# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The real ``wg``, as the kernel's engine uses it, on a device of wireguard-go.

``wg`` speaks to both in the same words but for the last step, so that what it makes of our
configurations, and what it prints, is seen without the kernel's module.
"""

from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

import pytest

from securetrain.network.engines import missing_here
from securetrain.network.namespace import Namespace
from securetrain.network.system_tools import missing_programs, run_command
from securetrain.network.wireguard import (
    Endpoint,
    Peer,
    WireGuardKey,
    encode_key,
    require_state,
)
from securetrain.network.wireguard_go import WireGuardGo
from securetrain.network.wireguard_kernel import KernelDevice
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    needs(missing_here, WireGuardGo().missing, partial(missing_programs, ["wg"])),
]

DEVICE = "stwgtest0"
KEY = WireGuardKey.generate()
PEERS = [
    Peer(
        public_key=WireGuardKey.generate().public,
        preshared_key=bytes([number] * 32),
        endpoint=Endpoint.parse(f"192.0.2.{number}:51820"),
        address=IPv4Address(f"100.64.0.{number}"),
    )
    for number in (1, 2, 3)
]


@dataclass(frozen=True, slots=True)
class EngineMounts(Namespace):
    """Where the engine's socket is seen."""

    pid: int = 0

    def execute(self, *argv, data=b""):
        return run_command(
            ["nsenter", f"--target={self.pid}", "--mount", "--net", "--", *argv], data=data
        )


@pytest.fixture
def device(tmp_path):
    space = Namespace(f"st-wg-{tmp_path.name[-20:]}")
    space.create()
    try:
        engine = WireGuardGo().start(space, DEVICE, tmp_path)
        try:
            engine.wait_ready()
            made = KernelDevice(EngineMounts(pid=engine.child.pid), DEVICE)
            made.set_key(KEY, 0)
            space.ip("link", "set", "dev", DEVICE, "up")
            yield made
        finally:
            engine.close()
    finally:
        space.remove()


def test_peers_come_change_and_go(device):
    port = device.wait_port()
    require_state(device.read(), KEY, ())
    for peers in (PEERS[:2], PEERS[1:], PEERS, PEERS[:1], (), PEERS[2:]):
        device.set_peers(peers)
        require_state(device.read(), KEY, peers)
        assert device.read().port == port, "the port that it chose stays"


def test_the_pre_shared_key_and_address_of_a_peer_that_stays_change(device):
    device.set_peers(PEERS)
    changed = [
        Peer(
            public_key=peer.public_key,
            preshared_key=bytes([9] * 32),
            endpoint=Endpoint.parse("[2001:db8::1]:7"),
            address=IPv4Address("100.64.1.9"),
        )
        for peer in PEERS[:1]
    ]
    device.set_peers(changed)
    require_state(device.read(), KEY, changed)
    (held,) = device.read().peers
    assert held.endpoint == changed[0].endpoint


def test_what_others_configure_is_seen_and_undone(device):
    device.set_peers(PEERS[:1])
    stranger = WireGuardKey.generate()
    text = f"[Peer]\nPublicKey = {encode_key(stranger.public)}\nAllowedIPs = 0.0.0.0/0\n"
    device.place.execute("wg", "addconf", DEVICE, "/dev/stdin", data=text.encode())
    assert stranger.public in [peer.public_key for peer in device.read().peers]
    device.set_peers(PEERS[:1])
    require_state(device.read(), KEY, PEERS[:1])
