# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import socket
import subprocess
import sys

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network.kernel_sockets import (
    Listener,
    own_listeners,
    own_sockets,
    read_sockets,
    require_only,
)
from tests.tables import each
from tests.vocabulary import free_port, refused


@each("address", "127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "::")
def test_every_kind_of_address_is_found(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert Listener(address, port) in own_listeners()
        require_only(address, port)
    assert Listener(address, port) not in own_listeners()


def test_a_connection_is_no_listener():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getsockname()[1] not in {entry.port for entry in own_listeners()}


def test_another_process_on_the_same_port_is_not_ours():
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.2', int(sys.argv[1])));"
        "print('up', flush=True); sys.stdin.read()"
    )
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        subprocess.Popen(
            [sys.executable, "-c", code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        require_only("127.0.0.1", port)
        other.communicate(b"")


@each("address", "0.0.0.0", "::", "127.0.0.2")
def test_listening_elsewhere_is_refused(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as server,
        pytest.raises(NetworkError, match="ST-NETW-002"),
    ):
        require_only("127.0.0.1", server.getsockname()[1])


def test_listening_on_a_second_address_as_well_is_refused():
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        socket.create_server(("127.0.0.2", port)),
        pytest.raises(NetworkError, match=r"127\.0\.0\.2"),
    ):
        require_only("127.0.0.1", port)


def test_not_listening_at_all_is_refused():
    refused(NetworkError, "nothing", require_only, "127.0.0.1", 1)


def test_no_proc_is_a_refusal(tmp_path):
    refused(NetworkError, "ST-NETW-002", require_only, "127.0.0.1", 1, tmp_path)


def test_tables_that_cannot_be_read_are_no_evidence(tmp_path):
    for missing in (own_sockets, read_sockets):
        refused(NetworkError, "ST-NETW-002", missing, tmp_path)
    net = tmp_path / "thread-self" / "net"
    net.mkdir(parents=True)
    for name in ("tcp", "tcp6"):
        (net / name).write_text("header\n")
    assert read_sockets(tmp_path) == []
    refused(NetworkError, "ST-NETW-002", own_sockets, tmp_path)
