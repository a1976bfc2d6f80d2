# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Slurm's syntax, its includes, templates, and files that are none."""

import os
import tracemalloc
from pathlib import Path

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.facts import Location, Outcome
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.slurm.collect.cluster import collect_slurm
from securetrain.audit.subjects.slurm.collect.parser import joined, pairs_of, variable_of
from securetrain.audit.subjects.slurm.collect.settings import NEWEST, OLDEST, SLURM_CONF
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW
from tests.vocabulary import refused

CHECKS = [check for check in load_checks() if check.kind == "slurm"]
BASELINE = load_policy("baseline").policy


@pytest.fixture
def slurm(tmp_path):
    """The facts of a copy with these files."""

    def collect(**files: str | bytes):
        for name, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name.replace("__", ".")).write_bytes(data)
        return collect_slurm(tmp_path, now=NOW)

    return collect


def states_of(facts) -> dict[str, State]:
    return worst_states(audit(facts_of([facts]), CHECKS, BASELINE, NOW).findings)


@pytest.mark.parametrize(
    ("text", "value", "line"),
    [
        ("AuthType=auth/none", "auth/none", 1),
        ("\n  authtype =  auth/none  ", "auth/none", 2),
        ('AuthType="auth/none"', "auth/none", 1),
        ("AuthType=auth/munge\nAUTHTYPE=auth/none", "auth/none", 2),
        ("AuthType=\\\nauth/none", "auth/none", 1),
        ("AuthType=auth/none\r\nTLSType=tls/s2n\r\n", "auth/none", 1),
        ("AuthType=auth/none#munge", "auth/none", 1),
        ("AuthType=none", "auth/none", 1),
        ("# AuthType=auth/none", "auth/munge", 0),
        ("\\# AuthType=auth/none", None, 1),
        ("AuthType=auth/munge AuthType=auth/none", None, 1),
        ("AuthType", None, 1),
        ("AuthType=auth/munge\nnonsense", None, 2),
        ("PartitionName=p AuthType=auth/none", "auth/munge", 0),
        ("\ufeffAuthType=auth/none", None, 1),
    ],
)
def test_a_setting_is_what_slurm_reads(text, value, line, slurm):
    read = slurm(slurm__conf=text).slurm.auth_type
    assert read.value == value
    assert read.at.line == line
    assert (read.outcome is Outcome.OK) == (value is not None)


def test_what_precedes_a_missing_include_is_open_and_what_follows_is_not(slurm):
    facts = slurm(slurm__conf="AuthType=auth/none\nInclude site.conf\nTLSType=tls/s2n\n").slurm
    assert facts.tls_type.value == "tls/s2n"
    for reading in (facts.auth_type, facts.slurm_user, facts.cred_type):
        assert reading.outcome is Outcome.ERROR
        assert "slurm.conf:2 includes site.conf, which is not here" in reading.reason
        assert reading.at.line == 2


def test_an_include_is_read_where_it_stands(slurm):
    facts = slurm(
        slurm__conf="ClusterName=C1\nAuthType=auth/none\nInclude %c.conf\n"
        "include /etc/slurm/b.conf",
        c1__conf="AuthType=auth/munge\n\nSlurmUser=root\n",
        b__conf="SlurmUser=slurm\n",
    )
    assert facts.asset == "slurm:c1"
    assert facts.slurm.auth_type.value == "auth/munge"
    assert facts.slurm.auth_type.at.path.endswith("/c1.conf")
    assert facts.slurm.slurm_user.value == "slurm"


@pytest.mark.parametrize(
    ("field", "first", "name", "line"),
    [
        ("auth_type", "slurm.conf", "n{}", "Include n{}"),
        ("spank", "plugstack.conf", "n{}", "include n{}"),
        ("login_rules", "pam.d/sshd", "pam.d/n{}", "@include n{}"),
    ],
)
def test_includes_are_followed_to_a_depth(tmp_path, field, first, name, line):
    (tmp_path / "pam.d").mkdir()
    (tmp_path / "slurm.conf").write_text("ClusterName=a")
    for number in range(24):
        place = tmp_path / (name.format(number - 1) if number else first)
        place.write_text(line.format(number) + "\n")
    (tmp_path / name.format(23)).write_text("# nothing")
    read = getattr(collect_slurm(tmp_path, now=NOW).slurm, field)
    assert read.outcome is Outcome.ERROR
    assert "in a circle" in read.reason


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"slurm__conf": "Include slurm.conf"}, "in a circle"),
        ({"slurm__conf": "Include a", "a": "Include b", "b": "Include a"}, "in a circle"),
        ({"slurm__conf": "Include *.conf"}, "does not expand"),
        ({"slurm__conf": "Include ../x.conf"}, "which is not here"),
        ({"slurm__conf": "Include /etc/passwd"}, "which is not here"),
        ({"slurm__conf": "Include a", "a": b"\xff\xfeA\0u\0"}, "not text"),
    ],
)
def test_an_include_that_cannot_be_read_leaves_everything_open(files, reason, slurm):
    facts = slurm(**files)
    assert facts.slurm.auth_type.outcome is Outcome.ERROR
    assert reason in facts.slurm.auth_type.reason
    states = states_of(facts)
    assert State.PASS not in states.values()
    assert State.FAIL not in states.values()


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfeA\0u\0t\0h\0", b"\0" * 4096, b"A" * (4 << 20), b"=" * 70_000],
    ids=["empty", "UTF-16", "zeros", "too long", "no line"],
)
def test_what_is_no_configuration_is_never_good(text, slurm):
    states = states_of(slurm(slurm__conf=text))
    assert State.PASS not in states.values()


def test_a_bomb_of_includes_is_bounded(tmp_path, slurm):
    for number in range(12):
        (tmp_path / f"b{number}").write_text(f"Include b{number + 1}\n" * 10)
    tracemalloc.start()
    facts = slurm(slurm__conf="Include b0\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert facts.slurm.auth_type.value is None
    assert peak < 100 << 20


def test_a_pipe_is_not_opened_and_a_link_leads_nowhere_else(tmp_path):
    copy, other = tmp_path / "copy", tmp_path / "other.conf"
    copy.mkdir()
    os.mkfifo(copy / "cgroup.conf")
    other.write_text("AuthType=auth/munge\n")
    (copy / "slurm.conf").symlink_to(other)
    facts = collect_slurm(copy, now=NOW).slurm
    assert "not a regular file" in facts.constrain_devices.reason
    assert facts.auth_type.value is None
    assert "leads out of" in facts.auth_type.reason


def test_a_directory_that_is_none_is_refused(tmp_path):
    refused(UsageError, "not a directory", collect_slurm, tmp_path / "x", now=NOW)


def test_owners_of_a_copy_say_nothing(slurm, tmp_path):
    (tmp_path / "munge.key").write_bytes(b"\0" * 1024)
    facts = slurm(slurm__conf="Prolog=/etc/slurm/p.sh\nProlog=/etc/slurm/q.sh\n")
    states = states_of(facts)
    for check in ("ST-SLM-003", "ST-SLM-010", "ST-SLM-011", "ST-SLM-023"):
        assert states[check] is State.UNKNOWN, check
    assert states["ST-SLM-004"] is State.FAIL  # its bytes are the copy's own
    assert [path.path for path in facts.slurm.paths.value if path.origin == "Prolog"] == [
        "/etc/slurm/p.sh",
        "/etc/slurm/q.sh",
    ]
    assert b"AAAA" not in facts.to_json()


def test_nothing_outside_a_copy_is_looked_at(slurm, tmp_path):
    facts = slurm(
        slurm__conf="AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/etc/passwd\n"
        "StateSaveLocation=/etc\nPlugStackConfig=/etc/passwd\n"
    ).slurm
    tokens = next(key for key in facts.keys.value if key.role == "tokens")
    assert tokens.outcome is Outcome.ERROR
    assert f"/etc/passwd is not in {tmp_path}" in tokens.reason
    assert "/etc/passwd is not in" in facts.spank.reason
    assert all(not path.chain for path in facts.paths.value)


# --- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "variable"),
    [
        ("slurm.conf.j2", "AuthType={{ slurm_auth | default('auth/munge') }}", "slurm_auth"),
        ("slurm.conf.j2", "{% if secure %}\nAuthType=auth/munge\n{% endif %}", "if secure"),
        ("slurm.conf.j2", "AuthType=auth/munge\n{% for k in x %}\n{{ k }}=1\n{% endfor %}", "k"),
        ("slurm.conf.j2", "AuthType=auth/munge\n{% include 'site.conf' %}\n", "include"),
        ("slurm.conf.erb", "AuthType=<%= @auth %>", "@auth"),
        ("slurm.conf.erb", "<% if @tls -%>\nAuthType=auth/munge\n<% end -%>", "if @tls"),
        ("slurm.conf.erb", "<% @nodes.each do |n| %>\nAuthType=auth/munge\n<% end %>", "each do"),
        ("slurm.conf", "AuthType=${AUTH}", "AUTH"),
        ("slurm.conf.in", "AuthType=@AUTH@", "AUTH"),
        ("slurm.conf.tpl", "AuthType={auth}", "auth"),
        ("slurm.conf", "AuthType=auth/$AUTH", "AUTH"),
    ],
)  # fmt: skip
def test_a_template_says_what_decides(name, text, variable, tmp_path):
    (tmp_path / name).write_text(text)
    facts = collect_slurm(tmp_path, now=NOW)
    assert facts.slurm.auth_type.outcome is Outcome.TEMPLATED
    assert variable in facts.slurm.auth_type.reason
    assert states_of(facts)["ST-SLM-001"] is State.UNKNOWN


def test_what_no_template_touches_is_known(tmp_path):
    (tmp_path / "slurm.conf.j2").write_text(
        "{# a comment # of two\nlines #}\nClusterName={{ name }}\n{% if x %}\nTLSType=tls/s2n\n"
        "{% else %}\nTLSType=tls/none\n{% endif %}\nAuthType=auth/none\nSlurmUser=slurm\n"
    )
    facts = collect_slurm(tmp_path, now=NOW)
    assert facts.slurm.auth_type.value == "auth/none"
    assert facts.slurm.auth_type.at == Location(path=f"{tmp_path}/slurm.conf.j2", line=9, column=1)
    assert facts.slurm.tls_type.outcome is Outcome.TEMPLATED
    assert facts.asset == f"slurm:{tmp_path}"
    states = states_of(facts)
    assert states["ST-SLM-001"] is State.FAIL
    assert states["ST-SLM-007"] is State.PASS


# --- what runs ------------------------------------------------------------------------------------

RUNNING = """\
Configuration data as of 2026-11-20T12:00:00
AuthType                = auth/munge
ClusterName             = prod
DisableRootJobs         = YES
PrivateData             = none
SlurmUser               = slurm(640)
SLURM_VERSION           = 24.05.3
TLSType                 = (null)

Cgroup Support Configuration:
ConstrainDevices        = yes
"""


def test_what_runs_stands_in_for_a_missing_include(slurm):
    facts = slurm(slurm__conf="Include site.conf\n", running__txt=RUNNING)
    assert facts.asset == "slurm:prod"
    assert facts.slurm.auth_type.value == "auth/munge"
    assert facts.slurm.auth_type.at.path.endswith("running.txt")
    assert facts.slurm.constrain_devices.value is True
    assert facts.slurm.cred_type.value is None  # not printed
    states = states_of(facts)
    assert states["ST-SLM-001"] is State.UNKNOWN  # AuthAltTypes is not printed
    assert states["ST-SLM-009"] is State.FAIL
    assert states["ST-SLM-020"] is State.UNKNOWN  # who built it is not known


def test_a_file_that_runs_otherwise_is_not_known(slurm):
    facts = slurm(slurm__conf="AuthType=auth/none\nSlurmUser=slurm\n", running__txt=RUNNING)
    assert facts.slurm.auth_type.outcome is Outcome.ERROR
    assert "the file says AuthType=auth/none, and 'auth/munge' is running" in (
        facts.slurm.auth_type.reason
    )


@pytest.mark.parametrize(
    ("line", "printed", "value"),
    [
        ("SlurmUser=slurm", "SlurmUser = slurm(640)", "slurm"),
        ("SlurmUser=slurm", "SlurmUser = root(0)", None),
        ("", "SlurmUser = slurm(640)", "slurm"),
        ("PrologFlags=Contain", "PrologFlags = Alloc,Contain", ("contain",)),
        ("PrologFlags=Contain", "PrologFlags = Alloc", None),
        ("TaskPlugin=affinity,cgroup", "TaskPlugin = task/affinity,task/cgroup",
         ("task/affinity", "task/cgroup")),
        ("TaskPlugin=task/none", "TaskPlugin = (null)", ()),
        ("DisableRootJobs=1", "DisableRootJobs = Yes", True),
        ("DisableRootJobs=1", "DisableRootJobs = No", None),
        ("", "PropagateResourceLimits = (null)", ()),
        ("PrivateData=jobs", "PrivateData = none", None),
    ],
)  # fmt: skip
def test_what_a_daemon_prints_is_what_the_file_says(line, printed, value, slurm):
    text = f"Configuration data as of 2026-11-20T12:00:00\n{printed}\n"
    facts = slurm(slurm__conf=f"ClusterName=c\n{line}\n", running__txt=text).slurm
    name = {
        "SlurmUser": "slurm_user",
        "PrologFlags": "prolog_flags",
        "TaskPlugin": "task_plugin",
        "DisableRootJobs": "disable_root_jobs",
        "PropagateResourceLimits": "propagate_resource_limits",
        "PrivateData": "private_data",
    }[printed.partition(" ")[0]]
    assert getattr(facts, name).value == value


# --- small parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("NodeName=n[1-4] CPUs=4", [("NodeName", "n[1-4]"), ("CPUs", "4")]),
        ('A="x y" B=2', [("A", "x y"), ("B", "2")]),
        ("Gres+=gpu:8", [("Gres", "gpu:8")]),
        ('A="x"y', [("A", '"x"y')]),
        ("A={{ b | c }} D=1", [("A", "{{ b | c }}"), ("D", "1")]),
    ],
)
def test_pairs(line, pairs):
    assert pairs_of(line) == (pairs, "")


def test_lines_are_joined_and_cleaned():
    text = "a \\\n b # c\n\\#d\\\\\ne\\ \n f"
    assert list(joined(text)) == [(1, "a  b "), (3, "#d\\"), (4, "e f")]


def test_variables():
    assert variable_of("a{{ x }}b") == "x"
    assert variable_of("/etc/slurm") == ""


def test_the_table_of_defaults_names_its_versions():
    assert OLDEST < NEWEST
    assert all(OLDEST <= row.since <= NEWEST for row in SLURM_CONF.values())
    assert SLURM_CONF["auth_type"].value == "auth/munge"


@pytest.mark.parametrize(
    ("version", "auth", "tls"),
    [
        ("25.11.1", "auth/munge", "tls/s2n"),
        ("23.11.11", "auth/munge", None),  # does not know TLSType
        ("27.05.0", None, "tls/s2n"),  # whose defaults are not known
    ],
)
def test_defaults_are_those_of_the_version(version, auth, tls, slurm):
    facts = slurm(slurm__conf="TLSType=tls/s2n\n", v=f"slurm {version}\n").slurm
    assert (facts.auth_type.value, facts.tls_type.value) == (auth, tls)


def test_a_partition_takes_over_what_default_says(slurm):
    facts = slurm(
        slurm__conf="PartitionName=a\nPartitionName=DEFAULT Exclusive=USER\nPartitionName=b \\\n"
        "  Nodes=x\nPartitionName=c Exclusive=NO\n"
    ).slurm
    found = {one.name: (one.whole_nodes.value, one.at.line) for one in facts.partitions.value}
    assert found == {"a": (False, 1), "b": (True, 3), "c": (False, 5)}


def test_a_relative_directory_names_files_as_it_was_given(tmp_path, monkeypatch):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/slurm.conf").write_text("AuthType=auth/none\n")
    monkeypatch.chdir(tmp_path)
    facts = collect_slurm(Path("slurm"), now=NOW)
    assert facts.slurm.auth_type.at == Location(path="slurm/slurm.conf", line=1, column=1)


def test_clusters_with_the_same_key_are_found_and_no_mark_tells_of_it(tmp_path):
    key = bytes(range(256)) * 4
    bodies = {}
    for name, munge in (("a", key), ("b", key), ("c", key[::-1]), ("d", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "slurm.conf").write_text(f"ClusterName={name}\n")
        if munge is not None:
            (folder / "munge.key").write_bytes(munge)
        bodies[name] = [
            collect_slurm(folder, now=NOW, salt=salt) for salt in (b"s" * 32, b"t" * 32)
        ]

    def states(*names):
        facts = facts_of([bodies[name][0] for name in names])
        found = audit(facts, CHECKS, BASELINE, NOW).findings
        return {one.asset: one.state for one in found if one.check == "ST-SLM-025"}

    assert states("a", "b", "c") == {
        "slurm:a": State.FAIL,
        "slurm:b": State.FAIL,
        "slurm:c": State.PASS,
    }
    assert states("c", "d") == {"slurm:c": State.UNKNOWN, "slurm:d": State.UNKNOWN}
    first, again = (munge_key(body).mark.value for body in bodies["a"])
    assert first != again
    assert key.hex()[:32] not in bodies["a"][0].to_json().decode()
    alone = munge_key(collect_slurm(tmp_path / "a", now=NOW))
    assert alone.mark.outcome is Outcome.ERROR


def munge_key(facts):
    keys = facts.slurm.keys.value
    assert keys is not None
    return keys[0]
