# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Named secrets on two machines, whose network is captured: nothing but the workers shows them."""

import hashlib
import json
import os

import pytest

from securetrain.testing.cluster import missing
from tests.launch.two_nodes import NODES, POLICY, up
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.many,
    needs(missing),
]

CANARY = b"CANARY-SECRET-b7e2-0123456789"
SECRETS = """\
  secrets:
    dataset-key: {min_tier: self-asserted}
    for-the-proven: {min_tier: vtpm}
network:"""
SCRIPT = """
import hashlib, json, os, sys
import torch.distributed as dist
import securetrain
dist.init_process_group("gloo")
rank = dist.get_rank()
key = securetrain.secret("dataset-key")
try:
    more = securetrain.secret("for-the-proven").decode()
except Exception as error:
    more = str(error)
with open(f"{sys.argv[1]}/rank-{rank}.json", "w") as file:
    json.dump({"digest": hashlib.sha256(key).hexdigest(), "more": more}, file)
dist.barrier()
dist.destroy_process_group()
"""


def test_two_machines_have_a_secret_and_no_disk_ledger_or_wire_has(tmp_path):
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_bytes(CANARY)
    secret.chmod(0o600)
    policy = POLICY.replace("network:", SECRETS, 1)
    given = f"dataset-key=file:{secret} for-the-proven=file:{secret}"
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), TEST_SECRETS=given)
    with (
        up(tmp_path, policy=policy, script=SCRIPT, env=env) as nodes,
        nodes.cluster.capture() as capture,
    ):
        nodes.train()
        errors = "".join(nodes.err(node) for node in NODES)
    for rank in range(2):
        said = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert said["digest"] == hashlib.sha256(CANARY).hexdigest()
        assert "ST-RUNT-036" in said["more"]
    assert capture.lost == 0
    frames = capture.read()
    assert len(frames) > 50
    assert not [frame for frame in frames if CANARY in frame]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if CANARY in path.read_bytes()] == []
    assert CANARY.decode() not in errors
    assert errors.count("for-the-proven was withheld: ST-ADMN-043") == 2
    ledger = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    text = json.dumps(ledger)
    assert hashlib.sha256(CANARY).hexdigest() not in text, "nor a digest, by which it is guessed"
    released = (tmp_path / "ledger.jsonl").read_bytes().count(b"secret-released")
    assert (released, text.count("secret-withheld")) != (0, 0)
