# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` under store-tls on two machines: the store is carried over TLS, gradients are
not, and everybody is told so.
"""

from datetime import UTC, datetime
from itertools import chain

import pytest

from securetrain.report import runs, written
from securetrain.report.run.record import read_run
from securetrain.testing.cluster import missing
from tests.launch.two_nodes import CANARIES, NODES, POLICY, TRAIN, up
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]
GRADIENT, _, KEY = CANARIES

IN_CLEAR = """\
network:
  require: [store-tls]
  fabric: trusted-plaintext
  isolation: {statement: a bridge of this test and nobody else, evidence: statement}
"""


@pytest.fixture
def nodes(tmp_path):
    network = "network: {require: [overlay]}\n"
    assert network in POLICY
    given = {"policy": POLICY.replace(network, IN_CLEAR), "script": TRAIN}
    with up(tmp_path, **given) as made:
        yield made


def test_the_store_is_sealed_and_the_rest_is_said_to_be_in_clear(nodes):
    with nodes.cluster.capture() as capture:
        for node, host in zip(NODES, nodes.cluster.hosts, strict=True):
            options = ("--require", "store-tls", "--max-restarts", "1")
            # Rank 1 dies once: the next epoch has a store and relays of its own.
            nodes.start(node, *options, conf=f",bind={host.address}", crash="0")
        assert [nodes.wait(node) for node in NODES] == [0, 0], nodes.err("node-a")[-3000:]
    assert capture.lost == 0
    frames = capture.read()
    # The gradients are there for everybody to read: this is what DEGRADED means.
    assert any(GRADIENT in frame for frame in frames)
    # What the store was asked is not: neither the script's keys nor torch's.
    for canary in (KEY, b"default_pg", b"torchelastic"):
        assert not any(canary in frame for frame in frames), canary
    ranks = nodes.ranks()
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for rank in ranks:
        assert rank["master"] == "127.0.0.1"
        assert set(rank["pins"].values()) <= {"eth0", "=eth0"}
    for node in NODES:
        assert "network      store-tls DEGRADED (some bytes in the clear)" in nodes.err(node)
        events = {event.event: event for event in nodes.events(node)}
        assert "DEGRADED" in events["profile-achieved"].subject
        page = runs.page(read_run(nodes.folder / f"run-{node}", datetime.now(UTC)))
        for form in ("text", "json", "html"):
            text = " ".join(written(page, form).split())
            assert "store-tls DEGRADED" in text
            assert "travelled in the clear" in text
            assert "encrypted between" not in text
    assert not list(chain.from_iterable(nodes.remains(node) for node in NODES))
