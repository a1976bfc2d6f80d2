# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Charts and kustomizations are put together by tools that strangers' files cannot turn on us."""

import os
import shutil
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.kubernetes.collect.rendering import confined, tools
from securetrain.audit.subjects.kubernetes.collect.rendering.render import Renderer
from securetrain.audit.subjects.kubernetes.facts.cluster import ClusterFacts
from securetrain.audit.subjects.kubernetes.facts.workload import WorkloadFacts
from tests.audit.manifests.worlds import said
from tests.audit.worlds import open_entries
from tests.vocabulary import refused
from tests.waiting import in_time

TEMPLATE = """\
{{- if .Values.enabled }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "trainer.fullname" . }}
spec:
  template:
    spec:
      hostNetwork: {{ .Values.hostNetwork }}
      containers:
      {{- range .Values.helpers }}
      - name: {{ .name }}
        image: {{ .image }}
      {{- end }}
      - name: trainer
        image: "{{ .Values.image }}"
        securityContext:
          {{- toYaml .Values.securityContext | nindent 10 }}
{{- end }}
"""
MADE = """\
---
# Source: trainer/templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata:
  name: release-trainer
spec:
  template:
    spec:
      hostNetwork: true
      containers:
      - name: side
        image: busybox
      - name: trainer
        image: "pytorch:2.9"
        securityContext:
          privileged: true
"""
OPTIONAL = """\
{{- if .Values.debug }}
apiVersion: v1
kind: Pod
metadata:
  name: debug
spec:
  hostPID: true
  containers:
  - name: shell
    image: busybox
{{- end }}
"""


@pytest.fixture
def tool(tmp_path):
    """A program of this name, alone on its PATH."""

    def make(name, script):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(0o755)
        return str(path.parent)

    return make


@pytest.fixture
def chart(tmp_path):
    root = tmp_path / "audited" / "trainer"
    (root / "templates").mkdir(parents=True)
    (root / "Chart.yaml").write_text("apiVersion: v2\nname: trainer\nversion: 1.0.0\n")
    (root / "values.yaml").write_text("enabled: true\n")
    (root / "templates/_helpers.tpl").write_text('{{- define "trainer.fullname" }}x{{ end }}\n')
    (root / "templates/job.yaml").write_text(TEMPLATE)
    return root


@pytest.fixture
def render(now):
    def go(path, folders, **options):
        bodies = collect_manifests([path], now=now, renderer=Renderer(folders, **options))
        cluster = bodies[-1]
        assert isinstance(cluster, ClusterFacts)
        problems = open_entries(cluster)
        return [one.workload for one in bodies if isinstance(one, WorkloadFacts)], problems

    return go


def prints(text):
    return f"cat <<'END'\n{text}END"


def lines(*readings):
    return [one.at.line for one in readings]


def test_a_chart_is_rendered_and_its_values_stand_where_the_template_has_them(chart, tool, render):
    (job,), problems = render(chart.parent, tool("helm", prints(MADE)))
    (pod,) = job.pods
    side, trainer = pod.containers
    assert problems == {}
    assert job.rendered.value is True
    assert said(pod, "hostNetwork").value == "true"
    assert said(trainer, "privileged").value == "true"
    assert trainer.image.value == "pytorch:2.9"
    assert trainer.image.at.path == str(chart / "templates/job.yaml")
    # The image has a line; what toYaml inserted stands where the block around it begins.
    assert lines(job.name, said(pod, "hostNetwork"), side.image) == [5, 9, 13]
    assert lines(trainer.image, said(trainer, "privileged")) == [16, 17]


def test_without_helm_its_templates_are_not_known_and_helm_is_named(chart, render, tmp_path):
    (job,), problems = render(chart, str(tmp_path))
    assert job.rendered.outcome is Outcome.TEMPLATED
    read = problems[str(chart / "Chart.yaml")]
    assert "helm is not on PATH" in read.why


def test_a_template_that_other_values_turn_on_is_read_as_it_stands(chart, tool, render):
    (chart / "templates/debug.yaml").write_text(OPTIONAL)
    workloads, problems = render(chart, tool("helm", prints(MADE)))
    assert {one.kind for one in workloads} == {"Job", "Pod"}
    (name,) = problems
    assert name.startswith(str(chart / "templates/debug.yaml"))


def test_helm_gets_the_folder_the_values_and_nothing_of_ours(
    chart, tool, render, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("HELM_PLUGINS", "/home/me/plugins")
    values = tmp_path / "prod.yaml"
    values.write_text("secretive: false\n")
    say = 'env; echo "$@"; cat "${@: -1}"; touch "$HOME/own"'
    report = tmp_path / "report"
    folders = tool("helm", f"({say}) | sed 's/^/# /'\n{prints(MADE)}")
    output = tools.run_tool(
        [f"{folders}/helm", "template", "--values", str(values)], [values], scratch(tmp_path)
    )
    report.write_text(output)
    assert "s3cr3t" not in output
    assert "/home/me" not in output
    assert "# secretive: false" in output
    assert render(chart, folders, values=(values,))[1] == {}


def scratch(tmp_path):
    path = tmp_path / "scratch"
    path.mkdir(exist_ok=True)
    return path


def confined_run(tool, tmp_path, script, readable=()):
    folders = tool("helm", script)
    return tools.run_tool([f"{folders}/helm"], list(readable), scratch(tmp_path))


def test_a_tool_reaches_no_network_not_even_loopback(tool, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attack = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; echo tried"
        plain = subprocess.run(["/bin/bash", "-c", attack], capture_output=True, check=True)
        assert plain.stdout == b"reached\ntried\n"
        assert confined_run(tool, tmp_path, attack) == "tried\n"


def test_a_tool_reads_and_writes_nothing_of_others(tool, tmp_path):
    secret = tmp_path / "audited.txt"
    secret.write_text("not yours\n")
    allowed = tmp_path / "chart"
    allowed.mkdir()
    (allowed / "link").symlink_to(secret)
    (allowed / "own").write_text("mine\n")
    script = (
        f"cat {allowed}/own {allowed}/link {secret} /etc/passwd 2>/dev/null\n"
        f"echo changed > {allowed}/own; echo x > {tmp_path}/new; kill -0 {os.getpid()} && echo seen"
    )
    said = confined_run(tool, tmp_path, f"({script}) 2>/dev/null; true", [allowed])
    assert said == "mine\n"
    assert (allowed / "own").read_text() == "mine\n"
    assert not (tmp_path / "new").exists()


def test_a_tool_that_does_not_end_is_ended_with_what_it_started(
    tool, tmp_path, monkeypatch, chart, render
):
    monkeypatch.setattr(tools, "SECONDS", 0.5)
    folders = tool("helm", "sleep 4711 & sleep 4711")
    (job,), problems = render(chart, folders)
    assert "did not end" in problems[str(chart / "Chart.yaml")].why
    assert job.rendered.outcome is Outcome.TEMPLATED
    # The kernel ends what is left in a namespace after its first process, not with it.
    until = time.monotonic() + 60
    while b"sleep\x004711\x00" in _commands():
        in_time(until, "something was left running")
        time.sleep(0.05)


def _commands():
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(entry.read_bytes())
    return found


def test_output_is_bounded(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "MAX_OUTPUT", 1 << 16)
    refused(tools.NotRenderedError, "wrote more than", confined_run, tool, tmp_path, "yes")


def test_what_a_tool_says_on_failure_is_not_repeated(tool, chart, render):
    said = "Error: execution error at (trainer/templates/job.yaml:7:3): password hunter2 is weak"
    (job,), problems = render(chart, tool("helm", f"echo '{said}' >&2; exit 1"))
    reason = problems[str(chart / "Chart.yaml")].why
    assert reason.endswith("helm ended with exit code 1 at trainer/templates/job.yaml:7")
    assert job.rendered.outcome is Outcome.TEMPLATED


def test_without_walls_a_tool_does_not_run(tool, chart, render, tmp_path, monkeypatch):
    broken = tmp_path / "confined.py"
    broken.write_text("import sys; sys.stderr.write('confined: no Landlock\\n'); sys.exit(125)")
    monkeypatch.setattr(confined, "__file__", str(broken))
    _, problems = render(chart, tool("helm", prints(MADE)))
    assert "cannot be kept from the network here (no Landlock)" in (
        problems[str(chart / "Chart.yaml")].why
    )


def test_a_tool_that_others_could_have_written_does_not_run(tool, chart, render, tmp_path):
    folders = tool("helm", prints(MADE))
    own = chart / "bin"
    shutil.copytree(folders, own)
    (tmp_path / "bin").chmod(0o777)
    for path, why in ((folders, "writable by everybody"), (str(own), "below what is audited")):
        _, problems = render(chart, path)
        assert why in problems[str(chart / "Chart.yaml")].why
    _, problems = render(chart, "bin:.:")
    assert "helm is not on PATH" in problems[str(chart / "Chart.yaml")].why


def test_nothing_is_run_when_asked_not_to(chart, tool, render, tmp_path):
    _, problems = render(chart, tool("helm", "exit 3"), off=True)
    assert "--no-render" in problems[str(chart / "Chart.yaml")].why


# -- kustomizations -----------------------------------------------------------------------------

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: trainer
spec:
  template:
    spec:
      containers:
      - name: trainer
        image: pytorch:2.9
        securityContext:
          privileged: true
"""
STRATEGIC = """\
resources: [../base]
patches:
- path: shm.yaml
- target: {kind: Deployment}
  patch: |-
    - op: add
      path: /spec/template/spec/hostPID
      value: true
"""
SHM = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: trainer}
spec:
  template:
    spec:
      hostNetwork: true
      containers:
      - name: trainer
        securityContext: {privileged: false}
"""
KUBECTL = shutil.which("kustomize") or shutil.which("kubectl")
real = pytest.mark.skipif(KUBECTL is None, reason="neither kustomize nor kubectl is here")


@pytest.fixture
def overlay(tmp_path):
    root = tmp_path / "deploy"
    for folder, files in (
        ("base", {"kustomization.yaml": "resources: [deployment.yaml]\n"}),
        ("prod", {"kustomization.yaml": STRATEGIC, "shm.yaml": SHM}),
    ):
        (root / folder).mkdir(parents=True)
        for name, text in files.items():
            (root / folder / name).write_text(text)
    (root / "base/deployment.yaml").write_text(DEPLOYMENT)
    return root


def real_folders():
    return str(Path(KUBECTL or "").parent)


@real
def test_an_overlay_is_put_together_and_each_value_stands_where_it_was_set(overlay, render):
    (one,), problems = render(overlay, real_folders())
    (pod,) = one.pods
    (trainer,) = pod.containers
    assert problems == {}
    assert said(trainer, "privileged").value in {None, "false"}
    assert (
        said(trainer, "privileged").at.path,
        said(trainer, "privileged").at.line,
    ) == (
        str(overlay / "prod/shm.yaml"),
        10,
    )
    assert (trainer.image.at.path, trainer.image.at.line) == (
        str(overlay / "base/deployment.yaml"),
        10,
    )
    assert said(pod, "hostNetwork").at.path == str(overlay / "prod/shm.yaml")
    assert (
        said(pod, "hostPID").value,
        said(pod, "hostPID").at.path,
        said(pod, "hostPID").at.line,
    ) == (
        "true",
        str(overlay / "prod/kustomization.yaml"),
        8,
    )


@real
def test_a_base_outside_of_the_given_folder_is_not_read(overlay, render):
    _, problems = render(overlay / "prod", real_folders())
    (read,) = problems.values()
    assert "exit code" in read.why


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("resources: ['https://user:pw@example.com/base.yaml']", "example.com"),
        ("resources: ['github.com/org/repo//base?ref=v1']", "github.com"),
        ("bases: ['git@example.org:org/repo.git']", "example.org"),
        ("components: ['ssh://git@example.org/repo']", "example.org"),
        ("patches: [{path: 'https://example.net/p.yaml'}]", "example.net"),
        ("transformers: ['https://example.net/t.yaml']", "example.net"),
        ("helmCharts: [{name: x, repo: 'https://example.com'}]", "helmCharts"),
    ],
)
def test_nothing_of_the_network_is_ever_asked_for(overlay, render, tool, text, named):
    """Not by the tool either: it does not run."""
    (overlay / "base/kustomization.yaml").write_text(f"{text}\n")
    folders = tool("kustomize", "echo ran; exit 0")
    _, problems = render(overlay, folders)
    read = problems[str(overlay / "prod/kustomization.yaml")]
    assert read.why == f"not put together: it names {named}, which is never fetched"
    assert "pw" not in read.why


def test_without_kustomize_files_are_read_one_by_one_and_it_is_named(overlay, render, tmp_path):
    workloads, problems = render(overlay, str(tmp_path))
    assert len(workloads) == 2
    (read,) = problems.values()
    assert "kustomize or kubectl is not on PATH" in read.why


def test_a_pipe_or_a_link_for_a_kustomization_is_left_alone(tmp_path, render, tool):
    (tmp_path / "one").mkdir()
    os.mkfifo(tmp_path / "one/kustomization.yaml")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/kustomization.yaml").symlink_to("/etc/passwd")
    workloads, problems = render(tmp_path / "one", tool("kustomize", "echo ran"))
    assert workloads == []
    assert stat.S_ISFIFO((tmp_path / "one/kustomization.yaml").stat().st_mode)
    assert all("ran" not in read.why for read in problems.values())
    assert render(tmp_path / "two", tool("kustomize", "echo ran"))[0] == []
