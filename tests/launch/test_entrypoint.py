# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain run` as a person starts it. A launch costs seconds, so each tells a whole story."""

import json
import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.core.vocabulary import Decision
from securetrain.identity.job_ca import JobCA
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.coordinator import Coordinator
from securetrain.rendezvous.member.identity_dir import write_identity
from tests.launch.worlds import clean_environment, run_command
from tests.vocabulary import is_running, outside
from tests.waiting import until

STORY = """\
import json, os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def main():
    out, attempt = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 4))
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    weights = [None] * dist.get_world_size()
    dist.all_gather_object(weights, model.module.weight.detach())
    try:
        from torch.distributed.debug import start_debug_server
        start_debug_server()
        debug = "started"
    except Exception as error:
        debug = getattr(error, "code", repr(error))
    with open(f"{out}/rank{rank}.json", "w") as file:
        json.dump({
            "attempt": attempt, "same": all(torch.equal(w, weights[0]) for w in weights),
            "debug": debug, "world": dist.get_world_size(),
            "env": {k: v for k, v in os.environ.items() if "SOCKET_IFNAME" in k or "TOKEN" in k},
            "argv": sys.argv, "preload": os.environ.get("LD_PRELOAD", ""),
        }, file)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.dist
@pytest.mark.slow
def test_an_unmodified_script_with_an_elastic_restart(launch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STORY)
    done = launch(
        tmp_path / "run",
        *("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--tee", "3"),
        *(str(script), str(tmp_path), "--lr=1"),
        GLOO_SOCKET_IFNAME="eth0",
        HF_TOKEN="hf_secret",
        LD_PRELOAD="",
    )
    assert done.code == 0, done.err
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert seen["attempt"] == "1"
        assert seen["same"]
        assert seen["world"] == 2
        assert seen["debug"] == "ST-RUNT-006"
        assert seen["argv"] == [str(script), str(tmp_path), "--lr=1"]
        assert seen["env"] == {
            "GLOO_SOCKET_IFNAME": "lo",
            "TP_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "=lo",
        }
    for text in ("dev 1.0.0 (default for --standalone)", "loopback", "UNATTESTED", "TLS 1.3"):
        assert text in done.err
    assert "GLOO_SOCKET_IFNAME is pinned to 'lo'" in done.err
    assert "--pass-env HF_TOKEN" in done.err
    assert "hf_secret" not in done.err + done.run.ledger.read_text() + done.run.summary.read_text()
    assert done.codes == {"ST-RUNT-006"}
    assert len(done.events("round-formed")) == 2
    assert [len(done.events(name)) for name in ("torch-accepted", "run-ended")] == [1, 1]
    checked = done.events("sockets-inside-network")
    assert {event.subject for event in checked} >= {"rank 0 attempt 1", "rank 1 attempt 1"}
    assert all(event.decision is Decision.ALLOW for event in checked)
    assert {event.subject for event in done.events("node-admitted")} != set()
    summary = done.summary
    assert summary["outcome"] == "succeeded"
    assert summary["network"] == "loopback"
    assert summary["nodes"][0]["tier"] == "self-asserted"
    assert "HF_TOKEN" in {entry["name"] for entry in summary["removed"]}
    assert summary["world_size"] == 2
    report = next(w for w in summary["workers"] if w["attempt"] == 1)
    assert "torch.distributed.distributed_c10d" in report["protected"]
    assert "torch.distributed.debug" in report["protected"]
    assert list(done.run.logs.glob("*/attempt_1/0/stdout.log"))


@pytest.mark.dist
def test_a_module_that_fails(launch, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "job.py").write_text(
        "import sys\nprint('torch' in sys.modules, sys.argv[1:])\nraise ValueError('no data')\n"
    )
    done = launch(tmp_path / "run", "--standalone", "-m", "package.job", "x", "-y", cwd=tmp_path)
    assert done.code == 1
    assert "False ['x', '-y']" in done.out
    assert "ValueError: no data" in done.err
    assert "error ST-RUNT-004: rank 0" in done.err
    assert "ended with exit code 1: ValueError: no data" in done.err
    assert "--tee 3" in done.err
    assert done.summary["outcome"] == "failed"
    assert done.summary["code"] == "ST-RUNT-004"
    assert done.ledger.closed


WAITING = """\
import pathlib, subprocess, sys, time
children = [
    subprocess.Popen(["sleep", "300"]), subprocess.Popen(["sleep", "300"], start_new_session=True)
]
pathlib.Path(sys.argv[1]).write_text(" ".join(str(child.pid) for child in children))
time.sleep(300)
"""


def listening(pid):
    """The addresses that a process listens on, as the kernel writes them."""
    proc = Path(f"/proc/{pid}")
    targets = {str(fd.readlink()) for fd in (proc / "fd").iterdir()}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in (proc / "net" / table).read_text().splitlines()[1:]
    ]
    return {
        row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in targets
    }


@pytest.mark.dist
def test_ctrl_c_leaves_nothing(tmp_path):
    script, ready = tmp_path / "wait.py", tmp_path / "ready"
    script.write_text(WAITING)
    launcher = subprocess.Popen(
        run_command(tmp_path / "run", "--standalone", str(script), str(ready)),
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: ready.exists() and ready.read_text(), alive=launcher)
        sleepers = [outside(int(pid), launcher.pid) for pid in ready.read_text().split()]
        # The coordinator and the workers' store: 127.0.0.1 and nothing else.
        assert listening(launcher.pid) == {"0100007F"}
        os.killpg(launcher.pid, signal.SIGINT)
        _, err = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == 130, err
    assert "ended by SIGINT" in err
    assert "Traceback (most recent call last)" not in err.partition("KeyboardInterrupt")[2]
    assert not any(map(is_running, sleepers))
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert summary["outcome"] == "interrupted"
    assert summary["stragglers"] >= 1


@pytest.mark.dist
def test_joining_a_coordinator_that_runs_elsewhere(launch, tmp_path):
    now = datetime.now(UTC)
    policy = load_policy("dev")
    ca = JobCA.create(policy.policy.identity.trust_domain, "shared", now)
    write_identity(tmp_path / "id", ca, "node-7", now)
    coordinator = Coordinator(
        "shared", ca, policy, None, min_nodes=1, max_nodes=1, clock=lambda: datetime.now(UTC)
    )
    host, port = coordinator.start()
    script = tmp_path / "hello.py"
    script.write_text("import os; print('job', os.environ['TORCHELASTIC_RUN_ID'])")
    try:
        done = launch(
            tmp_path / "run",
            *("--policy", "dev", "--rdzv-backend", "securetrain", "--rdzv-id", "shared"),
            *("--rdzv-endpoint", f"{host}:{port}", "--rdzv-conf", f"identity={tmp_path / 'id'}"),
            str(script),
        )
        admitted = [admission.node for admission in coordinator.admissions]
    finally:
        coordinator.stop()
    assert done.code == 0, done.err
    assert done.out == "job shared\n"
    assert f"coordinator  of the job, at {host}:{port}" in done.err
    assert admitted == ["node-7"]


REFUSALS = {
    "two nodes": (["--nnodes", "2", "s.py"], "ST-NETW-001", 1),
    "a missing script": (["--standalone", "none.py"], "ST-USAG-002", 20),
    "a missing module": (["--standalone", "-m", "st_none.train"], "ST-USAG-002", 20),
    "too many workers": (["--standalone", "--nproc-per-node=100000", "s.py"], "ST-USAG-001", 2),
    "bytes": (["--standalone", "data-\udcff.py"], "ST-USAG-001", 2),
    "another's files": (["--standalone", "--run-dir", ".", "s.py"], "ST-USAG-017", 2),
    "hardened": (["--policy", "hardened", "--standalone", "s.py"], "ST-NETW-001", 1),
    "a pinned variable": (["--standalone", "--pass-env", "NCCL_NET", "s.py"], "ST-NETW-003", 2),
    "no shim": (["--standalone", "--no-python", "s.sh"], "ST-RUNT-007", 2),
    "a bad number": (["--standalone", "--nnodes", "x", "s.py"], "ST-USAG-001", 2),
    "another backend": (["--rdzv-backend", "etcd", "s.py"], "ST-RUNT-002", 2),
}
BEFORE_A_RUN = {
    *("another backend", "a missing script", "a missing module", "too many workers", "bytes"),
    "another's files",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_before_anything_starts(tmp_path, monkeypatch, capsys, name):
    from securetrain.launch.entrypoint import main

    arguments, code, exit_code = REFUSALS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").touch()
    (tmp_path / "s.sh").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("NCCL_NET", "IB")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path.parent / "error.json"))
    monkeypatch.setattr("securetrain.network.engines.probe", lambda _: "no engine")
    before = dict(os.environ)
    assert main(["--json", "--run-dir", "run", *arguments]) == exit_code
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert dict(os.environ) == before
    said = json.loads((tmp_path.parent / "error.json").read_text())["message"]
    assert code in said["message"]
    if name in BEFORE_A_RUN:
        assert not (tmp_path / "run").exists()
        return
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (summary["outcome"], summary["code"]) == ("refused", code)


def test_an_entry_point_is_refused_before_torch_is_imported(tmp_path, monkeypatch, capsys):
    from importlib.metadata import EntryPoint

    from securetrain.launch import entrypoint, options
    from securetrain.launch.node import supply_chain

    evil = EntryPoint("evil", "evil.plugin:make", "torchrun.handlers")
    real = supply_chain.check_supply_chain
    monkeypatch.setattr(
        entrypoint,
        "check_supply_chain",
        lambda p, **o: real(p, list_entry_points=lambda _: [evil], **o),
    )
    monkeypatch.setattr(options, "parse", lambda *_: pytest.fail("torch was imported"))
    assert (
        entrypoint.main(["--json", "--run-dir", str(tmp_path / "run"), "--standalone", "s.py"]) == 1
    )
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-RUNT-005"
    text = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert "ST-RUNT-005" in text
    assert "entry-point-refused" in text


def test_baseline_refuses_this_machine(tmp_path, monkeypatch, capsys):
    """A laptop does not meet baseline: it is refused with a reason, and the ledger says so."""
    from securetrain.launch.entrypoint import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").touch()
    assert main(["--json", "--run-dir", "run", "s.py"]) != 0
    error = json.loads(capsys.readouterr().out)["error"]
    code = error["code"]
    assert code in {"ST-RUNT-003", "ST-ATTS-004", "ST-ATTS-005"}
    if code == "ST-RUNT-003":
        assert "type: securetrain run --standalone --json --run-dir run s.py;" in error["fix"]
    assert code in (tmp_path / "run" / "ledger.jsonl").read_text()
