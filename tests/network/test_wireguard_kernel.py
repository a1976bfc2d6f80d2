# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import NetworkError
from securetrain.network import wireguard_kernel as module
from securetrain.network.namespace import Namespace
from securetrain.network.system_tools import command_failed
from securetrain.network.wireguard import (
    DeviceState,
    Endpoint,
    Peer,
    PeerState,
    WireGuardKey,
    encode_key,
)
from securetrain.network.wireguard_kernel import KernelWireGuard, configuration, parse_dump
from tests.tables import items
from tests.vocabulary import refused

# Fixed, since ids of tests hold it.
KEY = WireGuardKey(X25519PrivateKey.from_private_bytes(bytes(range(32))))
PRIVATE, PUBLIC = encode_key(KEY.secret()), encode_key(KEY.public)
A, B, PSK = bytes([1] * 32), bytes([2] * 32), bytes([3] * 32)
PEER = Peer(
    public_key=A,
    preshared_key=PSK,
    endpoint=Endpoint.parse("192.0.2.2:51820"),
    address=IPv4Address("100.64.0.2"),
)
ROWS = [
    [PRIVATE, PUBLIC, "51820", "off"],
    [
        *(encode_key(A), encode_key(PSK), "192.0.2.2:51820", "100.64.0.2/32"),
        *("1700000000", "228", "92", "off"),
    ],
    [encode_key(B), "(none)", "(none)", "(none)", "0", "0", "0", "25"],
]


def dump(rows=None):
    return "".join("\t".join(row) + "\n" for row in (rows or ROWS)).encode()


def test_a_dump_is_read():
    assert parse_dump(dump()) == DeviceState(
        private_key=KEY.secret(),
        port=51820,
        peers=(
            PeerState(
                public_key=A,
                preshared_key=PSK,
                endpoint=Endpoint.parse("192.0.2.2:51820"),
                allowed=(IPv4Network("100.64.0.2/32"),),
                last_handshake=1700000000,
                received=228,
                sent=92,
            ),
            PeerState(public_key=B),
        ),
    )
    assert parse_dump(dump([["(none)", "(none)", "0", "off"]])) == DeviceState()


def changed(row, column, value):
    rows = [list(entry) for entry in ROWS]
    rows[row][column] = value
    return dump(rows)


def test_a_malformed_dump_is_refused():
    for data in (
        b"",
        b"\n",
        b"\xff",
        dump([ROWS[0][:3]]),
        dump([ROWS[0], ROWS[1][:7]]),
        dump([ROWS[0], [*ROWS[1], "x"]]),
        dump([ROWS[0], ROWS[1], ROWS[1]]),
        changed(0, 0, "x"),
        changed(0, 2, "-1"),
        changed(0, 2, ""),
        changed(0, 2, "9" * 5000),
        changed(0, 2, "0" * 21),
        changed(1, 0, "(none)"),
        changed(1, 0, encode_key(bytes(32))),
        changed(1, 1, "x"),
        changed(1, 2, "node-1:1"),
        changed(1, 3, "100.64.0.2/8"),
        changed(1, 3, ""),
        changed(1, 4, "now"),
        changed(1, 5, "1.5"),
        changed(1, 6, "+1"),
    ):
        refused(NetworkError, "ST-NETW-015", parse_dump, data)


def test_a_dump_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", len(dump()) - 1)
    refused(NetworkError, "ST-NETW-015", parse_dump, dump())


@given(st.binary(max_size=200), st.integers(0, len(dump())))
def test_nothing_but_a_refusal_comes_out(noise, at):
    data = dump()
    for case in (noise, data[:at] + noise + data[at:], data[:at]):
        with suppress(NetworkError):
            parse_dump(case)


def test_a_configuration():
    assert configuration(KEY, 7, [PEER]) == (
        f"[Interface]\nPrivateKey = {PRIVATE}\nListenPort = 7\n"
        f"[Peer]\nPublicKey = {encode_key(A)}\nPresharedKey = {encode_key(PSK)}\n"
        "Endpoint = 192.0.2.2:51820\nAllowedIPs = 100.64.0.2/32\n"
    )


class Kernel:
    """Stands in for ``ip`` and ``wg``."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.links = {"stnew"}
        self.port = "51820"
        self.fails = ""

    def __call__(self, argv, *, data=b""):
        self.commands.append(list(argv))
        text = " ".join(argv)
        if self.fails and self.fails in text:
            raise command_failed(text, "Operation not supported")
        if "syncconf" in argv:
            self.config = data.decode()
            assert argv[-1] == "/dev/stdin"
            assert PRIVATE not in text
        if "dump" in argv:
            return dump([[PRIVATE, PUBLIC, self.port, "off"]])
        if "-json" in argv:
            return json.dumps([{"ifname": name} for name in self.links]).encode()
        return b""


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def device(kernel, tmp_path):
    return KernelWireGuard().start(Namespace("", kernel), "stnew", tmp_path)


def test_a_device_is_made_and_told_through_a_pipe(kernel, device):
    assert kernel.commands == [["ip", "link", "add", "dev", "stnew", "type", "wireguard"]]
    device.set_key(KEY, 7)
    assert kernel.config == configuration(KEY, 7, ())
    device.set_peers([PEER])
    assert kernel.config == configuration(KEY, 7, [PEER])
    assert device.read().private_key == KEY.secret()
    assert device.process() is None


def test_the_port_that_the_kernel_chose_is_kept(kernel, device):
    device.set_key(KEY, 0)
    device.set_peers([PEER])
    assert "ListenPort = 51820\n" in kernel.config


def test_it_is_found_where_it_was_moved_to(kernel, device):
    device.set_key(KEY, 7)
    device.moved(Namespace("st-x", kernel), "st0")
    device.set_peers([])
    assert kernel.commands[-1][0] == "nsenter"
    assert kernel.commands[-1][-2:] == ["st0", "/dev/stdin"]


def test_the_port(kernel, device, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    assert device.wait_port() == 51820
    kernel.port = "0"
    refused(NetworkError, "ST-NETW-013", device.wait_port)


def test_death(kernel, device):
    assert device.failure_reason() == ""
    kernel.links.clear()
    assert "removed" in device.failure_reason()
    kernel.fails = "link show"
    assert device.failure_reason() == "Operation not supported"


@pytest.mark.parametrize("answer", [b"", b"{", b"[1]", b"3", b"null"])
def test_an_answer_that_says_nothing_is_no_life(answer):
    device = module.KernelDevice(Namespace("", lambda *_, **__: answer), "st0")
    assert "does not say" in device.failure_reason()


def test_links_of_other_types_are_listed_as_nothing():
    answer = b'[{},{},{"ifname":"st0"}]'
    device = module.KernelDevice(Namespace("", lambda *_, **__: answer), "st0")
    assert device.failure_reason() == ""


def test_closing_twice(kernel, device):
    device.close()
    kernel.fails = "link delete"
    device.close()


def test_what_is_missing(kernel, monkeypatch):
    monkeypatch.setattr(module, "missing_programs", lambda _: ["the program wg"])
    assert KernelWireGuard().missing() == ["the program wg"]
    monkeypatch.setattr(module, "missing_programs", lambda _: [])
    monkeypatch.setattr(module, "Namespace", lambda: Namespace("", kernel))
    assert KernelWireGuard().missing() == []
    assert kernel.commands[0][:3] == ["ip", "link", "add"]
    assert kernel.commands[1][:3] == ["ip", "link", "delete"]
    kernel.fails = "link add"
    (reason,) = KernelWireGuard().missing()
    assert "Operation not supported" in reason


@items(
    "said, fips, why",
    ("Error: Unknown device type.", "0", "CONFIG_WIREGUARD"),
    ("RTNETLINK answers: Operation not supported", "", "CONFIG_WIREGUARD"),
    ("RTNETLINK answers: Operation not supported", "1", "FIPS"),
    ("RTNETLINK answers: Operation not permitted", "0", "CAP_NET_ADMIN"),
    ("RTNETLINK answers: No buffer space available", "0", "could not be made"),
)
def test_why_the_kernel_has_it_not(tmp_path, said, fips, why):
    def run(argv, *, data=b""):
        raise command_failed(" ".join(argv), said)

    path = tmp_path / "fips_enabled"
    if fips:
        path.write_text(f"{fips}\n")
    (reason,) = module._kernel_problem(Namespace("", run), path)
    assert reason.startswith("WireGuard in the kernel (")
    assert why in reason
    assert said in reason
