# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`securetrain coordinator`, the command, on a host of a cluster: killed and started again."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.member.identity_dir import store_identity
from tests.launch.two_nodes import job_of
from tests.launch.worlds import clean_environment
from tests.waiting import until

PATIENCE = 150
PORT = 29400

# In front of the command: a lease of some seconds, which no policy can ask for.
PROLOGUE = """
import runpy, sys
from securetrain.rendezvous.coordinator.settings import CoordinatorSettings
CoordinatorSettings.__init__.__kwdefaults__["lease"] = float(sys.argv[1]) or None
sys.argv = ["securetrain", *sys.argv[2:]]
runpy.run_module("securetrain", run_name="__main__")
"""


class CoordinatorProcess:
    """One job's coordinator on one host, with its CA and the identities of its nodes."""

    def __init__(self, host, folder, *, job, nnodes, env, lease=0.0, name="coordinator") -> None:
        self.host, self.folder, self.job, self.nnodes = host, folder, job, nnodes
        self.env, self.lease = env, lease
        self.ca, self.run_dir = folder / "ca", folder / name
        self.process: subprocess.Popen[bytes] | None = None

    def make_identities(self, names) -> None:
        now = datetime.now(UTC)
        cluster = ClusterCA.create(self.ca, "securetrain.local", now)
        ca = cluster.job(self.job, now, cluster.key)
        for node in names:
            key = PrivateKey.generate(KeyKind.P256)
            leaf = cluster.issue(
                *(ca, Role.NODE, key.public, now),
                node=node,
                lifetime=timedelta(hours=1),
                how=How.COMMAND,
            )
            store_identity(self.folder / node, key, leaf, ca.certificate, now)

    def start(self) -> None:
        """Start it; returns when it listens."""
        command = ["coordinator", "--ca", self.ca, "--job", self.job, "--nnodes", self.nnodes]
        command += ["--policy", self.folder / "policy.yaml", "--run-dir", self.run_dir]
        command += ["--bind", self.host.address, "--port", PORT, "--last-call", "1", "--json"]
        ours = [sys.executable, "-c", PROLOGUE, str(self.lease), *map(str, command)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.host.command(*ours), stdout=log, stderr=subprocess.STDOUT, env=self.env
            )
        until(self.listens, lambda: f"it never listened: {self.said()[-3000:]}", alive=self.process)

    @property
    def log(self) -> Path:
        return Path(self.folder, f"{self.run_dir.name}.log")

    def said(self) -> str:
        return self.log.read_text()

    def listens(self) -> bool:
        table = self.host.namespace.execute("cat", "/proc/self/net/tcp").decode()
        rows = [line.split() for line in table.splitlines()]
        wanted = f":{PORT:04X}"
        return any(row[1].endswith(wanted) and row[3] == "0A" for row in rows)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE)

    def wait(self, patience: float) -> int:
        assert self.process is not None
        return self.process.wait(patience)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What its ledger says of such events."""
        path = self.run_dir / "ledger.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = [json.loads(line)["body"]["event"] for line in lines if line.endswith(b"}")]
        return [event for event in found if event["event"] in names]


@contextmanager
def commanded(*, cluster, folder, kind, names, job="", env=None, lease=0.0) -> Iterator[Any]:
    """The command on the first host, and nodes of a kind; what is started ends with it."""
    job, env = job or job_of(folder), env or clean_environment()
    coordinator = CoordinatorProcess(
        cluster.hosts[0], folder, job=job, nnodes=str(len(names)), env=env, lease=lease
    )
    coordinator.make_identities(names)
    coordinator.start()
    try:
        nodes = kind(cluster=cluster, folder=folder, port=PORT, job=job, env=env, names=names)
        nodes.process = coordinator
        try:
            yield nodes
        finally:
            nodes.end()
    finally:
        coordinator.end()
