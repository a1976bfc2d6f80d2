# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import socket

import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.process.sockets import check_sockets, violation
from securetrain.network.profile import TUNNELLED, VERBS
from tests.tables import items
from tests.vocabulary import refused

LOOPBACK = NetworkProfile.LOOPBACK


def test_loopback_is_inside_and_everything_else_is_not():
    before = check_sockets(LOOPBACK)
    with socket.create_server(("127.0.0.1", 0)) as inside:
        check = check_sockets(LOOPBACK)
        ports = {entry.port for entry in check.listeners}
        assert inside.getsockname()[1] in ports
        assert check.outside == before.outside
        with socket.create_server(("0.0.0.0", 0)) as outside:
            check = check_sockets(LOOPBACK)
            port = outside.getsockname()[1]
            assert port in {entry.port for entry in check.outside}
            assert not check.ok
            error = violation(check)
            assert error.code == "ST-NETW-002"
            assert str(port) in error.what


def test_ipv6():
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as inside,
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as outside,
    ):
        check = check_sockets(LOOPBACK)
        bad = {entry.port for entry in check.outside}
        assert outside.getsockname()[1] in bad
        assert inside.getsockname()[1] not in bad


def test_connections_are_not_listeners():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        ports = {entry.port for entry in check_sockets(LOOPBACK).listeners}
        assert server.getsockname()[1] in ports
        assert client.getsockname()[1] not in ports


def test_no_knowledge_is_no_pass(tmp_path):
    refused(NetworkError, "ST-NETW-002", check_sockets, LOOPBACK, tmp_path)


def test_under_store_tls_nothing_listens_at_every_address():
    with socket.create_server(("127.0.0.2", 0)) as own:
        check = check_sockets(NetworkProfile.STORE_TLS)
        assert check.ok
        assert own.getsockname()[1] in {entry.port for entry in check.listeners}
        with socket.create_server(("0.0.0.0", 0)) as everywhere:
            check = check_sockets(NetworkProfile.STORE_TLS)
            assert [entry.port for entry in check.outside] == [everywhere.getsockname()[1]]
            assert violation(check).code == "ST-NETW-002"


ROUTES = "Iface Destination Gateway Flags\n"


def fake_proc(root, ipv4, ipv6=""):
    """What the kernel shows of a process that listens on every interface, port 4660."""
    net = root / "self" / "net"
    net.mkdir(parents=True)
    (root / "self" / "fd").mkdir()
    (root / "self" / "fd" / "3").symlink_to("socket:[77]")
    (root / "thread-self").symlink_to("self")
    (net / "tcp").write_text("head\n 0: 00000000:1234 00000000:0000 0A 0 0 0 0 0 77 1\n")
    (net / "tcp6").write_text("head\n")
    (net / "route").write_text(ROUTES + ipv4)
    (net / "ipv6_route").write_text(ipv6)
    return root


@pytest.mark.parametrize("profile", sorted(TUNNELLED))
def test_in_a_job_namespace_every_address_is_inside(tmp_path, profile):
    proc = fake_proc(tmp_path, "st0 0000000A 00000000 0001\n", "00 00 00 lo\n")
    check = check_sockets(profile, proc)
    assert [entry.port for entry in check.listeners] == [4660]
    assert check.ok


@items(
    "id, ipv4, ipv6",
    ("another device beside the tunnel", "st0 0 0 1\neth0 0 0 1\n", ""),
    ("the host's namespace", "eth0 0 0 1\n", ""),
    ("IPv6", "st0 0 0 1\n", "00 00 eth0\n"),
)
def test_a_worker_outside_its_job_network_is_refused(tmp_path, ipv4, ipv6):
    check = check_sockets(NetworkProfile.OVERLAY, fake_proc(tmp_path, ipv4, ipv6))
    assert check.ways_out == ("eth0",)
    assert not check.ok
    error = violation(check)
    assert error.code == "ST-NETW-002"
    assert "eth0" in error.what


@pytest.mark.parametrize("profile", sorted({NetworkProfile.LOOPBACK, *TUNNELLED}))
def test_an_rdma_device_is_open_only_where_the_profile_says_so(tmp_path, profile):
    """The driver's device is a file like any other; only its name is looked at."""
    proc = fake_proc(tmp_path, "st0 0 0 1\n")
    (proc / "self" / "net" / "tcp").write_text("head\n")
    (proc / "self" / "fd" / "4").symlink_to("/dev/infiniband/uverbs0")
    (proc / "self" / "fd" / "5").symlink_to("/dev/infiniband-else")
    check = check_sockets(profile, proc)
    assert check.ok is (profile in VERBS)
    if not check.ok:
        assert check.rdma == ("/dev/infiniband/uverbs0",)
        assert violation(check).code == "ST-NETW-035"
        assert "uverbs0" in violation(check).what


def test_unreadable_routes_are_no_pass(tmp_path):
    proc = fake_proc(tmp_path, "")
    (proc / "self" / "net" / "route").unlink()
    refused(NetworkError, "ST-NETW-002", check_sockets, NetworkProfile.OVERLAY, proc)
