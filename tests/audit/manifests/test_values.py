# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Effective values: what the container says, what the pod passes on, what Kubernetes fills in."""

import pytest

from securetrain.audit.facts import Outcome, SecretKind
from tests.audit.manifests.worlds import said
from tests.tables import each

HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"


def test_defaults_are_known_and_stand_where_they_are_missing(container):
    made = container(HEAD + "  containers:\n  - name: c\n    image: x\n")
    assert said(made, "privileged").value in {None, "false"}
    needed = {one.field.rpartition("securityContext.")[2]: one.text for one in made.settings}
    assert {*needed} == {
        *("allowPrivilegeEscalation", "capabilities.drop[*]", "runAsNonRoot"),
        "seccompProfile.type",
    }
    assert {(one.outcome, one.at.line) for one in needed.values()} == {(Outcome.ABSENT, 6)}
    assert said(made, "privileged").reason == "not set"


def test_the_pod_passes_on_what_it_may(read):
    (pod,) = (
        read(
            HEAD + "  securityContext:\n    runAsNonRoot: true\n    runAsUser: 1000\n"
            "    seccompProfile: {type: RuntimeDefault}\n    privileged: true\n"
            "  containers:\n  - name: c\n    securityContext: {runAsUser: 0}\n"
        )
        .workloads[0]
        .pods
    )
    assert said(pod, "runAsNonRoot").value == "true"
    assert said(pod, "runAsNonRoot").at.line == 6
    assert said(pod, "seccompProfile.type").value == "RuntimeDefault"
    assert not [one for one in pod.settings if "privileged" in one.field]  # no setting of a pod
    own = {one.field: one.text.value for one in pod.containers[0].settings}
    assert own.pop("securityContext.runAsUser") == "0"
    assert {*own} == {
        "securityContext.allowPrivilegeEscalation",
        "securityContext.capabilities.drop[*]",
    }


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ('"true"', Outcome.ERROR),
        ("maybe", Outcome.ERROR),
        ("[true]", Outcome.ERROR),
        ("{a: b}", Outcome.ERROR),
        ("1", Outcome.ERROR),
        ("~", Outcome.ABSENT),
        ("", Outcome.ABSENT),
        ("Yes", Outcome.OK),
    ],
)
def test_a_value_of_a_wrong_type_is_not_known(container, value, outcome):
    text = f"  containers:\n  - name: c\n    securityContext: {{privileged: {value}}}\n"
    assert said(container(HEAD + text), "privileged").outcome is outcome


def test_a_key_that_stands_twice_is_not_known_and_a_problem(read):
    found = read(HEAD + "  hostPID: true\n  hostPID: false\n  containers: [{name: c}]\n")
    assert said(found.workloads[0].pods[0], "hostPID").outcome is Outcome.ERROR
    (problem,) = found.problems.values()
    assert (problem.why, problem.at.line) == ("the key hostPID stands twice", 6)


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python", ("docker.io/library/python", None)),
        ("a/b:1", ("docker.io/a/b", None)),
        ("docker.io/a/b:1", ("docker.io/a/b", None)),
        ("nvcr.io/nvidia/pytorch:24", ("nvcr.io/nvidia/pytorch", None)),
        ("localhost:5000/a", ("localhost:5000/a", None)),
        (f"r.io/a:1@sha256:{'0' * 64}", ("r.io/a", f"sha256:{'0' * 64}")),
    ],
)
def test_an_image_is_taken_apart(container, image, parts):
    made = container(HEAD + f"  containers:\n  - name: c\n    image: {image}\n")
    found = (made.repository, made.digest)
    assert tuple(one.value for one in found) == parts


def test_a_digest_that_is_none_pins_nothing(container):
    made = container(HEAD + "  containers:\n  - name: c\n    image: r.io/a@sha256:short\n")
    assert made.digest.outcome is Outcome.ABSENT


@pytest.mark.parametrize(
    ("written", "read_"),
    [("/", "/"), ("//etc/", "/etc"), ("/a/../etc", "/etc"), ("/dev//shm/.", "/dev/shm")],
)
def test_a_path_of_the_host_has_one_spelling(read, written, read_):
    text = HEAD + f"  containers: [{{name: c}}]\n  volumes:\n  - hostPath: {{path: {written}}}\n"
    assert read(text).workloads[0].pods[0].volumes[0].host_path.value == read_


def test_a_mount_says_what_of_the_host_is_seen(container):
    made = container(
        HEAD + "  containers:\n  - name: c\n    volumeMounts:\n"
        "    - {name: v, mountPath: /x, subPath: ../etc}\n    - {name: w, mountPath: /y}\n"
        "  volumes:\n  - {name: v, hostPath: {path: /var}}\n"
    )
    assert made.mounts[0].host_path.value == "/etc"
    assert made.mounts[1].host_path.outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("{name: HF_TOKEN, value: hf_abcdefghijklmnopqrstuvwx}", SecretKind.PATTERN),
        ("{name: DB, value: 'postgres://u:pw123456@h/db'}", SecretKind.URL),
        ("{name: WANDB_API_KEY, value: 0123456789abcdef}", SecretKind.NAME),
        ("{name: WANDB_API_KEY, value: <your-key>}", None),
        ("{name: TOKENIZERS_PARALLELISM, value: 'false'}", None),
        ("{name: HF_TOKEN_PATH, value: /run/secrets/hf}", None),
        ("{name: MAX_TOKENS, value: '4096'}", None),
        ("{name: PILOT_JWT_PUB_KEY_REFRESH_INTERVAL, value: 1m}", None),
        ("{name: BROKEN_POD_LABEL_KEY, value: cni.example.com/uninitialized}", None),
        ("{name: METADATA_TOKEN, value: X-aws-ec2-metadata-token}", None),
        ("{name: INSECURE_NO_PASSWORD, value: restore}", None),
        ("{name: API_KEY, value: EMPTY}", None),
        ("{name: SIGNING_KEY, value: '-----BEGIN CERTIFICATE-----'}", None),
        ("{name: AUTH_TOKEN, value: prompt}", None),
        ("{name: DB_PASSWORD, value: enterYourSecret==}", None),
        ("{name: COOKIE_EXPIRE, value: 24h0m0s}", None),
        ("{name: GF_SECURITY_ADMIN_PASSWORD, value: admin}", SecretKind.NAME),
        ("{name: AWS_SECRET_ACCESS_KEY, value: minio123}", SecretKind.NAME),
        ("{name: API_TOKEN, value: Zx81kkQpW2}", SecretKind.NAME),
        ("{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}", None),
    ],
)
def test_secrets_in_the_environment(container, entry, kind):
    made = container(HEAD + f"  containers:\n  - name: c\n    env:\n    - {entry}\n")
    assert [one.kind.value for one in made.secrets] == ([kind] if kind else [])
    assert kind is None or made.env[0].text.outcome is Outcome.DENIED


def test_secrets_in_arguments_stand_at_their_line(container):
    made = container(
        HEAD + "  containers:\n  - name: c\n    args:\n    - |\n      set -e\n"
        "      export AWS_SECRET_ACCESS_KEY=abcdefghijklmnop\n      train --api-key qwertyuiop12\n"
        "    - --token\n    - abcdefgh1234\n"
    )
    assert [(one.name, one.at.line) for one in made.secrets] == [
        ("AWS_SECRET_ACCESS_KEY", 10),
        ("--api-key", 11),
        ("--token", 13),
    ]


def test_what_comes_as_a_whole_from_another_object_is_not_known(container):
    made = container(
        HEAD + "  containers:\n  - name: c\n    envFrom: [{configMapRef: {name: env}}]\n"
    )
    assert made.visible_devices.outcome is Outcome.ERROR
    assert "configMap env" in made.visible_devices.reason


def test_ray_has_no_access_control_until_something_says_so(read):
    text = "apiVersion: ray.io/v1\nkind: RayCluster\nspec:\n  headGroupSpec:\n    template:\n"
    pod = "      spec: {containers: [{name: head, env: [{name: RAY_AUTH_MODE, value: %s}]}]}\n"
    bare = read(text + "      spec: {containers: [{name: head}]}\n").workloads[0].ray.value
    assert (bare.auth.value, bare.auth.at.line) == ("disabled", 3)
    assert read(text + pod % "token").workloads[0].ray.value.auth.value == "token"
    options = read(text + pod % "disabled" + "  authOptions: {mode: token}\n").workloads[0]
    assert options.ray.value.auth.value == "token"


def test_a_trainjob_leaves_to_its_runtime_what_it_does_not_say(read):
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n"
        "  runtimeRef: {name: torch}\n  trainer:\n    image: x:1\n"
    )
    made = read(text).workloads[0].pods[0].containers[0]
    assert made.image.value == "x:1"
    assert said(made, "privileged").outcome is Outcome.ERROR
    assert "torch" in said(made, "privileged").reason


def test_a_trainjob_that_only_names_its_runtime_is_a_workload(read):
    """What its runtime sets is not known; what selects its pods is."""
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n"
        "  runtimeRef: {name: torch}\n"
    )
    (pod,) = read(text).workloads[0].pods
    assert said(pod, "hostNetwork").outcome is Outcome.ERROR
    assert pod.ingress.limited.value is False
    assert said(pod.containers[0], "privileged").outcome is Outcome.ERROR


def test_what_a_trainjob_overrides_leaves_the_rest_to_its_runtime(read):
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n"
        "  runtimeRef: {name: torch}\n  podTemplateOverrides:\n  - spec:\n      hostPID: true\n"
        "      containers: [{name: node, env: []}]\n"
    )
    override = next(pod for pod in read(text).workloads[0].pods if said(pod, "hostPID").value)
    assert said(override, "hostNetwork").outcome is Outcome.ERROR
    assert "torch" in said(override.containers[0], "privileged").reason


def test_a_patch_of_argo_leaves_open_what_the_pod_does_not_set(read):
    text = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec:\n  templates:\n  - name: t\n"
        "    hostPID: false\n    container: {image: x}\n"
    )
    assert said(read(text).workloads[0].pods[0], "hostNetwork").value in {None, "false"}
    patched = text + "    podSpecPatch: '{\"hostNetwork\": true}'\n"
    pod = read(patched).workloads[0].pods[0]
    assert said(pod, "hostNetwork").outcome is Outcome.TEMPLATED
    assert "podSpecPatch" in said(pod, "hostNetwork").reason
    assert said(pod, "hostPID").value in {None, "false"}


def test_two_secrets_of_one_container_are_told_apart(container):
    token = "hf_abcdefghijklmnopqrstuvwx"
    made = container(
        HEAD + f"  containers:\n  - name: c\n    args:\n    - |\n      a {token}\n      b {token}\n"
    )
    assert len({one.label for one in made.secrets}) == len(made.secrets) == 2


@each(
    "id, keys, outcome, kind",
    ("under a condition", "{{ if .x }}\n    hostPath: {path: /}\n    {{ end }}", "templated", None),
    (
        "one of two",
        "{{ if .x }}\n    hostPath: {path: /}\n    {{ else }}\n    emptyDir: {}\n    {{ end }}",
        *("templated", None),
    ),
    ("inserted", '{{ include "x" . }}', "templated", None),
    ("two", "hostPath: {path: /}\n    emptyDir: {}", "error", None),
    ("none", "", "ok", "emptyDir"),
    ("a path of a template", "hostPath: {path: '{{ .x }}'}", "ok", "hostPath"),
)
def test_the_kind_of_a_volume(read, keys, outcome, kind):
    text = HEAD + f"  containers: [{{name: c}}]\n  volumes:\n  - name: v\n    {keys}\n"
    (volume,) = read(text).workloads[0].pods[0].volumes
    assert (volume.kind.outcome, volume.kind.value) == (outcome, kind)
    assert (volume.host_path.value == "/") == (outcome == "error")


def test_an_image_of_this_machine_is_not_of_docker_io(container):
    made = container(HEAD + "  containers: [{name: c, image: 'localhost/x:1'}]\n")
    assert made.repository.value == "localhost/x"
