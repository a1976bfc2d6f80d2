# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The hardened reference of Kubernetes with RDMA passes, and each fault in it is found alone."""

from pathlib import Path

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW

REFERENCE = Path(__file__).parents[3] / "examples/kubernetes/rdma-reference.yaml"
CHECKS = [one for one in load_checks() if one.kind in {"workload", "cluster", "launch"}]
HARDENED = load_policy("hardened").policy

KEYS = "secret:\n                secretName: pretrain-keys\n                defaultMode: 0400"
RUN = "command: [securetrain, run]"
TOKEN = "env: [{name: HF_TOKEN, value: hf_%s}]\n              " % ("Ab1" * 12)
FAULTS = {
    "ST-K8S-001": ("privileged: false", "privileged: true"),
    "ST-K8S-002": ("hostNetwork: false", "hostNetwork: true"),
    "ST-K8S-003": ("hostNetwork: false", "hostIPC: true"),
    "ST-K8S-004": ("hostNetwork: false", "hostPID: true"),
    "ST-K8S-005": (
        KEYS,
        "hostPath: {path: /etc}",
    ),
    "ST-K8S-006": (
        KEYS,
        "hostPath: {path: /run/containerd/containerd.sock}",
    ),
    "ST-K8S-007": ("add: [IPC_LOCK]", "add: [IPC_LOCK, SYS_PTRACE]"),
    "ST-K8S-008": ("runAsNonRoot: true\n              runAsUser: 20000", "runAsUser: 0"),
    "ST-K8S-009": ("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true"),
    "ST-K8S-010": ("trainer@sha256:4b1c7d0a", "trainer:2.1 #"),
    "ST-K8S-012": ("validationFailureAction: Enforce", "validationFailureAction: Audit"),
    "ST-K8S-013": (RUN, TOKEN + RUN),
    "ST-K8S-014": ("automountServiceAccountToken: false", "automountServiceAccountToken: true"),
    "ST-K8S-015": ("resources: [configmaps]", "resources: [secrets]"),
    "ST-K8S-016": ("policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]"),
    "ST-K8S-017": ("enforce: baseline", "enforce: privileged"),
    "ST-K8S-019": (
        KEYS,
        "hostPath: {path: /dev/infiniband}",
    ),
    "ST-K8S-020": ("rdma/hca: 1", "example.com/other: 1"),
    "ST-K8S-021": ("sizeLimit: 64Gi", "x: y"),
    "ST-K8S-022": ("clusterIP: None", "type: NodePort"),
    "ST-K8S-030": ("kinds: [Pod]", "kinds: [Job]"),
    "ST-RDZ-003": (RUN, "command: [torchrun, --rdzv-backend=c10d]"),
}


def failures(tmp_path, text):
    path = tmp_path / "reference.yaml"
    path.write_text(text)
    bodies = collect_manifests([path], now=NOW)
    return audit(facts_of(bodies), CHECKS, HARDENED, NOW).of(State.FAIL, State.UNKNOWN)


def test_the_reference_fails_nothing_and_leaves_nothing_open(tmp_path):
    assert failures(tmp_path, REFERENCE.read_text()) == ()


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_in_the_reference_is_found(tmp_path, check):
    old, new = FAULTS[check]
    text = REFERENCE.read_text()
    assert old in text
    found = {one.check for one in failures(tmp_path, text.replace(old, new))}
    assert check in found
    assert len(found) <= 2, found
