# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit of many nodes and of many manifests: the whole command, with its report.

The facts are this machine's own, under as many names and with as many listeners; the manifests are
made up. The command runs in a process of its own, so that its memory can be measured. Checkov
reads the same manifests, where it is (`benchmarks/corpus.py` says how to name one).
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ab import Figure
from benchmarks.corpus import found_checkov
from securetrain.audit.subjects.node.collect.node import collect_node
from securetrain.cli.main import main

NODES: Final = 1000
NODE_SECONDS: Final = 6
NODE_MEGABYTES: Final = 150
MANIFESTS: Final = 2000
MANIFEST_SECONDS: Final = 10
_POD: Final = """\
serviceAccountName: account-{group}
hostNetwork: {host}
containers:
- name: trainer
  image: registry.example/team/train:{group}
  command: [torchrun, --nnodes, "4", --rdzv_backend, c10d, --rdzv_endpoint, "m-{number}:29500"]
  env:
  - {{name: NCCL_DEBUG, value: INFO}}
  - {{name: RUN_ID, value: "run-{number}"}}
  resources:
    limits: {{nvidia.com/gpu: 8, memory: 100Gi}}
  securityContext:
    privileged: {privileged}
    allowPrivilegeEscalation: {host}
  volumeMounts:
  - {{name: shm, mountPath: /dev/shm}}
  - {{name: data, mountPath: /data-{number}}}
volumes:
- name: shm
  emptyDir: {{medium: Memory}}
- name: data
  hostPath: {{path: /mnt/data-{number}}}
"""
_KINDS: Final = (
    ("v1", "Pod", ""),
    ("batch/v1", "Job", "template:\n  spec:\n"),
    ("apps/v1", "Deployment", "template:\n  spec:\n"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet",
     "replicatedJobs:\n- name: w\n  template:\n    spec:\n      template:\n        spec:\n"),
    ("kubeflow.org/v1", "PyTorchJob",
     "pytorchReplicaSpecs:\n  Worker:\n    replicas: 3\n    template:\n      spec:\n"),
)  # fmt: skip


def fleet() -> Figure:
    """Facts of a thousand nodes, judged from their files."""
    with tempfile.TemporaryDirectory(prefix="audit-fleet-") as folder:
        facts = collect_node(os.environ, now=datetime.now(UTC))
        listeners = facts.node.listeners.value or ()
        for number in range(NODES):
            about = msgspec.structs.replace(facts.collected, hostname=f"node-{number:04}")
            own = (msgspec.structs.replace(one, port=10_000 + number) for one in listeners[:1])
            seen = msgspec.structs.replace(facts.node.listeners, value=(*own, *listeners[1:]))
            node = msgspec.structs.replace(facts.node, listeners=seen)
            data = msgspec.structs.replace(facts, collected=about, node=node).to_json()
            (Path(folder) / f"{number:04}.json").write_bytes(data)
        found = _measured("--facts", folder, "--unsigned")
    met = found["CPU s"] <= NODE_SECONDS and found["MB"] <= NODE_MEGABYTES
    return Figure(
        name="audit-fleet",
        title=f"{NODES} nodes with facts of their own, {len(data) >> 10} KB each, with the report",
        values=found,
        goal=f"<= {NODE_SECONDS} s of CPU, <= {NODE_MEGABYTES} MB",
        goal_met=met,
    )


def manifests() -> Figure:
    """Two thousand manifests, with the report, and Checkov on the same where it is."""
    with tempfile.TemporaryDirectory(prefix="audit-manifests-") as folder:
        _write_manifests(Path(folder))
        found = _measured("-f", folder)
        if program := found_checkov():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [program, "-d", folder, "--framework", "kubernetes", "--compact", "--quiet"]
            subprocess.run(command, capture_output=True, check=False, timeout=3600)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            theirs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found |= {"Checkov's CPU s": theirs, "times": theirs / found["CPU s"]}
    return Figure(
        name="audit-manifests",
        title=f"{MANIFESTS} manifests, with the report",
        values=found,
        goal=f"<= {MANIFEST_SECONDS} s of CPU",
        goal_met=found["CPU s"] <= MANIFEST_SECONDS,
    )


def _write_manifests(folder: Path) -> None:
    for number in range(MANIFESTS):
        version, kind, above = _KINDS[number % len(_KINDS)]
        host, privileged = (str(number % every == 0).lower() for every in (2, 3))
        pod = _POD.format(number=number, group=number % 9, host=host, privileged=privileged)
        last = above.splitlines()[-1] if above else ""
        margin = " " * (len(last) - len(last.lstrip()) + 2 if above else 0)
        spec = above + "".join(f"{margin}{line}\n" for line in pod.splitlines())
        head = f"apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: job-{number}\nspec:\n"
        text = head + "".join(f"  {line}\n" for line in spec.splitlines())
        inside = folder / f"{number // 100:02}"
        inside.mkdir(exist_ok=True)
        (inside / f"{number:04}.yaml").write_text(text)


def _measured(*options: str) -> dict[str, float]:
    """What a whole audit takes."""
    command = [sys.executable, __file__, "audit", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
    return found


def _peak() -> float:
    """The most memory of this process; rusage would also count what its parent had before exec."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "audit-fleet": fleet,
    "audit-manifests": manifests,
}

if __name__ == "__main__":
    code = main(sys.argv[1:])
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = {"CPU s": used.ru_utime + used.ru_stime, "MB": _peak(), "exit code": code}
    print(json.dumps(spent), file=sys.stderr)
