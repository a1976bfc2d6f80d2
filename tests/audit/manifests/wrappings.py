# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One insecure pod in the kinds that hold pods."""

from textwrap import indent

POD = """\
hostNetwork: true
hostIPC: true
hostPID: true
volumes:
- name: sock
  hostPath:
    path: /var/run/docker.sock
- name: shm
  emptyDir:
    medium: Memory
containers:
- name: trainer
  image: example.com/train:1
  command: [torchrun, train.py]
  env:
  - name: HF_TOKEN
    value: hf_abcdefghijklmnopqrstuvwxyz012345
  securityContext:
    privileged: true
    runAsUser: 0
    capabilities:
      add: [SYS_ADMIN]
  volumeMounts:
  - name: sock
    mountPath: /sock
"""


def wrap(head, depth, pod=POD):
    """The pod `depth` columns to the right, below a head that ends before it."""
    return head + indent(pod, " " * depth)


def crd(kind, group, spec, depth):
    head = f"apiVersion: {group}\nkind: {kind}\nmetadata:\n  name: w\n  namespace: train\n"
    return wrap(f"{head}spec:\n{spec}", depth)


JOB = crd("Job", "batch/v1", "  template:\n    spec:\n", 6)

WRAPPINGS = {
    "Pod": crd("Pod", "v1", "", 2),
    "Job": JOB,
    "Deployment": crd("Deployment", "apps/v1", "  template:\n    spec:\n", 6),
    "PyTorchJob": crd(
        "PyTorchJob",
        "kubeflow.org/v1",
        "  pytorchReplicaSpecs:\n    Worker:\n      template:\n        spec:\n",
        10,
    ),
    "MPIJob": crd(
        "MPIJob",
        "kubeflow.org/v2beta1",
        "  mpiReplicaSpecs:\n    Worker:\n      template:\n        spec:\n",
        10,
    ),
    "ClusterTrainingRuntime": crd(
        "ClusterTrainingRuntime",
        "trainer.kubeflow.org/v1alpha1",
        "  template:\n    spec:\n      replicatedJobs:\n      - name: node\n        template:\n"
        "          spec:\n            template:\n              spec:\n",
        16,
    ),
    "JobSet": crd(
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        "  replicatedJobs:\n  - name: w\n    template:\n      spec:\n        template:\n"
        "          spec:\n",
        12,
    ),
    "RayCluster": crd(
        "RayCluster", "ray.io/v1", "  headGroupSpec:\n    template:\n      spec:\n", 8
    ),
    "LeaderWorkerSet": crd(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io/v1",
        "  leaderWorkerTemplate:\n    workerTemplate:\n      spec:\n",
        8,
    ),
    "Volcano Job": crd(
        "Job",
        "batch.volcano.sh/v1alpha1",
        "  tasks:\n  - name: w\n    template:\n      spec:\n",
        8,
    ),
    "ConfigMap string": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: launch}\ndata:\n"
    "  job.yaml: |\n" + indent(JOB, "    "),
    "here-document": "#!/bin/sh\nset -e\nkubectl apply -f - <<'EOF'\n" + JOB + "EOF\necho done\n",
    # beyond the twelve
    "List": "apiVersion: v1\nkind: List\nitems:\n- " + indent(JOB, "  ")[2:],
    "unheard-of kind": crd(
        "ToyJob", "example.com/v1", "  gangs:\n  - podTemplate:\n      spec:\n", 8
    ),
    "task of Ansible": "- hosts: all\n  tasks:\n  - kubernetes.core.k8s:\n      definition:\n"
    + indent(JOB, "        "),
    "argument": "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  initContainers: []\n"
    "  containers:\n  - name: apply\n    image: x\n    command: [bash, -c]\n    args:\n    - |\n"
    "      kubectl apply -f - <<EOF\n" + indent(JOB, "      ") + "      EOF\n",
}
