# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A coordinator and `securetrain run` on hosts of a cluster, two or more: for whole jobs."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from securetrain.core.nodestate import STATE_VARIABLE, NodeState
from securetrain.core.rundir import RunDir
from securetrain.identity.log.node_witness import witness_key
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import verify_ledger
from securetrain.network.addresses import Names
from securetrain.network.process_identity import running
from securetrain.testing.cluster import NamespaceCluster
from tests.launch.worlds import clean_environment, run_command
from tests.waiting import in_time

NODES = ("node-a", "node-b")
PATIENCE = 150

POLICY = """\
extends: dev
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: two-nodes, version: 1.0.0, title: Two nodes of a test}
node:
  allow_self_asserted: {max_nodes: 2, reason: a test}
network: {require: [overlay]}
rendezvous: {join_timeout_seconds: 60}
"""

CANARIES = (
    b"CANARY-GRADIENT-0123456789",
    b"CANARY-OBJECT-0123456789",
    b"CANARY-STORE-KEY-0123456789",
)
"""In a tensor, in an object and in the name of a key."""

_SCRIPT = """
import json, os, socket, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
canary = torch.tensor(list(b"CANARY-GRADIENT-0123456789" * 200), dtype=torch.uint8)
dist.broadcast(canary, 0)
dist.all_gather_object([None] * dist.get_world_size(), {"note": "CANARY-OBJECT-0123456789" * 200})
dist.distributed_c10d._get_default_store().set(f"CANARY-STORE-KEY-0123456789-{rank}", "x" * 99)
torch.manual_seed(0)
# model
data = torch.randn(16, 4, generator=torch.Generator().manual_seed(rank))
for step in range(int(sys.argv[3])):
    loss = model(data).square().mean()
    # update
    dist.all_reduce(loss.detach())
    if step == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == sys.argv[4]:
        os._exit(3)
    if step == 2:
        open(f"{sys.argv[1]}/training-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w")
    time.sleep(0.02)
total = loss.detach().clone()
dist.all_reduce(total)
try:
    socket.create_connection((sys.argv[2], 22), 3)
    underlay = "reached"
except OSError as error:
    underlay = error.errno
status = dict(line.split(":\\t") for line in open("/proc/self/status") if ":\\t" in line)
with open(f"{sys.argv[1]}/rank-{rank}.json", "w") as file:
    json.dump({
        "loss": total.item(), "weights": weight.tolist(), "underlay": underlay,
        "master": os.environ["MASTER_ADDR"], "capabilities": int(status["CapBnd"], 16),
        "devices": [name for _, name in socket.if_nameindex()], "run": os.listdir("/run"),
        "pins": {k: v for k, v in os.environ.items() if k.endswith("SOCKET_IFNAME")},
    }, file)
dist.barrier()
dist.destroy_process_group()
"""

TRAIN = _SCRIPT.replace(
    "# model", "model = torch.nn.Linear(4, 1); weight, bias = model.parameters()"
).replace(
    "    # update",
    """\
    for parameter, gradient in zip((weight, bias), torch.autograd.grad(loss, (weight, bias))):
        dist.all_reduce(gradient)
        parameter.data -= 0.1 * gradient / dist.get_world_size()""",
)
TRAIN_DDP = _SCRIPT.replace(
    "# model",
    """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
weight, _ = model.parameters()
optimizer = torch.optim.SGD(model.parameters(), 0.1)""",
).replace(
    "    # update",
    """\
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()""",
)
"""As most people write it. DDP and optimizers import torch's compiler, two CPU seconds a rank."""

# argv: folder, policy, address, job, fewest nodes, lease (0: the policy's), names. Each line of its
# input names a node that is revoked; it serves until the input ends.
COORDINATE = """
import os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from securetrain.core.errors import AdmissionError
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.coordinator import Coordinator, CoordinatorSettings
from securetrain.rendezvous.coordinator.vault import Vault
from securetrain.rendezvous.member.identity_dir import write_identity
folder, now, revoked = Path(sys.argv[1]), lambda: datetime.now(UTC), set()
policy = load_policy(sys.argv[2])
ca = JobCA.create(policy.policy.identity.trust_domain, sys.argv[4], now())
for node in sys.argv[7:]:
    write_identity(folder / node, ca, node, now())
def check(peer, certificate):
    if peer.node in revoked:
        raise AdmissionError("ST-ADMN-013", f"{peer.node} was revoked")
vault = Vault.open(policy.policy, os.environ.get("TEST_SECRETS", "").split(), {})
lease = {"lease": float(sys.argv[6])} if float(sys.argv[6]) else {}
ledger = Ledger(folder / "ledger.jsonl", PrivateKey.generate(), "coordinator", now).begin()
coordinator = Coordinator(
    sys.argv[4], ca, policy, ledger, clock=now,
    min_nodes=int(sys.argv[5]), max_nodes=len(sys.argv[7:]),
    settings=CoordinatorSettings(revoked=check, last_call=1.0, vault=vault, **lease))
print(coordinator.start(sys.argv[3])[1], flush=True)
for line in sys.stdin:
    revoked.add(line.strip())
    coordinator.recheck()
coordinator.stop()
"""


class TwoNodes:
    """A coordinator on the first host, and whatever `start` starts."""

    first = 0
    """The number of the first node's host."""
    shared = ""
    """The one run directory of all nodes; otherwise each has its own."""
    remembers = False
    """Each node keeps a state of its own."""
    nnodes = ""
    patience = PATIENCE

    def __init__(
        self, *, cluster, folder, port, job, env, run_command=run_command, names=NODES, told=None
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.port = port
        self.job = job
        self.names = names
        self._told = told
        self._run_command = run_command
        self._env = env
        self.launchers: dict[str, subprocess.Popen[str]] = {}

    @property
    def coordinator(self):
        return f"{self.cluster.hosts[0].address}:{self.port}"

    def host(self, node):
        return self.cluster.hosts[self.first + self.names.index(node)]

    def run_dir(self, node):
        return self.folder / (self.shared or f"run-{node}")

    def script(self, *, steps=10, crash="", **_: object) -> tuple[object, ...]:
        """What the launchers run, with its words."""
        address = self.cluster.hosts[0].address
        return (self.folder / "train.py", self.folder, address, steps, crash)

    def start(self, node, *options, conf="", nnodes="", env=MappingProxyType({}), **given):
        command = self._run_command(
            self.run_dir(node),
            *("--policy", str(self.folder / "policy.yaml")),
            *("--nnodes", nnodes or self.nnodes or str(len(self.names))),
            *("--rdzv-id", self.job, "--rdzv-endpoint", self.coordinator),
            *("--rdzv-conf", f"identity={self.folder / node}{conf}", *options),
            *map(str, self.script(**given)),
        )
        own = {STATE_VARIABLE: str(self.folder / f"state-{node}")} if self.remembers else {}
        with (self.folder / f"{node}.err").open("w") as err:
            self.launchers[node] = subprocess.Popen(
                self.host(node).command(*command),
                env={**self._env, **own, **env},
                stderr=err,
                text=True,
            )

    def revoke(self, node):
        """Have the coordinator let a node in no more, and put it out."""
        self._told.write(f"{node}\n")
        self._told.flush()

    def wait(self, node):
        return self.launchers[node].wait(self.patience)

    def train(self, *options, **given):
        """Start all of them, which must end well."""
        for node in self.names:
            self.start(node, *options, **given)
        self.end_well()

    def end_well(self, *nodes):
        """Wait for these, or for all: each ends without a fault."""
        codes = {node: self.wait(node) for node in nodes or self.names}
        assert set(codes.values()) == {0}, f"{codes}{self.errors()}"

    def errors(self):
        return "".join(f"\n{node}: {self.err(node)[-3000:]}" for node in self.launchers)

    def poll(self, condition, what, alive=None):
        """Wait for a condition, while all launchers, or those of `alive`, go on."""
        deadline = time.monotonic() + self.patience
        while not condition():
            for node in self.launchers if alive is None else alive:
                assert self.launchers[node].poll() is None, f"{what}: {self.err(node)[-3000:]}"
            in_time(deadline, lambda: f"never happened: {what}{self.errors()}")
            time.sleep(0.05)

    def err(self, node):
        return (self.folder / f"{node}.err").read_text()

    def ranks(self):
        return [
            json.loads((self.folder / f"rank-{n}.json").read_text()) for n in range(len(self.names))
        ]

    def summary(self, node):
        return json.loads(RunDir(self.run_dir(node)).summary.read_text())

    def events(self, node):
        """What the node's ledger says, after its chain and signatures were verified."""
        run = RunDir(self.run_dir(node))
        keys = TrustRoot.load(run.trust, datetime.now(UTC)).keys_for(TrustRole.LEDGER)
        ledger = verify_ledger(run.ledger.read_bytes(), keys, require_closed=True)
        return [entry.body.event for entry in ledger.entries]

    def end(self):
        """End launchers that still run, as a person would."""
        for launcher in self.launchers.values():
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGTERM)
                try:
                    launcher.wait(30)
                except subprocess.TimeoutExpired:
                    launcher.kill()
                    launcher.wait()

    def wait_until_both_train(self):
        marks = [self.folder / f"training-{rank}-0" for rank in range(len(self.names))]
        self.poll(lambda: all(mark.exists() for mark in marks), "the workers train")

    def listeners(self, node):
        """TCP ports of its host that listen, seen from the underlay."""
        host = self.host(node)
        tables = host.namespace.execute("cat", "/proc/self/net/tcp", "/proc/self/net/tcp6")
        rows = [line.split() for line in tables.decode().splitlines()]
        return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}

    def remains(self, node):
        names, host = Names.of(self.job, node), self.host(node)
        found = [names.namespace] if Path("/run/netns", names.namespace).exists() else []
        found += {names.table} & host.tables()
        return found + [f"engine {pid}" for pid in running("wireguard-go", names.device)]


@contextmanager
def coordinated(
    *, cluster, folder, job, env=None, fewest=2, lease=0, names=NODES, kind=TwoNodes, **given
) -> Iterator[TwoNodes]:
    """A coordinator on the first host, under `folder`'s policy; what is started ends with it.

    The folder holds ``policy.yaml`` and the script, ``train.py``. A lease of 0 seconds is the
    policy's; `kind` makes what is yielded, and takes what else is given. The environment is a clean
    one where none is given.
    """
    host, env = cluster.hosts[0], env or clean_environment()
    arguments = [folder, folder / "policy.yaml", host.address, job, fewest, lease, *names]
    with subprocess.Popen(
        host.command(sys.executable, "-c", COORDINATE, *map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as coordinator:
        try:
            assert coordinator.stdout is not None
            nodes = kind(
                cluster=cluster,
                folder=folder,
                port=int(coordinator.stdout.readline()),
                job=job,
                env=env,
                names=names,
                told=coordinator.stdin,
                **given,
            )
            try:
                yield nodes
            finally:
                nodes.end()
        finally:
            coordinator.kill()


def with_witnesses(folder: Path) -> str:
    """The policy of two nodes, each of which is a witness for the other, by its state's key."""
    keys = [witness_key(NodeState(folder / f"state-{node}").witness_key) for node in NODES]
    names = ", ".join(base64.b64encode(key.public.spki).decode() for key in keys)
    return f"{POLICY}checkpoint: {{log: {{witnesses: [{names}], quorum: 2}}}}\n"


def job_of(folder: Path) -> str:
    """A job's name, of this process and this test."""
    return f"job-{os.getpid()}-{folder.name[-8:]}"


THREE = ("node-a", "node-b", "node-c")


@contextmanager
def up(
    folder: Path, *, policy="", script="", hosts=2, job="", names=NODES, **given
) -> Iterator[TwoNodes]:
    """A coordinator in a cluster of its own, for the job of a folder.

    Args:
        folder: Gets ``policy.yaml`` and ``train.py``, where they are given.
        policy: Of the job.
        script: What the workers run.
        hosts: So many.
        job: Its name.
        names: Those of the nodes.
        given: More for `coordinated`.
    """
    for name, text in (("policy.yaml", policy), ("train.py", script)):
        if text:
            (folder / name).write_text(text)
    job = job or job_of(folder)
    with (
        NamespaceCluster.up(hosts) as cluster,
        coordinated(cluster=cluster, folder=folder, job=job, names=names, **given) as nodes,
    ):
        yield nodes


def three_nodes(*, folder: Path, policy="", hosts=3, **given):
    """Three nodes for one script; `policy` is added to that of two nodes."""
    more = POLICY.replace("max_nodes: 2", "max_nodes: 3") + policy
    return up(folder, policy=more, hosts=hosts, names=THREE, **given)
