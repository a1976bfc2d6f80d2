# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pods of operators whose containers stand beside: what is set is judged, the rest is open."""

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.facts import Outcome
from securetrain.audit.sources.catalogue import load_checks
from securetrain.core.vocabulary import State
from securetrain.report.pages.groups import why
from tests.audit.conftest import NOW
from tests.audit.manifests.worlds import said

NODESET = """\
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata: {name: h100, namespace: slurm}
spec:
  slurmd:
    image: ghcr.io/example/slurmd:25.11
    securityContext:
      privileged: true
    command: [bash, -c, "pip install x"]
  logfile: {image: alpine}
  template:
    metadata: {labels: {app: slurmd}}
    spec:
      hostPID: true
      volumes:
      - {name: sock, hostPath: {path: /run/containerd/containerd.sock}}
"""
POLICY = """\
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: slurm}
spec:
  podSelector: {matchLabels: {app.kubernetes.io/name: slurmd}}
  policyTypes: [Ingress, Egress]
"""
DYNAMO = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: d}
spec:
  services:
    Frontend: {extraPodSpec: {mainContainer: {image: a}}}
    Worker:
      extraPodSpec:
        hostNetwork: true
        mainContainer:
          image: b
          env: [{name: HF_TOKEN, value: hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345}]
"""
OTHER = "apiVersion: example.com/v1\nkind: Other\nmetadata: {name: p}\nspec: "


def test_containers_beside_a_pod_are_of_that_pod(read):
    found = read(NODESET)
    (pod,) = found.workloads[0].pods
    assert pod.pointer == "/spec/template/spec"
    assert [one.name for one in pod.containers] == ["slurmd", "logfile"]
    slurmd = pod.containers[0]
    assert (said(slurmd, "privileged").value, said(slurmd, "privileged").at.line) == ("true", 8)
    assert said(slurmd, "allowPrivilegeEscalation").value == "true"  # a privileged one always may
    assert (said(pod, "hostPID").value, said(pod, "hostPID").at.line) == ("true", 14)
    assert [one.host_path.value for one in pod.volumes] == ["/run/containerd/containerd.sock"]
    assert [pair.text.value for pair in pod.labels] == ["slurmd"]
    launches = [body.launch for body in found.bodies if hasattr(body, "launch")]
    assert [one.program for launch in launches for one in launch.fetches.value or ()] == ["pip"]


def test_what_they_do_not_set_the_operator_may(read):
    (pod,) = read(NODESET).workloads[0].pods
    logfile = pod.containers[1]
    for reading in (
        *(
            said(logfile, "privileged"),
            said(logfile, "runAsNonRoot"),
            said(logfile, "seccompProfile.type"),
        ),
        *(
            said(logfile, "allowPrivilegeEscalation"),
            said(logfile, "runAsUser"),
        ),
        *(
            said(pod, "hostNetwork"),
            said(pod, "hostIPC"),
            pod.account.token_mounted,
            pod.account.name,
        ),
    ):
        assert reading.outcome is Outcome.ERROR
        assert reading.reason == "the operator of NodeSet may set it"


def test_labels_of_an_operator_may_be_those_that_a_policy_selects(read):
    (pod,) = read(NODESET).workloads[0].pods
    assert pod.ingress.limited.value is False  # no policy at all
    (pod,) = read(NODESET + POLICY).workloads[0].pods
    assert pod.ingress.limited.value is None
    assert "the operator of NodeSet" in pod.ingress.limited.reason


def test_a_pod_spec_with_a_container_under_a_key(read):
    pods = read(DYNAMO).workloads[0].pods
    assert [one.role for one in pods] == ["Frontend", "Worker"]
    assert [one.containers[0].image.value for one in pods] == ["a", "b"]
    assert said(pods[1], "hostNetwork").value == "true"
    assert [one.name for one in pods[1].containers[0].secrets] == ["HF_TOKEN"]


def test_a_pod_with_containers_of_both_sorts_is_one(read):
    text = NODESET.replace(
        "      hostPID", "      containers: [{name: more, image: y}]\n      hostPID"
    )
    (pod,) = read(text).workloads[0].pods
    assert [one.name for one in pod.containers] == ["slurmd", "logfile", "more"]


@pytest.mark.parametrize(
    "text",
    [
        NODESET.replace("slinky.slurm.net/v1beta1", "v1"),  # a kind of Kubernetes' own
        NODESET.replace("slinky.slurm.net/v1beta1", "policy.k8s.io/v1"),
        # names of images that the operator puts together
        OTHER + "{driver: {image: driver, repository: nvcr.io/nvidia, env: []}}\n",
        OTHER + "{a: {image: {tag: x}, env: []}}\n",
        # an image and nothing of a container's
        OTHER + "{photo: {image: a.png}}\n",
    ],
)
def test_what_is_no_container(read, text):
    assert not any(one.pods for one in read(text).workloads)


def test_what_of_it_is_a_template_is_open(read):
    (pod,) = (
        read(NODESET.replace("privileged: true", "privileged: {{ .Values.p }}")).workloads[0].pods
    )
    assert said(pod.containers[0], "privileged").outcome is Outcome.TEMPLATED


RAY = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: j}
spec:
  entrypoint: python train.py
  runtimeEnvYAML: |
    working_dir: "https://example.com/code.zip"
    pip:
    - torch==2.9.0
    env_vars:
      WANDB_API_KEY: "0011223344556677889900112233445566778899"
      MODE: fast
"""


def test_a_runtime_environment_of_ray_is_what_ray_does_of_it(read):
    launches = [body.launch for body in read(RAY).bodies if hasattr(body, "launch")]
    fetches = [one for launch in launches for one in launch.fetches.value or ()]
    assert {(one.program, one.at.line) for one in fetches} == {("curl", 7), ("pip", 8)}
    assert not any(one.pinned.value for one in fetches)
    secrets = [one for launch in launches for one in launch.secrets.value or ()]
    assert [(one.name, one.at.line) for one in secrets] == [("WANDB_API_KEY", 11)]
    assert not any("00112233" in str(launch) for launch in launches)


@pytest.mark.parametrize("text", ["x", "a: b", "pip:", "env_vars: {", "'$(boom)`\n:\n- : :\n"])
def test_any_text_of_a_runtime_environment_is_read(read, text):
    block = "\n".join("    " + line for line in text.splitlines())
    assert read(RAY[: RAY.index("    working")] + block + "\n").problems == {}


@pytest.mark.parametrize("key", ["tag", "version", "repository"])
def test_a_key_that_the_cluster_drops_hides_no_container(read, key):
    text = NODESET.replace("    securityContext:", f"    {key}: x\n    securityContext:", 1)
    (pod,) = read(text).workloads[0].pods
    assert said(pod.containers[0], "privileged").value == "true"
    assert pod.containers[0].digest.reason == "the operator puts its name together"


def test_a_finding_shows_the_capability_that_decides_and_no_other(read, fixtures):
    text = NODESET.replace("privileged: true", "capabilities: {add: [IPC_LOCK, SYS_NICE]}")
    result = audit(facts_of(read(text).bodies), load_checks(), fixtures.policy, NOW)
    (found,) = [one for one in result.of(State.FAIL) if one.check == "ST-K8S-020"]
    assert why(found) == "securityContext.capabilities.add IPC_LOCK"
