# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What no manifest should be: an error that names the file, and never a pass or much memory."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from securetrain.audit.facts import Outcome
from securetrain.audit.parser import files, objects, tree
from securetrain.audit.subjects.kubernetes.collect import collect as collecting
from tests.audit.manifests.worlds import said

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c}]\n"
LIMIT_MIB = 200
BOMB = "kind: Pod\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
HEAD = "apiVersion: v1\nkind: Pod\n"
BROKEN = {
    "bomb": BOMB,
    "a bomb of merges": "k: &a {x: 1}\n"
    + "".join(f"k{i}: &a {{{', '.join(f'b{j}: *a' for j in range(10))}}}\n" for i in range(12)),
    "cycle of aliases": HEAD + "x: &x\n  y: *x\n",
    "deep": HEAD + "x: " + "[" * 10_000,
    "tabs": HEAD + "spec:\n\thostPID: true\n",
    "unclosed": HEAD + "metadata: {name: p\nspec: {}\n",
    "key of a list": HEAD + "? [a]\n: b\n",
    "control characters": HEAD + "x: \x01\n",
    "nested blocks": "{{ if a }}\n" * 1000,
    "braces": "x: " + "{{" * 100_000,
    "UTF-16 without a mark": POD.encode("utf-16-le"),
    "bytes": b"\xff\xfe\xe9",
    "a program": b"\x7fELF" + bytes(100),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_parse_is_a_finding_with_its_file(read, tmp_path, name):
    found = read(BROKEN[name])
    assert not found.workloads
    entry, *_ = found.problems.values()
    assert entry.why
    assert entry.at.path == str(tmp_path / "a.yaml")


def test_one_bad_document_hides_none_of_the_others(read, tmp_path):
    found = read(f"{POD}---\n{{{{{{\n---\n{POD}")
    assert [name.rpartition("#")[2] for name in found.by_file] == ["1", "3"]
    (entry,) = found.problems.values()
    assert (entry.at.path, entry.at.line) == (f"{tmp_path}/a.yaml", 8)


@pytest.mark.parametrize(
    "data",
    [
        POD.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + POD.encode(),
        POD.encode("utf-16"),
        POD.encode("utf-32"),
        ("%YAML 1.1\n---\n" + POD + "...\n").encode(),
    ],
)
def test_other_spellings_of_text_are_read(read, data):
    found = read(data)
    assert [one.name.value for one in found.workloads] == ["p"]
    assert not found.problems


def test_nothing_that_is_no_regular_file_is_opened(collect, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    found = collect(tmp_path)
    (entry,) = found.problems.values()
    assert "not a regular file" in entry.why


def test_links_out_of_the_folder_are_not_followed(collect, tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "a.yaml").write_text(POD)
    (inside / "own.yaml").write_text(POD)
    (inside / "beside.yaml").symlink_to("own.yaml")
    (inside / "out.yaml").symlink_to("../outside/a.yaml")
    (inside / "folder").symlink_to(outside)
    (inside / "cycle").symlink_to(".")
    (inside / "loop.yaml").symlink_to("loop.yaml")
    found = collect(inside)
    assert {name.rpartition("/")[2].partition("#")[0] for name in found.by_file} == {
        "own.yaml",
        "beside.yaml",
    }
    refused = {name.rpartition("/")[2] for name in found.problems}
    assert refused == {"out.yaml", "folder", "cycle", "loop.yaml"}


def test_what_is_not_there_or_not_readable_is_said(collect, tmp_path, monkeypatch):
    found = collect(tmp_path / "none.yaml")
    assert [one.why for one in found.problems.values()] == ["No such file or directory"]

    def denied(path, limit):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a.yaml").write_text(POD)
    monkeypatch.setattr(files, "read_file", denied)
    found = collect(tmp_path)
    (entry,) = found.problems.values()
    assert (entry.why, entry.help[:13]) == ("Permission denied", "run the audit")
    assert not found.workloads


def test_more_than_is_read_is_said(read, tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "MAX_WORKLOADS", 2)
    monkeypatch.setattr(objects, "MAX_DOCUMENTS", 4)
    found = read("---\n".join([POD] * 6))
    assert len(found.workloads) == 2
    assert len(found.problems) == 2
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    (entry,) = read(POD).problems.values()
    assert "larger than the limit" in entry.why


def test_types_that_nobody_expects_break_nothing(read):
    found = read(
        "apiVersion: v1\nkind: Pod\nmetadata: x\nspec: {containers: [{name: [a], image: {a: b},"
        " securityContext: yes, env: 3, volumeMounts: {a: b}, ports: x, resources: 1}, 7],"
        " volumes: {a: b}, securityContext: [1]}\n"
    )
    first = found.workloads[0].pods[0].containers[0]
    assert said(first, "privileged").outcome is Outcome.ERROR
    assert first.image.outcome is Outcome.ERROR


CHILD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
found = collect_manifests([Path(sys.argv[1])], now=datetime.now(UTC))[-1].ledger
assert any(one.why for one in found), "nothing was said"
status = Path("/proc/self/status").read_text()  # ru_maxrss would be that of whoever started this
print(int(status.partition("VmHWM:")[2].split()[0]) >> 10)
"""


def mebibytes(path):
    command = [sys.executable, "-c", CHILD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout)


def test_a_huge_file_costs_little_memory(tmp_path):
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.write(POD.encode())
        file.truncate(100 << 20)
    assert mebibytes(path) < LIMIT_MIB


ITEM = (
    "- apiVersion: v1\n  kind: Pod\n  metadata: {name: p%d}\n  spec:\n    hostPID: true\n"
    "    containers:\n    - name: c\n      env: [%s]\n"
)
ENV = ", ".join(f"{{name: V{i}, value: w}}" for i in range(20))


def listed(number, env=ENV):
    """The output of kubectl get -A -o yaml: kind comes last."""
    items = "".join(ITEM % (i, env) for i in range(number))
    return f"apiVersion: v1\nitems:\n{items}kind: List\nmetadata: {{resourceVersion: ''}}\n"


def test_a_list_of_too_many_values_is_read_one_object_after_the_other(read, monkeypatch, tmp_path):
    whole = read(listed(30))
    monkeypatch.setattr(tree, "MAX_NODES", 500)
    found = read(listed(30))
    assert found.problems == {}
    assert found.by_file == whole.by_file
    assert [said(one.pods[0], "hostPID").at.line for one in found.workloads][:2] == [7, 15]


def test_a_file_that_is_a_list_is_never_whole_in_memory(read, monkeypatch):
    whole = read(listed(30))
    for module in (files, tree):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 8 << 10)
    monkeypatch.setattr(tree, "_CHUNK", 512)
    found = read(listed(30))
    assert found.problems == {}
    assert found.by_file == whole.by_file
    compact = json.dumps(yaml.safe_load(listed(30)))
    assert len(read(compact, "a.json").workloads) == 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (listed(3, ", ".join([ENV] * 40)), "without the end of an object"),
        (listed(30).replace("kind: List", "x: {"), "no List that can be read"),
        (HEAD + "x: " + "y" * 20_000, "without the end of an object"),
        (listed(30) + "---\n" + POD, "more than one document"),
        (listed(30).replace("kind: List", "kind: Pod"), "it is no List"),
        (listed(30) + "spec: {hostPID: true}\n", "more than items"),
        (listed(30).replace("  kind: Pod\n", ""), "has no kind"),
    ],
)
def test_what_is_large_and_no_whole_list_is_said(read, monkeypatch, text, said):
    for module in (files, tree):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 8 << 10)
    monkeypatch.setattr(tree, "_CHUNK", 512)
    (entry,) = read(text).problems.values()
    assert said in entry.why


LARGE = {
    "documents": lambda: "---\n".join([POD] * 100_000),
    "items": lambda: (
        '{"apiVersion":"v1","kind":"ConfigMap","data":{'
        + ",".join(f'"k{i}":"v"' for i in range(500_000))
        + "}}"
    ),
    "wide": lambda: HEAD + 'x: "' + "\U0001f600" * 4_000_000 + '"\n' + "y: {\n",
    "holes": lambda: HEAD + "spec:\n" + "  a: {{ .Values.x }}\n" * 200_000,
    "conditions": lambda: (
        HEAD + "spec:\n  containers:\n" + "{{ if .a }}\n  - name: x\n{{ end }}\n" * 30_000
    ),
    "blocks": lambda: HEAD + "spec:\n" + "  {{- toYaml .Values.x | nindent 2 }}\n" * 90_000,
    "here-documents": lambda: "#!/bin/sh\n" + f"cat <<EOF\n{POD}\n" * 50_000 + "x: {\nEOF\n",
}


@pytest.mark.many
def test_a_list_of_a_large_cluster_costs_little_memory(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(listed(40_000))
    assert path.stat().st_size > 20 << 20
    assert mebibytes(path) < LIMIT_MIB


@pytest.mark.many
@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_inside_costs_little_memory(tmp_path, name):
    path = tmp_path / ("a.sh" if name == "here-documents" else "a.yaml")
    path.write_text(LARGE[name](), encoding="utf-8")
    assert mebibytes(path) < LIMIT_MIB
