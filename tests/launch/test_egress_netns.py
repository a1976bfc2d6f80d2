# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script in a job network reaches the place that its policy names, and nothing beside it."""

import json
import socket
import threading

import pytest

from securetrain.testing.cluster import missing
from tests.launch.worlds import write_policy
from tests.vocabulary import needs

SCRIPT = """\
import ipaddress, json, os, socket, sys
place = sys.argv[1]
host, _, port = place.rpartition(":")
proxy = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
said = {"same": os.environ["https_proxy"] == os.environ["HTTPS_PROXY"]}
members = ipaddress.ip_network(os.environ["NO_PROXY"].split(",")[2])
said["members"] = ipaddress.ip_address(os.environ["MASTER_ADDR"]) in members
try:
    socket.create_connection((host, int(port)), 3).close()
    said["direct"] = "connected"
except OSError as error:
    said["direct"] = type(error).__name__

def through(target):
    with socket.create_connection((proxy[0], int(proxy[1])), 10) as client:
        client.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
        status = client.recv(4096).split()[1].decode()
        if status == "200":
            client.sendall(b"hello")
            said["answer"] = client.recv(100).decode()
        return status

said["named"] = through(place)
said["other"] = through(f"{host}:{int(port) + 1}")
open(sys.argv[2], "w").write(json.dumps(said))
"""


@pytest.mark.netns
@pytest.mark.dist
@needs(missing)
def test_a_worker_reaches_what_the_policy_names(launch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            client, _ = server.accept()
            with client:
                client.sendall(client.recv(100).upper())

        threading.Thread(target=answer, daemon=True).start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        network = {"require": ["overlay"], "egress": [place]}
        policy = write_policy(tmp_path / "policy.yaml", network=network)
        (tmp_path / "s.py").write_text(SCRIPT)
        done = launch(
            tmp_path / "run",
            *("--standalone", "--policy", policy, str(tmp_path / "s.py")),
            *(place, str(tmp_path / "said.json")),
            HTTPS_PROXY="http://192.0.2.1:3128",
        )
    assert done.code == 0, done.err
    said = json.loads((tmp_path / "said.json").read_text())
    assert said.pop("direct") != "connected"
    assert said.pop("members")
    assert said == {"same": True, "named": "200", "answer": "HELLO", "other": "403"}
    assert [e.details["places"] for e in done.events("egress-opened")] == [place]
    assert [e.subject for e in done.events("egress-connected")] == [place]
    assert [e.code for e in done.events("egress-refused")] == ["ST-NETW-040"]
    counted = {
        e.subject: (e.details["sent"], e.details["received"]) for e in done.events("egress-counted")
    }
    assert counted == {place: (5, 5), "not named": (0, 0)}
