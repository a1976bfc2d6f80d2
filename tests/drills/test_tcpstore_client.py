# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import pickle
import socket
import struct
import threading
from contextlib import contextmanager

import pytest

from securetrain.drills.pickles import marked_by, marker_pickle
from securetrain.drills.tcpstore_client import attack_store


@contextmanager
def _server(answer):
    """A server on loopback whose one connection is handled by `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            peer, _ = server.accept()
            with peer:
                answer(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def _nonce(peer):
    """The nonce of the first ping; it may come in pieces."""
    data = b""
    while len(data) < 10:
        data += peer.recv(10 - len(data))
    return data[6:]


def test_the_payload_marks_the_process_that_loads_it(tmp_path):
    marker = tmp_path / "marker"
    assert marked_by(marker) == []
    pickle.loads(marker_pickle(marker))
    assert marked_by(marker) == [os.getpid()]


def test_a_closed_port_is_not_a_connection(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    attack = attack_store(port, tmp_path / "marker")
    assert not attack.connected
    assert "refused" in attack.error


def test_another_protocol_is_no_store(tmp_path):
    with _server(lambda peer: (_nonce(peer), peer.sendall(b"HTTP/1.1 400\r\n"))) as port:
        attack = attack_store(port, tmp_path / "marker")
    assert attack.connected
    assert not attack.spoke_store
    assert attack.answer == b"HTTP"


@pytest.mark.parametrize("answer", [lambda peer: None, lambda peer: peer.recv(64)])
def test_a_peer_that_closes_is_no_store(tmp_path, answer):
    with _server(answer) as port:
        attack = attack_store(port, tmp_path / "marker")
    assert attack.connected
    assert not attack.spoke_store
    assert attack.error


def _echo_then(reply):
    def answer(peer):
        peer.sendall(_nonce(peer))
        peer.recv(1)
        peer.sendall(reply)
        peer.recv(1 << 16)

    return answer


def test_a_store_without_keys_gets_the_state_of_the_run_id_or_nothing(tmp_path):
    stored = []

    def store(peer):
        ping = _nonce(peer)
        peer.sendall(ping)
        assert peer.recv(1) == bytes([17])
        peer.sendall(struct.pack("<Q", 0))
        data = b""
        while not data.endswith(ping):
            data += peer.recv(1 << 16)
        stored.append(data)
        peer.sendall(data[-4:])

    with _server(store) as port:
        attack = attack_store(port, tmp_path / "marker", run_id="job")
    assert attack.overwritten == ("/torch.rendezvous.job",)
    assert b"/torch.rendezvous.job" in stored[0]
    with _server(store) as port:
        assert attack_store(port, tmp_path / "marker").overwritten == ()


def test_absurd_lengths_are_not_believed(tmp_path):
    with _server(_echo_then(struct.pack("<Q", 1 << 60))) as port:
        attack = attack_store(port, tmp_path / "marker")
    assert "length" in attack.error
    assert not attack.overwritten
