# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a template decides is open and says so; what it leaves alone is known, at its line."""

import pytest

from securetrain.audit.facts import Outcome
from tests.audit.manifests.worlds import said

CHART = """\
{{- if .Values.enabled }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "trainer.fullname" . }}
  labels:
    {{- include "trainer.labels" . | nindent 4 }}
spec:
  template:
    spec:
      hostIPC: true
      hostNetwork: {{ .Values.hostNetwork }}
      {{- if .Values.hostPID }}
      hostPID: true
      {{- end }}
      containers:
      - name: {{ .Chart.Name }}
        image: nvcr.io/nvidia/pytorch:{{ .Values.tag }}
        securityContext:
          privileged: true
          {{- toYaml .Values.securityContext | nindent 10 }}
        env:
        - name: HF_TOKEN
          value: {{ .Values.token | quote }}
        {{- range .Values.env }}
        - name: {{ .name }}
          value: {{ .value }}
        {{- end }}
        volumeMounts:
        - name: shm
          mountPath: /dev/shm
      volumes:
      {{- with .Values.volumes }}
        {{- toYaml . | nindent 6 }}
      {{- end }}
      - name: shm
        hostPath:
          path: /dev/shm
{{- end }}
"""


@pytest.fixture
def chart(read):
    return read(CHART).workloads[0]


def opened(reading, name):
    return reading.outcome is Outcome.TEMPLATED and name in reading.reason


def test_what_the_template_leaves_alone_is_known(chart):
    (pod,) = chart.pods
    assert said(pod, "hostIPC").value == "true"
    assert said(pod, "hostIPC").at.line == 11
    (trainer,) = pod.containers
    assert said(trainer, "privileged").value == "true"
    assert said(trainer, "privileged").at.line == 20
    shm = pod.volumes[-1]
    assert shm.host_path.value == "/dev/shm"
    assert shm.host_path.at.line == 38


def test_what_it_decides_is_open_and_names_the_variable(chart):
    (pod,) = chart.pods
    (trainer,) = pod.containers
    assert opened(said(pod, "hostNetwork"), ".Values.hostNetwork")
    assert opened(said(pod, "hostPID"), ".Values.hostPID")
    assert opened(trainer.digest, ".Values.tag")
    assert opened(said(trainer, "runAsNonRoot"), ".Values.securityContext")
    assert opened(said(trainer, "runAsUser"), ".Values.securityContext")
    assert opened(trainer.secrets[0].kind, ".Values.token")
    assert any(opened(one.name, ".Values.env") for one in trainer.env)
    assert any(opened(one.name, "") for one in pod.volumes)
    assert opened(chart.name, "trainer.fullname")
    assert opened(chart.namespace, "release")
    assert opened(chart.rendered, "")


def test_a_condition_around_the_whole_opens_nothing(container):
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n{% if x %}\n  - name: a\n    image: b\n"
    )
    made = container(text + "    securityContext: {privileged: true}\n{% endif %}\n")
    assert said(made, "privileged").value == "true"
    assert said(made, "privileged").at.line == 8


def test_other_branches_of_a_condition_are_no_duplicates(read):
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n{{ if .Values.a }}\n  hostNetwork: true\n{{ else }}\n"
        "  hostNetwork: false\n{{ end }}\n  containers: [{name: c}]\n"
    )
    found = read(text)
    assert said(found.workloads[0].pods[0], "hostNetwork").outcome is Outcome.TEMPLATED
    assert [one.help for one in found.problems.values()] == ["render it first"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("{{ .Values.a | default false }}", ".Values.a"),
        ("{{ host_pid }}", "host_pid"),
        ("<%= host_pid %>", "host_pid"),
        ("${HOST_PID:-false}", "HOST_PID"),
        ("$HOST_PID", "HOST_PID"),
        ("!Ref HostPid", "!Ref"),
        ("${{ matrix.pid }}", "matrix.pid"),
    ],
)
def test_every_language_of_templates_opens_a_value(read, value, name):
    text = f"apiVersion: v1\nkind: Pod\nspec:\n  hostPID: {value}\n  hostIPC: true\n"
    pod = read(text + "  containers: [{name: c}]\n").workloads[0].pods[0]
    assert opened(said(pod, "hostPID"), name)
    assert said(pod, "hostIPC").value == "true"
    assert said(pod, "hostIPC").at.line == 5


@pytest.mark.parametrize(
    "block",
    [
        "    {{- toYaml .Values.sc | nindent 6 }}\n",
        "      {{- toYaml .Values.sc | nindent 6 }}\n      readOnlyRootFilesystem: true\n",
        "      readOnlyRootFilesystem: true\n      {{- toYaml .Values.sc | nindent 6 }}\n",
        "{{ toYaml .Values.sc | indent 6 }}\n",
        "      <<: {{ .Values.sc }}\n      runAsGroup: 1\n",
    ],
)
def test_a_block_that_is_inserted_opens_what_the_mapping_lacks(container, block):
    text = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: c\n    securityContext:\n"
    made = container(text + block + "    image: x\n")
    assert said(made, "privileged").outcome is not Outcome.OK
    assert said(made, "runAsNonRoot").outcome is not Outcome.OK
    assert made.image.value == "x"


def test_a_block_whose_place_cannot_be_told_opens_everything_that_is_not_set(read):
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  hostPID: true\n  containers:\n  - name: c\n"
        "    image: x\n     {{ .Values.block }}\n  hostIPC: false\n"
    )
    pod = read(text).workloads[0].pods[0]
    assert said(pod, "hostPID").value == "true"
    assert said(pod, "hostNetwork").outcome is not Outcome.OK
    assert said(pod.containers[0], "privileged").outcome is not Outcome.OK


def test_variables_of_a_shell_are_open_in_its_here_documents_alone(read):
    body = "apiVersion: v1\nkind: Pod\nspec:\n  hostPID: $(pid)\n  containers: [{name: c}]\n"
    (one,) = read(f"cat <<EOF\n{body}EOF\n", "a.sh").workloads
    assert said(one.pods[0], "hostPID").outcome is Outcome.TEMPLATED
    (one,) = read(f"cat <<'EOF'\n{body}EOF\n", "a.sh").workloads
    assert said(one.pods[0], "hostPID").outcome is Outcome.ERROR


def test_a_template_is_a_problem_even_where_all_of_it_was_read(read):
    (entry,) = read(CHART).problems.values()
    assert "open lines" in entry.why


@pytest.mark.parametrize(
    "written", ["{privileged: {{ wanted }}}", '{privileged: {{ dict "a" {}}}, x: y}']
)
def test_a_brace_behind_an_expression_belongs_to_yaml(read, written):
    containers = f"[{{name: c, securityContext: {written}}}]"
    text = f"kind: Pod\napiVersion: v1\nspec: {{containers: {containers}}}\n"
    (pod,) = read(text).workloads[0].pods
    assert said(pod.containers[0], "privileged").outcome is Outcome.TEMPLATED
