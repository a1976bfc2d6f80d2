# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` on four machines on a bridge, each with a software TPM of its own."""

import json
import os
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from securetrain.identity.keys import PrivateKey
from securetrain.testing.cluster import missing
from securetrain.testing.machine import Machine, reference_values, write_policy
from tests.attest.swtpms import without_swtpm
from tests.launch.two_nodes import TRAIN, up
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.tpm,
    without_swtpm,
    needs(missing),
]

NODES = ("node-a", "node-b", "node-c", "node-d")


@pytest.fixture
def machines(tmp_path):
    """Four that are enrolled, and a fifth from the same manufacturer that nobody has enrolled."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(Machine(tmp_path / f"machine-{n}", n, ca=tmp_path / "ca"))
            for n in (*NODES, "stranger")
        ]
        for machine in made:
            machine.boot()
        yield made


def test_four_attested_machines_and_one_that_is_not(machines, tmp_path):
    """The WireGuard keys are in what the TPMs signed; without the right TPM nobody gets one in."""
    enrolled, stranger = machines[:-1], machines[-1]
    values = reference_values(enrolled, datetime.now(UTC))
    policy = write_policy(tmp_path, values, PrivateKey.generate())
    wanted = json.loads(policy.read_text()) | {"network": {"require": ["overlay"]}}
    settings = {m.name: m.write_settings(tmp_path / f"{m.name}.json") for m in machines}

    with (
        up(
            tmp_path,
            policy=json.dumps(wanted),
            script=TRAIN,
            hosts=len(NODES),
            env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
            fewest=len(NODES),
            names=NODES,
        ) as nodes,
    ):
        # Its certificate is node-d's, and good; its TPM is not.
        nodes.start("node-d", "--attester", str(settings[stranger.name]))
        for name in NODES[:-1]:
            nodes.start(name, "--attester", str(settings[name]))
        assert nodes.wait("node-d") != 0
        assert nodes.summary("node-d")["code"] == "ST-ATTS-012"
        assert nodes.remains("node-d") == []
        nodes.start("node-d", "--attester", str(settings["node-d"]))
        codes = [nodes.wait(name) for name in NODES]
        assert codes == [0] * len(NODES), "\n".join(nodes.err(name)[-2000:] for name in NODES)
        ranks = nodes.ranks()
        assert [nodes.remains(name) for name in NODES] == [[]] * len(NODES)
    assert len({rank["loss"] for rank in ranks}) == 1
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)
    assert {rank["underlay"] for rank in ranks} == {101}  # ENETUNREACH
    ledger = (tmp_path / "ledger.jsonl").read_text().splitlines()
    admitted = [line for line in ledger if '"node-admitted"' in line]
    assert len(admitted) == len(NODES)
    assert all('"tier":"test-only"' in line for line in admitted)
    assert [line for line in ledger if '"node-refused"' in line and "ST-ATTS-012" in line]
