# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import socket
import threading
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import NetworkError
from securetrain.network import uapi
from securetrain.network.wireguard import DeviceState, Endpoint, Peer, PeerState, WireGuardKey
from tests import vocabulary
from tests.tables import each, items

# Fixed, since ids of tests hold it.
KEY = WireGuardKey(X25519PrivateKey.from_private_bytes(bytes(range(32))))
A, B, PSK = bytes([1] * 32), bytes([2] * 32), bytes([3] * 32)
HEX = {name: value.hex() for name, value in (("a", A), ("b", B), ("psk", PSK))}
HEX["key"] = KEY.secret().hex()

# As wireguard-go 0.0.20231211 writes it.
ANSWER = """\
private_key={key}
listen_port=51820
fwmark=1
public_key={a}
preshared_key={psk}
protocol_version=1
endpoint=192.0.2.2:51820
last_handshake_time_sec=1700000000
last_handshake_time_nsec=5
tx_bytes=92
rx_bytes=228
persistent_keepalive_interval=0
allowed_ip=100.64.0.2/32
public_key={b}
preshared_key={psk}
protocol_version=1
endpoint=[2001:db8::2]:1
last_handshake_time_sec=0
last_handshake_time_nsec=0
tx_bytes=0
rx_bytes=18446744073709551615
persistent_keepalive_interval=0
allowed_ip=100.64.0.3/32
allowed_ip=2001:db8::/64
errno=0

""".format(**HEX)


def answer(text=ANSWER):
    return text.encode()


def refused(code, data):
    return vocabulary.refused(NetworkError, code, uapi.parse_state, data)


def peer(public_key, last):
    return Peer(
        public_key=public_key,
        preshared_key=PSK,
        endpoint=Endpoint.parse("192.0.2.2:51820"),
        address=IPv4Address(f"100.64.0.{last}"),
    )


def test_a_state_is_read():
    assert uapi.parse_state(answer()) == DeviceState(
        private_key=KEY.secret(),
        port=51820,
        peers=(
            PeerState(
                public_key=A,
                preshared_key=PSK,
                endpoint=Endpoint.parse("192.0.2.2:51820"),
                allowed=(IPv4Network("100.64.0.2/32"),),
                last_handshake=1700000000,
                sent=92,
                received=228,
            ),
            PeerState(
                public_key=B,
                preshared_key=PSK,
                endpoint=Endpoint.parse("[2001:db8::2]:1"),
                allowed=(IPv4Network("100.64.0.3/32"), IPv6Network("2001:db8::/64")),
                received=(1 << 64) - 1,
            ),
        ),
    )


def test_a_new_device_says_almost_nothing():
    assert uapi.parse_state(b"errno=0\n\n") == DeviceState()
    assert uapi.parse_state(b"listen_port=1\nerrno=0\n\n").port == 1


@each(
    "old, new, says",
    ("errno=0\n", "", "no errno"),
    ("errno=0\n\n", "errno=0\n", "without an end"),
    ("errno=0", "errno", "no errno"),
    ("listen_port=51820", "listen_port", "no value"),
    ("listen_port=51820", "listen_port=65536", "below 65536"),
    ("listen_port=51820", "listen_port=-1", "not a number"),
    ("listen_port=51820", "listen_port=\u0661", "not ASCII"),
    ("listen_port=51820", "listen_port=", "not a number"),
    ("listen_port=51820", "listen_port=1_0", "not a number"),
    ("listen_port=51820", "listen_port=" + "0" * 21, "not a number"),
    ("listen_port=51820", "listen_port=1\nlisten_port=1", "stands twice"),
    ("fwmark=1", "fwmark=0x1", "not a number"),
    ("fwmark=1", f"fwmark={1 << 32}", "fwmark is"),
    ("fwmark=1", "new_line=1", "unknown"),
    ("fwmark=1", "allowed_ip=100.64.0.9/32", "unknown or out of place"),
    ("fwmark=1", "endpoint=192.0.2.2:1", "out of place"),
    ("protocol_version=1", "private_key=" + HEX["key"], "out of place"),
    ("protocol_version=1", "protocol_version=x", "not a number"),
    ("tx_bytes=92", "tx_bytes=92\ntx_bytes=93", "stands twice"),
    ("tx_bytes=92", f"tx_bytes={1 << 64}", "tx_bytes is"),
    ("rx_bytes=228", "rx_bytes=", "not a number"),
    ("last_handshake_time_sec=1700000000", "last_handshake_time_sec=x", "not a number"),
    ("endpoint=192.0.2.2:51820", "endpoint=node-1:51820", "endpoint"),
    ("allowed_ip=100.64.0.2/32", "allowed_ip=100.64.0.2/20", "allowed_ip"),
    ("allowed_ip=100.64.0.2/32", "allowed_ip=all", "allowed_ip"),
    (f"public_key={HEX['b']}", f"public_key={HEX['a']}", "a peer stands twice"),
    (f"public_key={HEX['a']}", f"public_key={HEX['a'][:-2]}", "not 32 bytes"),
    (f"public_key={HEX['a']}", f"public_key={HEX['a']}00", "not 32 bytes"),
    (f"public_key={HEX['a']}", "public_key=" + "zz" * 32, "not 32 bytes"),
    (f"public_key={HEX['a']}", "public_key=" + "01 " * 21 + "0", "not 32 bytes"),
    (f"private_key={HEX['key']}", f"private_key={HEX['key'].upper()}A", "not 32 bytes"),
)
def test_a_malformed_state_is_refused(old, new, says):
    assert old in ANSWER
    error = refused("ST-NETW-015", answer(ANSWER.replace(old, new, 1)))
    assert says in error.what


def test_what_is_no_answer_is_refused():
    for data in (b"", b"\n\n", b"errno=0", b"\xff\n\n", b"get=1\n\n"):
        refused("ST-NETW-015", data)


def test_an_errno_is_a_failure():
    assert (
        "errno -22" in refused("ST-NETW-013", answer(ANSWER.replace("errno=0", "errno=-22"))).what
    )


def test_an_answer_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(uapi, "LIMIT", len(answer()) - 1)
    assert "bytes" in refused("ST-NETW-015", answer()).what
    monkeypatch.setattr(uapi, "LIMIT", len(answer()))
    uapi.parse_state(answer())


def test_a_peer_has_few_networks():
    line = "allowed_ip=100.64.0.2/32\n"
    uapi.parse_state(answer(ANSWER.replace(line, line * 16)))
    refused("ST-NETW-015", answer(ANSWER.replace(line, line * 17)))


def test_every_member_of_a_full_subnet_can_be_read():
    block = ANSWER[ANSWER.index("public_key") : ANSWER.index(f"public_key={HEX['b']}")]
    blocks = [block.replace(HEX["a"], f"{n:064x}") for n in range(4094)]
    data = "".join([*blocks, "errno=0\n\n"]).encode()
    assert len(data) < uapi.LIMIT
    assert len(uapi.parse_state(data).peers) == 4094


@given(st.binary(max_size=200), st.integers(0, len(ANSWER)))
def test_nothing_but_a_refusal_comes_out(noise, at):
    data = answer()
    for case in (noise, data[:at] + noise + data[at:], data[:at]):
        with suppress(NetworkError):
            uapi.parse_state(case)


def test_requests():
    assert uapi.encode_device(KEY, 7).decode() == (
        f"set=1\nprivate_key={HEX['key']}\nlisten_port=7\n\n"
    )
    state = uapi.parse_state(answer())
    assert uapi.encode_peers(state, [peer(A, 9)]).decode() == (
        "set=1\n"
        f"public_key={HEX['b']}\nremove=true\n"
        f"public_key={HEX['a']}\npreshared_key={HEX['psk']}\nendpoint=192.0.2.2:51820\n"
        "replace_allowed_ips=true\nallowed_ip=100.64.0.9/32\n\n"
    )
    assert uapi.encode_peers(DeviceState(), []) == b"set=1\n\n"


def test_who_leaves_goes_first():
    request = uapi.encode_peers(uapi.parse_state(answer()), [peer(bytes([9] * 32), 2)]).decode()
    assert request.index("remove=true") < request.index("preshared_key")
    assert request.count("remove=true") == 2


@contextmanager
def engine(path, *parts, close=True):
    """Answers one connection, in these parts."""
    got = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def serve():
            connection, _ = server.accept()
            with connection:
                got.append(connection.recv(1 << 16))
                for part in parts:
                    connection.sendall(part)
                if not close:
                    connection.settimeout(5)
                    connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield got
        thread.join(5)


def test_asking(tmp_path):
    path = tmp_path / "s"
    with engine(path, answer()[:100], answer()[100:], close=False) as got:
        assert uapi.read_device(str(path)) == uapi.parse_state(answer())
    assert got == [b"get=1\n\n"]


def test_telling(tmp_path):
    path = tmp_path / "s"
    with engine(path, b"errno=0\n\n") as got:
        uapi.write_device(str(path), uapi.encode_device(KEY, 1))
    assert got == [uapi.encode_device(KEY, 1)]


@items(
    "reply, code",
    (b"errno=-22\n\n", "ST-NETW-013"),
    (b"errno=0\n", "ST-NETW-013"),
    (b"", "ST-NETW-013"),
    (b"listen_port=1\nerrno=0\n\n", "ST-NETW-015"),
    (b"ok\n\n", "ST-NETW-015"),
)
def test_a_change_that_was_not_made(tmp_path, reply, code):
    path = tmp_path / "s"
    with engine(path, reply), pytest.raises(NetworkError) as error:
        uapi.write_device(str(path), b"set=1\n\n")
    assert error.value.code == code


def test_an_engine_that_is_not_there(tmp_path):
    vocabulary.refused(NetworkError, "ST-NETW-013", uapi.read_device, str(tmp_path / "none"))


def test_an_engine_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(uapi, "TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "s"
    with engine(path, close=False), pytest.raises(NetworkError) as error:
        uapi.read_device(str(path))
    assert error.value.code == "ST-NETW-013"


def test_an_engine_that_does_not_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(uapi, "LIMIT", 1000)
    path = tmp_path / "s"
    with engine(path, b"x" * 1001, close=False), pytest.raises(NetworkError) as error:
        uapi.read_device(str(path))
    assert error.value.code == "ST-NETW-015"
