# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import socket

import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.sockets import check_sockets, violation

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
    with pytest.raises(NetworkError) as caught:
        check_sockets(LOOPBACK, tmp_path)
    assert caught.value.code == "ST-NETW-002"


def test_other_profiles_have_no_rule_yet():
    with socket.create_server(("127.0.0.1", 0)), pytest.raises(ValueError, match="no rule"):
        check_sockets(NetworkProfile.OVERLAY)
