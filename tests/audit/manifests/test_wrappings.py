# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same pod gives the same facts wherever it stands, each at its own line."""

import msgspec
import pytest

from securetrain.audit.parser.values import is_known
from tests.audit.manifests.worlds import said
from tests.audit.manifests.wrappings import JOB, WRAPPINGS

FIELDS = ("hostNetwork", "hostIPC", "hostPID")


def bare(value):
    """Facts without their places, and without what differs by design."""
    if isinstance(value, dict):
        left_out = {"at", "role", "pointer", "ingress", "egress", "account", "labels"}
        return {key: bare(inner) for key, inner in value.items() if key not in left_out}
    return [bare(one) for one in value] if isinstance(value, list | tuple) else value


def wrapped(read, name):
    text = WRAPPINGS[name]
    found = read(text, "run.sh" if text.startswith("#!") else "a.yaml")
    assert not found.problems
    return text.split("\n"), found.workloads[-1]


@pytest.mark.parametrize("name", WRAPPINGS)
def test_every_value_stands_at_its_line(read, name):
    lines, workload = wrapped(read, name)

    def at(place, text):
        assert text in lines[place.line - 1], (place, lines[place.line - 1])

    (pod,) = workload.pods
    (trainer,) = pod.containers
    for field in FIELDS:
        assert said(pod, field).value == "true"
        at(said(pod, field).at, f"{field}: true")
    assert said(trainer, "privileged").value == "true"
    at(said(trainer, "privileged").at, "privileged: true")
    assert said(trainer, "runAsUser").value == "0"
    at(said(trainer, "runAsUser").at, "runAsUser: 0")
    assert said(trainer, "capabilities.add[*]").value == "SYS_ADMIN"
    at(said(trainer, "capabilities.add[*]").at, "add: [SYS_ADMIN]")
    at(trainer.image.at, "image: example.com/train:1")
    at(trainer.at, "- name: trainer")
    (secret,) = trainer.secrets
    at(secret.at, "value: hf_")
    sock, shm = pod.volumes
    assert sock.host_path.value == "/var/run/docker.sock"
    at(sock.host_path.at, "path: /var/run/docker.sock")
    assert shm.medium.value == "Memory"
    assert not is_known(shm.size_limit)
    at(shm.size_limit.at, "emptyDir:")
    at(trainer.mounts[0].path.at, "mountPath: /sock")
    assert trainer.mounts[0].host_path.value == "/var/run/docker.sock"
    # not set: the block that lacks it
    at(said(trainer, "runAsNonRoot").at, "securityContext:")


@pytest.mark.parametrize("name", WRAPPINGS)
def test_facts_are_the_same_but_for_their_places(read, name):
    _, reference = wrapped(read, "Pod")
    _, workload = wrapped(read, name)
    mine, other = (bare(msgspec.to_builtins(one.pods)) for one in (workload, reference))
    assert mine == other


def test_no_value_of_a_secret_is_in_the_facts(read):
    for name, text in WRAPPINGS.items():
        found = read(text, "run.sh" if text.startswith("#!") else "a.yaml")
        assert all(b"hf_abcdef" not in body.to_json() for body in found.bodies), name


def test_definitions_of_kinds_and_patterns_of_policies_are_no_workloads(read):
    schema = WRAPPINGS["Pod"].replace("v1\n", "apiextensions.k8s.io/v1\n", 1)
    assert not read(schema.replace("kind: Pod", "kind: CustomResourceDefinition")).workloads
    pattern = WRAPPINGS["Job"].replace("batch/v1", "kyverno.io/v1").replace("Job", "ClusterPolicy")
    assert not read(pattern).workloads


def test_assets_name_file_document_and_way(read, tmp_path):
    def names(text, name="a.yaml"):
        return [one.removeprefix(f"{tmp_path}/") for one in read(text, name).by_file]

    assert names(f"# one\n---\n{JOB}---\n{JOB}") == ["a.yaml#1", "a.yaml#2"]
    assert names(WRAPPINGS["List"]) == ["a.yaml#1/items[0]"]
    assert names(WRAPPINGS["ConfigMap string"]) == ["a.yaml#1/job.yaml#1"]
    assert names(WRAPPINGS["here-document"], "run.sh") == ["run.sh#1"]
    two = WRAPPINGS["here-document"] + WRAPPINGS["here-document"]
    assert names(two, "run.sh") == ["run.sh#1", "run.sh/2#1"]


def test_documents_survive_a_round_trip(read):
    from securetrain.audit.documents import BODIES, facts_of
    from securetrain.audit.facts import decode_body

    bodies = read(WRAPPINGS["PyTorchJob"]).bodies
    assert {one.kind for one in facts_of(bodies).documents} >= {"workload", "cluster"}
    for body in bodies:
        assert decode_body(body.to_json(), BODIES, "x") == body


def test_nothing_beside_a_pod_hides_one(read):
    text = (
        "apiVersion: example.com/v1\nkind: X\nspec:\n  containers: [{name: a}, {limits: 1}]\n"
        "  template:\n    spec:\n      hostPID: true\n      containers: [{name: b}]\n"
    )
    (workload,) = read(text).workloads
    assert [said(pod, "hostPID").value for pod in workload.pods] == [None, "true"]
    assert [one.name for one in workload.pods[0].containers] == ["a", "#2"]
