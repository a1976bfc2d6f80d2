# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` under nccl-tls, with libraries that only look like NCCL; Gloo does the work.

What a real NCCL makes of its key needs a GPU (test_nccl_gpu.py).
"""

import json
import os
import sys

import pytest

from securetrain.core.rundir import RunDir
from securetrain.network.wireguard import decode_key
from securetrain.testing.cluster import missing
from tests.launch.worlds import clean_environment
from tests.network.fake_nccl import TLS, WITHOUT, compile_nccl
from tests.vocabulary import needs, outcome

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    needs(missing),
]

POLICY = """\
extends: dev
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: nccl-tls, version: 1.0.0, title: Of a test}
network: {require: [nccl-tls]}
"""

# Loads the launcher's NCCL as torch's CUDA build would.
LAUNCH = """
import ctypes, sys
if sys.argv[1]: ctypes.CDLL(sys.argv[1])
del sys.argv[1]
from securetrain.cli.main import entry
entry()
"""

WORKER = """
import ctypes, json, os, sys
nccl = ctypes.CDLL(sys.argv[1])
import torch.distributed as dist
dist.init_process_group("gloo")
nccl.fake_key.restype = ctypes.c_char_p
key = nccl.fake_key().decode()
with open("/proc/self/environ") as file: environ = file.read()
links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
         if os.path.islink(f"/proc/self/fd/{n}")]
with open(f"{sys.argv[2]}/rank-{dist.get_rank()}.json", "w") as file:
    json.dump({"key": key, "told": key in environ,
               "memfds": sum("memfd:securetrain" in link for link in links)}, file)
dist.barrier()
"""


@pytest.fixture
def start(tmp_path):
    """Runs two workers; returns the exit code, what was said, and the run."""

    def start(launchers, workers):
        (tmp_path / "policy.yaml").write_text(POLICY)
        (tmp_path / "worker.py").write_text(WORKER)
        run = RunDir(tmp_path / "run")
        options = ["--output", str(tmp_path), "--run-dir", str(run.root)]
        options += ["--policy", str(tmp_path / "policy.yaml")]
        script = [str(tmp_path / "worker.py"), str(workers), str(tmp_path)]
        done = outcome(
            [
                sys.executable,
                "-c",
                LAUNCH,
                str(launchers),
                "run",
                *options,
                "--nproc-per-node",
                "2",
                *script,
            ],
            env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
        )
        return done.returncode, done.stderr, run

    return start


def compiled(tmp_path, kind, folder):
    (tmp_path / folder).mkdir()
    return compile_nccl(tmp_path / folder, kind)


def events(run):
    return [json.loads(line)["body"]["event"] for line in run.ledger.read_text().splitlines()]


def test_every_worker_inherits_the_epochs_key_and_nobody_else_sees_it(tmp_path, start):
    library = compiled(tmp_path, TLS, "lib")
    code, err, run = start(library, library)
    assert code == 0, err[-3000:]
    ranks = [json.loads((tmp_path / f"rank-{n}.json").read_text()) for n in range(2)]
    (key,) = {rank["key"] for rank in ranks}
    assert len(decode_key(key)) == 32
    assert [(rank["told"], rank["memfds"]) for rank in ranks] == [(False, 0)] * 2
    assert "network      nccl-tls (encrypted between machines, NCCL from worker" in err
    assert len([e for e in events(run) if e["event"] == "nccl-encrypted"]) == 2
    for path in run.root.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_a_worker_whose_nccl_has_no_tls_never_makes_a_group(tmp_path, start):
    """The launcher saw another library than the workers load; this one takes any key."""
    code, err, run = start(compiled(tmp_path, TLS, "good"), compiled(tmp_path, WITHOUT, "bad"))
    assert code == 1
    assert "ST-NETW-030" in err
    assert "built without TLS" in err
    assert not list(tmp_path.glob("rank-*.json"))
    assert {"ST-NETW-030"} <= {e["code"] for e in events(run)}


def test_without_tls_nothing_starts(tmp_path, start):
    code, err, run = start(compiled(tmp_path, WITHOUT, "bad"), "unused")
    assert code == 1
    assert "ST-NETW-001" in err
    assert "built without TLS" in err
    assert [e["code"] for e in events(run) if e["event"] == "profile-refused"] == ["ST-NETW-001"]
