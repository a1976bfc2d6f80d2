# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Another user of the machine against a job on loopback, where everybody reaches every port."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager, nullcontext

import pytest

from securetrain.core.errors import NetworkError
from securetrain.launch.process.loopback_peers import (
    ForeignPeer,
    find_foreign_peers,
    local_connections,
    refusal,
)
from tests.vocabulary import refused

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

# argv: port. Connects, says so, and stays until its input ends.
CONNECT = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(peer.getsockname()[1], flush=True)
sys.stdin.read()
"""
# Listens, says where, and stays until its input ends.
LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def process_of(uid, code, *arguments):
    """A process of a user; yields the port that it says."""
    # It becomes the user once it has what that user may be unable to read: Python itself.
    become = f"import encodings.idna, os, socket, sys; os.setuid({uid})"
    command = [sys.executable, "-I", "-c", f"{become}\n{code}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(b"")


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def server(request):
    """A port as a store has it: over IPv6 for both."""
    if request.param == socket.AF_INET:
        made = socket.create_server(("127.0.0.1", 0))
    else:
        made = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with made:
        yield made


@as_root
@pytest.mark.parametrize("is_accepted", [True, False])
def test_another_user_at_a_port_of_ours(server, is_accepted):
    port = server.getsockname()[1]
    before = local_connections()
    # Who waits in the queue is in no group yet; it is found as soon as torch takes it.
    expected = (ForeignPeer(NOBODY, port),) if is_accepted else ()
    with (
        process_of(NOBODY, CONNECT, port),
        server.accept()[0] if is_accepted else nullcontext(),
    ):
        assert find_foreign_peers(before, uid=NOBODY + 1) == expected
        assert find_foreign_peers(local_connections()) == expected  # accepted: whenever that was
        assert find_foreign_peers(uid=NOBODY) == ()


def test_ones_own_processes_belong(server):
    port = server.getsockname()[1]
    with process_of(os.getuid(), CONNECT, port), server.accept()[0]:
        assert find_foreign_peers() == ()


@as_root
def test_where_this_process_connects_while_a_group_is_made():
    with process_of(NOBODY, LISTEN) as port:
        before = local_connections()
        with socket.create_connection(("127.0.0.1", port)) as peer:
            # gloo connects to the address that it finds in the store: perhaps another user's. Until
            # that one takes the connection it has no owner, and gloo waits for what it never gets.
            assert {found.uid for found in find_foreign_peers(before)} <= {NOBODY}
            assert find_foreign_peers(local_connections()) == ()  # the script's own
            assert peer.getsockname()[1]


@as_root
def test_where_another_user_accepts_us():
    accept = LISTEN.replace("sys.stdin.read()", "peer = server.accept()[0]; print(1, flush=True)")
    with process_of(NOBODY, accept + "sys.stdin.read()") as port:
        before = local_connections()
        with socket.create_connection(("127.0.0.1", port)) as peer:
            own = peer.getsockname()[1]
            while not (found := find_foreign_peers(before)):
                pass
            assert found == (ForeignPeer(NOBODY, own),)
            assert find_foreign_peers(local_connections()) == ()


def test_the_refusal_says_who_and_what_helps():
    error = refusal([ForeignPeer(1000, 29500)])
    assert error.code == "ST-NETW-025"
    assert "user 1000 at port 29500" in error.what
    assert "--require overlay" in error.fix


def test_no_knowledge_is_no_pass(tmp_path):
    for check in (local_connections, find_foreign_peers):
        refused(NetworkError, "ST-NETW-002", check, proc=tmp_path)
