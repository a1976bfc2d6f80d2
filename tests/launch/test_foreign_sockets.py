# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A socket of the machine's network in the hands of a worker leads past its job network."""

import os
import socket
from contextlib import ExitStack

import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.process.foreign_sockets import foreign_sockets
from securetrain.launch.process.sockets import SocketCheck, check_sockets, violation
from securetrain.testing.cluster import NamespaceCluster, missing
from tests.vocabulary import needs, refused


def test_ones_own_sockets_are_not_foreign():
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        accepted, _ = server.accept()
        stack.enter_context(accepted)
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        stack.enter_context(socket.socket())  # in no table, and leads nowhere
        for one in socket.socketpair():
            stack.enter_context(one)
        assert foreign_sockets() == ()
        client.shutdown(socket.SHUT_RDWR)
        assert foreign_sockets() == ()


@pytest.mark.netns
@needs(missing)
def test_sockets_of_another_namespace_are_found():
    """The control: routes and listeners of this namespace do not show them."""
    with NamespaceCluster.up(2) as cluster, ExitStack() as stack:
        host = cluster.hosts[0]
        with host.namespace.entered():
            server = stack.enter_context(socket.create_server((str(host.address), 0)))
            datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            datagrams.bind((str(host.address), 0))
            client = stack.enter_context(socket.create_connection(server.getsockname()))
        ports = [one.getsockname()[1] for one in (server, datagrams, client)]
        shown = {entry.port for entry in check_sockets(NetworkProfile.LOOPBACK).listeners}
        assert not shown & set(ports)
        expected = sorted(f"{host.address} port {port}" for port in ports)
        assert sorted(foreign_sockets()) == expected
    assert foreign_sockets() == ()


def test_what_is_found_ends_the_run():
    check = SocketCheck(
        profile=NetworkProfile.OVERLAY, listeners=(), outside=(), foreign=("192.0.2.1 port 5",)
    )
    assert not check.ok
    error = violation(check)
    assert error.code == "ST-NETW-002"
    assert "192.0.2.1 port 5" in error.what


def test_no_knowledge_is_no_pass(tmp_path):
    with pytest.raises(OSError):  # noqa: PT011 - whichever the kernel gives
        foreign_sockets(tmp_path)
    net = tmp_path / "self" / "net"
    net.mkdir(parents=True)
    (tmp_path / "self" / "fd").mkdir()
    (tmp_path / "thread-self").symlink_to("self")
    for name in ("tcp", "tcp6"):
        (net / name).write_text("head\n")
    (net / "udp").mkdir()  # reading it fails
    refused(NetworkError, "ST-NETW-002", check_sockets, NetworkProfile.OVERLAY, tmp_path)


def test_a_socket_that_was_closed_meanwhile_does_not_count(monkeypatch):
    """It is in no table any more, and its number may be another's by now."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        monkeypatch.setattr(
            "securetrain.launch.process.foreign_sockets._unlisted",
            lambda _proc, looks=[]: looks.append(1) or {server.fileno(): f"inode {len(looks)}"},
        )
        assert foreign_sockets() == ()
        assert os.fstat(server.fileno())
