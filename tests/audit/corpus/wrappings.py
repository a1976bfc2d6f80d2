# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One insecure pod in twelve wrappings, with the labels of the corpus."""

from textwrap import indent
from typing import Final

POD: Final = """\
hostNetwork: true  #@ K8S-002
hostPID: true  #@ K8S-004
hostIPC: true  #@ K8S-003
automountServiceAccountToken: true  #@ K8S-014
restartPolicy: Never
containers:
- name: trainer
  image: registry.example.com/team/trainer:1.4  #@ K8S-010
  command: [bash, -c]
  args:
  - |
    pip install -r requirements.txt  #@ K8S-027
    torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=head:29400 train.py  #@ RDZ-003, RDZ-009
  securityContext:
    runAsUser: 0  #@ K8S-008
    privileged: true  #@ K8S-001, K8S-009
    capabilities:
      add: [SYS_ADMIN]  #@ K8S-007
  env:
  - name: HF_TOKEN
    value: hf_wrappedEXAMPLEtokenEXAMPLEwrapped  #@ K8S-013
  volumeMounts:
  - {name: root, mountPath: /host}
  - {name: sock, mountPath: /var/run/docker.sock}
  - {name: shm, mountPath: /dev/shm}
  - {name: ib, mountPath: /dev/infiniband}
volumes:
- name: root
  hostPath:
    path: /  #@ K8S-005
- name: sock
  hostPath: {path: /var/run/docker.sock}  #@ K8S-006
- name: shm
  hostPath: {path: /dev/shm}  #@ K8S-021
- name: ib
  hostPath: {path: /dev/infiniband}  #@ K8S-019
"""

_HEAD: Final = "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: wrapped, namespace: wrapped}}\n"


def _wrapped(api: str, kind: str, body: str, spaces: int) -> str:
    """An object whose `body` ends where the pod's spec begins, so far indented."""
    return _HEAD.format(api=api, kind=kind) + body + indent(POD, " " * spaces)


_JOB: Final = _wrapped("batch/v1", "Job", "spec:\n  template:\n    spec:\n", 6)

WRAPPINGS: Final = {
    "pod.yaml": _wrapped("v1", "Pod", "spec:\n", 2),
    "job.yaml": _JOB,
    "deployment.yaml": _wrapped(
        "apps/v1",
        "Deployment",
        "spec:\n  selector: {matchLabels: {app: w}}\n  template:\n"
        "    metadata: {labels: {app: w}}\n"
        "    spec:\n",
        6,
    ),
    "pytorchjob.yaml": _wrapped(
        "kubeflow.org/v1",
        "PyTorchJob",
        "spec:\n  pytorchReplicaSpecs:\n    Worker:\n      replicas: 2\n      template:\n"
        "        spec:\n",
        10,
    ),
    "mpijob.yaml": _wrapped(
        "kubeflow.org/v2beta1",
        "MPIJob",
        "spec:\n  mpiReplicaSpecs:\n    Worker:\n      template:\n        spec:\n",
        10,
    ),
    "runtime.yaml": _wrapped(
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        "spec:\n  template:\n    spec:\n      replicatedJobs:\n      - name: node\n"
        "        template:\n          spec:\n            template:\n              spec:\n",
        16,
    ),
    "jobset.yaml": _wrapped(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "spec:\n  replicatedJobs:\n  - name: node\n    template:\n      spec:\n        template:\n"
        "          spec:\n",
        12,
    ),
    "raycluster.yaml": _wrapped(
        "ray.io/v1",
        "RayCluster",
        "spec:\n  authOptions: {mode: token}\n  headGroupSpec:\n    rayStartParams: {}\n"
        "    template:\n      spec:\n",
        8,
    ),
    "leaderworkerset.yaml": _wrapped(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "spec:\n  leaderWorkerTemplate:\n    size: 2\n    workerTemplate:\n      spec:\n",
        8,
    ),
    "volcano.yaml": _wrapped(
        "batch.volcano.sh/v1alpha1",
        "Job",
        "spec:\n  minAvailable: 1\n  tasks:\n  - name: worker\n    replicas: 2\n    template:\n"
        "      spec:\n",
        8,
    ),
    "configmap.yaml": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: launch, namespace: wrapped}\ndata:\n"
        "  job.yaml: |\n" + indent(_JOB, "    ")
    ),
    "here-document.sh": (
        "#!/bin/bash\nset -eu\nkubectl apply -f - <<'EOF'\n" + _JOB + "EOF\nkubectl get jobs\n"
    ),
}
