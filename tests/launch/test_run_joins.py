# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How ``securetrain run`` ends when the coordinator that it joins is not what it should be.

One error with its code, an exit code that says the same, a closed ledger, and no worker left. The
control is `test_run.test_joining_a_coordinator_that_runs_elsewhere`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securetrain.core.codes import ExitCode
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How, Kind
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.member.identity_dir import store_identity, write_identity
from tests.launch.worlds import clean_environment, run_command
from tests.vocabulary import free_port, outside
from tests.waiting import until

pytestmark = pytest.mark.dist

PATIENCE = 120

SLEEPER = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def now():
    return datetime.now(UTC)


class Cluster:
    """A cluster CA, its coordinator in a process, and one launcher."""

    def __init__(self, root: Path, environment) -> None:
        self.root, self.environment = root, environment
        self.ca = ClusterCA.create(root / "ca", "securetrain.local", now())
        self.endpoint = ""
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        """The coordinator."""
        ours = [sys.executable, "-m", "securetrain", "coordinator", "--ca", str(self.root / "ca")]
        job = ["--job", "run-7", "--nnodes", "1", "--policy", "dev", "--port", "0", "--json"]
        process = self.popen([*ours, *job])
        assert process.stdout is not None
        said = map(json.loads, process.stdout)
        self.endpoint = next(line["address"] for line in said if line["event"] == "ready")
        # What it says is read on, so that it never waits for its reader.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return process

    def popen(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.processes.append(process)
        return process

    def identity(self) -> Path:
        key = PrivateKey.generate(KeyKind.P256)
        ca = self.ca.job("run-7", now(), self.ca.key)
        leaf = self.ca.issue(
            *(ca, Role.NODE, key.public, now()),
            node="node-0",
            lifetime=timedelta(hours=1),
            how=How.COMMAND,
        )
        store_identity(self.root / "id", key, leaf, ca.certificate, now())
        return self.root / "id"

    def run(self, identity: Path, *more: str) -> subprocess.Popen[str]:
        """A launcher whose worker says where it is and sleeps."""
        script = self.root / "sleeper.py"
        script.write_text(SLEEPER)
        return self.popen(
            run_command(
                self.root / "run",
                *("--policy", "dev", "--rdzv-id", "run-7", "--rdzv-endpoint", self.endpoint),
                *("--rdzv-conf", f"identity={identity}", *more, str(script)),
                str(self.root / "started"),
            )
        )

    def worker(self, launcher: subprocess.Popen[str]) -> int:
        """The worker's process id, once it runs."""
        started = self.root / "started"
        until(lambda: started.exists() and started.read_text(), "the worker runs")
        return outside(int(started.read_text()), launcher.pid)

    def ended(self, launcher: subprocess.Popen[str], code: str, exit_code: int) -> str:
        """Check how it ended; returns what it said."""
        _, err = launcher.communicate(timeout=PATIENCE)
        assert f"error {code}:" in err, err
        assert launcher.returncode == exit_code
        summary = json.loads((self.root / "run" / "run.json").read_text())
        assert (summary["code"], summary["exit_code"]) == (code, exit_code)
        last = (self.root / "run" / "ledger.jsonl").read_text().splitlines()[-1]
        assert json.loads(last)["body"]["event"]["event"] == "close"
        return err


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, clean_environment())
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
    made.ca.close()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_node_that_is_revoked_while_it_trains(cluster):
    cluster.start()
    launcher = cluster.run(cluster.identity())
    worker = cluster.worker(launcher)
    cluster.ca.revoke(Kind.NODE, "node-0", "the machine was sold", now(), cluster.ca.key())
    err = cluster.ended(launcher, "ST-ADMN-013", int(ExitCode.REVOKED))
    assert "the machine was sold" in err
    assert not is_running(worker)
    # And it does not come back.
    again = cluster.run(cluster.root / "id")
    cluster.ended(again, "ST-ADMN-013", int(ExitCode.REVOKED))


@pytest.mark.many
def test_a_coordinator_that_is_killed_while_it_trains(cluster):
    """The node trains on for its lease, and ends at once when it is told to."""
    coordinator = cluster.start()
    launcher = cluster.run(cluster.identity())
    worker = cluster.worker(launcher)
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(5)  # longer than two beats
    assert is_running(worker)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == int(ExitCode.INTERRUPTED)
    assert not is_running(worker)


def test_no_coordinator_at_all(cluster):
    cluster.endpoint = f"127.0.0.1:{free_port()}"
    err = cluster.ended(cluster.run(cluster.identity()), "ST-ADMN-007", 1)
    assert "start the coordinator first" in err
    assert "no report" not in err, "no worker was started"


def test_a_coordinator_of_another_ca(cluster):
    """The node's identity is for a job of the same name, by somebody else."""
    cluster.start()
    other = JobCA.create("securetrain.local", "run-7", now())
    write_identity(cluster.root / "id", other, "node-0", now())
    cluster.ended(cluster.run(cluster.root / "id"), "ST-ADMN-002", 1)


def test_an_identity_that_has_expired(cluster):
    cluster.start()
    key = PrivateKey.generate(KeyKind.P256)
    ca = cluster.ca.job("run-7", now(), cluster.ca.key)
    then = now() - timedelta(hours=2)
    leaf = ca.issue(Role.NODE, key.public, then, node="node-0", lifetime=timedelta(hours=1))
    store_identity(cluster.root / "id", key, leaf, ca.certificate, then)
    launcher = cluster.run(cluster.root / "id")
    _, err = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == int(ExitCode.POLICY)
    assert "error ST-IDEN-005:" in err, err
