# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shared storage, from files as tools and administrators write them, to the collectors' facts."""

import os
import time

import pytest

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.storage.collect.ansible import parse_ansible
from securetrain.audit.subjects.storage.collect.exports import parse_exports
from securetrain.audit.subjects.storage.collect.files import collect_exports, collect_storage
from securetrain.audit.subjects.storage.collect.saved import (
    parse_exportfs,
    parse_gpfs,
    parse_lustre,
    parse_showmount,
)
from securetrain.core.errors import UsageError
from tests.audit.conftest import NOW
from tests.vocabulary import refused

T, F = True, False


def rows(exports):
    """Path, client, squash, encrypted; a reading that is not known is its outcome."""
    return [
        (
            e.path,
            e.client,
            *(
                r.value if r.outcome is Outcome.OK else r.outcome.value
                for r in (e.root_squash, e.encrypted)
            ),
        )
        for e in exports
    ]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("/s *(rw)", [("/s", "*", T, F)]),
        ("/s", [("/s", "*", T, F)]),
        ("/s h", [("/s", "h", T, F)]),
        ("/s *(rw,no_root_squash)", [("/s", "*", F, F)]),
        ("/s *(no_root_squash,root_squash)", [("/s", "*", T, F)]),
        ("/s *(root_squash,no_root_squash)", [("/s", "*", F, F)]),
        ("/s *(no_root_squash,all_squash)", [("/s", "*", T, F)]),
        ("/s *(anonuid=0)", [("/s", "*", F, F)]),
        ("/s *(all_squash,anonuid=1000)", [("/s", "*", T, F)]),
        ("/s h (rw,no_root_squash)", [("/s", "h", T, F), ("/s", "*", F, F)]),
        ("/s -no_root_squash a b(root_squash)", [("/s", "a", F, F), ("/s", "b", T, F)]),
        ("/s *(sec=krb5p)", [("/s", "*", T, T)]),
        ("/s *(sec=krb5i)", [("/s", "*", T, F)]),
        ("/s *(sec=krb5p:sys)", [("/s", "*", T, F)]),
        ("/s *(sec=krb5p,no_root_squash)", [("/s", "*", F, T)]),
        ("/s *(sec=sys,no_root_squash,sec=krb5p,root_squash)", [("/s", "*", F, F)]),
        ("/s gss/krb5p(rw)", [("/s", "gss/krb5p", T, T)]),
        ("/s gss/krb5(rw)", [("/s", "gss/krb5", T, F)]),
        ("/s *(xprtsec=mtls:tls)", [("/s", "*", T, T)]),
        ("/s *(xprtsec=mtls:none)", [("/s", "*", T, F)]),
        ("/s 127.0.0.1(rw)", [("/s", "127.0.0.1", T, T)]),
        ("/s 10.0.0.0/8(rw) fd00::/8(ro)", [("/s", "10.0.0.0/8", T, F), ("/s", "fd00::/8", T, F)]),
        ('"/a b" *(rw)', [("/a b", "*", T, F)]),
        ("/a\\040b *(rw)", [("/a b", "*", T, F)]),
        ('"/a#b" *(rw) # no_root_squash', [("/a#b", "*", T, F)]),
        ("#/s *(rw,no_root_squash)", []),
        ("/s *(rw, no_root_squash)", [("/s", "*", "error", "error"), ("/s", "no_root_squash)", "error", "error")]),  # noqa: E501
        ("/s *(anonuid=nobody)", [("/s", "*", "error", "error")]),
        ("/s {{ net }}(rw,no_root_squash)", [("/s", "{{ net }}", F, F)]),
        ("/s *({{ nfs_options }})", [("/s", "*", "templated", "templated")]),
        ("/s *(rw,sec={{ flavor }})", [("/s", "*", T, "templated")]),
        ("/s *(rw,${OPTS})", [("/s", "*", "templated", "templated")]),
        ("/s *(anonuid={{ n }})", [("/s", "*", "templated", F)]),
        ("/s *(fsid={{ n }})", [("/s", "*", T, F)]),
        ("{% for h in hosts %}", []),
    ],
)  # fmt: skip
def test_a_line_of_exports_means_what_nfs_utils_makes_of_it(line, wanted):
    assert rows(parse_exports(f"{line}\r\n", "exports")) == wanted


def test_a_finding_points_at_the_line_and_the_word():
    text = "# ours\n/s \\\n  a(rw) \\\n  b(rw,no_root_squash)\n"
    places = [(e.client, e.place.line, e.place.column) for e in parse_exports(text, "e")]
    assert places == [("a", 3, 3), ("b", 4, 3)]


def test_a_template_names_itself_in_the_reason():
    (export,) = parse_exports("/s *({{ site.nfs options }})", "e")
    assert "{{ site.nfs options }}" in export.root_squash.reason


ANSIBLE = """\
nfs_exports:
  - path: /deep
    options: "*(rw,sync,no_root_squash)"
  - "/listed *(rw,root_squash,sec=krb5p)"
nfs_mounts:
  - mountpoint: /home
    server: '{{ groups["nfs"][0] }}'
    path: /home
    options: async,vers=3
  - {src: "srv:/home", path: /mnt, fstype: nfs, opts: "rw,sync"}
nfs_configurations:
  - nfs_server: a
    nfs_export: /beside
    nfs_export_clients: "*"
    nfs_export_options: "rw,secure,no_root_squash"
shares:
  - dir: /many
    clients:
      - {host: 10.0.0.0/8, options: "rw,no_root_squash"}
      - {host: b, options: "{{ nfs_options }}"}
tasks:
  - copy:
      dest: /etc/exports
      content: |
        # managed
        /block {{ net }}(rw,no_root_squash)
  - ansible.builtin.lineinfile:
      path: /etc/exports
      line: '/line *(rw,no_root_squash)'
vaulted: !vault |
  $ANSIBLE_VAULT;1.1;AES256
about: "call (us) at /dev/null (rw)"
"""


def test_ansible_spells_exports_in_many_ways():
    found = parse_ansible(ANSIBLE, "all.yml")
    assert [(e.path, e.client, e.place.line, e.root_squash.value) for e in found] == [
        ("/deep", "*", 3, F),
        ("/listed", "*", 4, T),
        ("/beside", "*", 15, F),
        ("/many", "10.0.0.0/8", 19, F),
        ("/many", "b", 20, None),
        ("/block", "{{ net }}", 26, F),
        ("/line", "*", 29, F),
    ]


def test_what_showmount_does_not_say_is_not_known():
    found = parse_showmount("Export list for srv:\n/home 10.0.0.0/8,b\n/x (everyone)\n", "s")
    assert rows(found) == [
        ("/home", "10.0.0.0/8", "error", "error"),
        ("/home", "b", "error", "error"),
        ("/x", "*", "error", "error"),
    ]


def test_exportfs_says_what_the_kernel_uses():
    text = (
        "/home \t10.0.0.0/8(sync,wdelay,sec=sys,rw,secure,no_root_squash,no_all_squash)\n"
        "/a/very/long/path/that/stands/alone\n\t\t<world>(sec=krb5p,rw,root_squash)\n"
    )
    assert rows(parse_exportfs(text, "x")) == [
        ("/home", "10.0.0.0/8", F, F),
        ("/a/very/long/path/that/stands/alone", "*", T, T),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "nodemap.active=1\nnodemap.default.admin_nodemap=0\nnodemap.hpc.admin_nodemap=1\n",
            [("nodemap default", "*", T, "error"), ("nodemap hpc", "*", F, "error")],
        ),
        ("nodemap.active=1\n", [("nodemap", "*", "error", "error")]),
        ("nodemap.active=0\n", [("every target", "*", "error", "error")]),
        ("nodemap.active=0\nmdt.f-MDT0.root_squash=0:0\n", [("f-MDT0", "*", F, "error")]),
        (
            "mdt.f-MDT0.root_squash=65534:65534\nmdt.f-MDT0.nosquash_nids=10.0.0.[1-9]@tcp\n",
            [("f-MDT0", "*", T, "error"), ("f-MDT0", "10.0.0.[1-9]@tcp", F, "error")],
        ),
        (
            "mdt.f.root_squash=9:9\nmdt.f.nosquash_nids=NONE\nf.srpc.flavor.default=skpi\n",
            [("f", "*", T, T)],
        ),
        ("mdt.f-MDT0.root_squash=99:99\nf.srpc.flavor.tcp=null\n", [("f-MDT0", "*", T, F)]),
    ],
)
def test_lustre(text, wanted):
    assert rows(parse_lustre(text, "l")) == wanted


def test_gpfs_leaves_the_own_cluster_out():
    text = """\
Cluster name:        own.example (this cluster)
Cipher list:         AUTHONLY
File system access:  (all rw)

Cluster name:        other.example
Cipher list:         AES256-GCM-SHA384
File system access:  fs3     (rw, root allowed)
                     fs1     (rw, root remapped to 99:99)
"""
    assert rows(parse_gpfs(text, "g")) == [
        ("fs3", "other.example", F, T),
        ("fs1", "other.example", T, T),
    ]
    assert rows(parse_gpfs(text.replace("AES256-GCM-SHA384", "AUTHONLY"), "g"))[0][3] is F


# --- files ---------------------------------------------------------------------------------------


def documents(path):
    return {
        facts.path[len(str(path)) + 1 :]: facts.nfs.exports
        for facts in collect_storage([path], now=NOW)
    }


def test_each_file_of_a_folder_is_a_document(tmp_path):
    for name, text in {
        "etc/exports": "/s *(rw)\n",
        "etc/exports.d/b.exports": "/t *(rw)\n",
        "etc/exports.d/README": "/u *(rw)\n",
        "etc/exports.d/.hidden.exports": "/u *(rw)\n",
        "saved/showmount-e.txt": "Export list for srv:\n/home *\n",
        "saved/mmauth.txt": "nothing of the kind\n",
        "ansible/group_vars/all.yml": ANSIBLE,
        "ansible/other.yml": "a: {path: /x}\n",
        "ansible/broken.yml": "nfs_exports: [\n",
        "k8s/pod.yaml": "kind: Pod\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = documents(tmp_path)
    assert {name: section.outcome.value for name, section in found.items()} == {
        "etc/exports": "ok",
        "etc/exports.d/b.exports": "ok",
        "saved/showmount-e.txt": "ok",
        "saved/mmauth.txt": "error",
        "ansible/group_vars/all.yml": "ok",
        "ansible/broken.yml": "error",
    }


def unreadable(path):
    path.write_text("/s *(rw)\n")
    path.chmod(0)


def linked(path):
    path.symlink_to("/etc/hostname")


def too_large(path):
    path.write_text("# x\n" * 400_000)


BAD = {
    "unreadable": unreadable,
    "link": linked,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
    "too large": too_large,
    "UTF-16": lambda path: path.write_bytes("/s *(rw)\n".encode("utf-16")),
    "too many": lambda path: path.write_text("/s *(rw)\n" * 5000),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_of_exports_that_cannot_be_read_is_not_known(name, tmp_path):
    BAD[name](tmp_path / "exports")
    if name == "unreadable" and os.geteuid() == 0:
        pytest.skip("root reads it")
    (section,) = documents(tmp_path).values()
    assert section.value is None
    assert section.reason


def test_a_bomb_of_aliases_costs_nothing(tmp_path):
    lines = ["nfs_exports:", "a0: &a0 ['/s *(rw,no_root_squash)']"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    (tmp_path / "bomb.yml").write_text("\n".join(lines))
    began = time.process_time()
    (section,) = documents(tmp_path).values()
    assert len(section.value) == 1
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "/s *(rw\n" * 3000, "/" * 900_000, "/s " + "(" * 900_000, "{{" * 400_000],
)
def test_hostile_text_is_read_in_linear_time(text, tmp_path):
    (tmp_path / "exports").write_text(text)
    (tmp_path / "x.yml").write_text(f"nfs_exports: |\n  {text}\n" if "\n" not in text else text)
    began = time.process_time()
    documents(tmp_path)
    assert time.process_time() - began < 10


def test_what_is_not_there_is_an_error(tmp_path):
    refused(UsageError, "does not exist", collect_storage, [tmp_path / "nowhere"], now=NOW)


def test_a_host_says_what_it_exports_itself(tmp_path):
    assert collect_exports(now=NOW, root=tmp_path) == []
    (tmp_path / "etc/exports.d").mkdir(parents=True)
    (tmp_path / "etc/exports").write_text("/s *(rw)\n")
    (tmp_path / "etc/exports.d/b.exports").write_text("/t *(rw,no_root_squash)\n")
    (tmp_path / "etc/exports.d/ignored").write_text("/u *(rw)\n")
    (tmp_path / "etc/exports.d/pipe.exports").symlink_to("/dev/null")
    found = collect_exports(now=NOW, root=tmp_path)
    assert [one.path.partition("/")[2] for one in found] == [
        "etc/exports", "etc/exports.d/b.exports", "etc/exports.d/pipe.exports",
    ]  # fmt: skip
    assert [one.nfs.exports.outcome for one in found] == [Outcome.OK, Outcome.OK, Outcome.ERROR]
    assert len({one.asset for one in found}) == 3
