# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where the workers' store listens is asked of the kernel, whatever torch was told."""

import os
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from securetrain.core.errors import AdmissionError, NetworkError, UsageError
from securetrain.rendezvous.member import store
from securetrain.rendezvous.member.store import connect_store, host_store
from tests.vocabulary import refused

SECOND = timedelta(seconds=1)


def test_a_store_is_used_where_it_listens():
    hosted = host_store("127.0.0.1", 10 * SECOND)
    connect_store(hosted.host, hosted.port, 10 * SECOND).set("key", "value")
    assert hosted.store.get("key") == b"value"


def test_a_store_that_does_not_take_the_socket_listens_everywhere_and_is_refused(monkeypatch):
    """As torch does by itself, and as another version of it might."""

    def everywhere(address, port, *, master_listen_fd, **settings):
        os.close(master_listen_fd)
        return TCPStore(address, port, **settings)

    monkeypatch.setattr(store, "TCPStore", everywhere)
    refused(NetworkError, "ST-NETW-002", host_store, "127.0.0.1", 10 * SECOND)


def test_an_address_of_another_machine():
    refused(UsageError, "ST-USAG-002", host_store, "192.0.2.1", SECOND)


def test_a_store_that_is_not_there():
    error = refused(AdmissionError, "ST-ADMN-007", connect_store, "127.0.0.1", 1, SECOND)
    assert "the store of rank 0 does not answer" in str(error)
