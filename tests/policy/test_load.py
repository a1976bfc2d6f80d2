# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.core import canonical
from securetrain.core.errors import PolicyError, UsageError
from securetrain.core.vocabulary import NodeTier, PreflightMode, Severity
from securetrain.policy import load_policy
from securetrain.policy.load import (
    FILE_LIMIT,
    MAX_CHAIN,
    SHIPPED,
    digest_of,
    load_resolved,
    parse_yaml,
)
from securetrain.policy.schema import FabricTrust, IsolationEvidence
from tests.tables import items


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_load_and_their_digest_is_stable(name):
    loaded = load_policy(name)
    assert loaded.policy.metadata.id == name
    assert loaded.digest == digest_of(loaded.policy) == load_policy(name).digest


def test_stricter_policies_are_stricter():
    dev, baseline, hardened = (load_policy(name).policy for name in SHIPPED)
    assert dev.node.min_tier < baseline.node.min_tier < hardened.node.min_tier
    assert dev.host.max_unknown > baseline.host.max_unknown > hardened.host.max_unknown
    assert baseline.host.fail_on > hardened.host.fail_on
    assert baseline.node.allow_self_asserted is None


def test_a_childs_fields_replace_its_parents_one_by_one(write):
    loaded = load_policy(write("host: {fail_on: low}\nfabric: {allow_environment: [NCCL_DEBUG]}\n"))
    assert loaded.policy.host.fail_on is Severity.LOW
    assert loaded.policy.host.max_unknown == 10  # baseline's
    assert loaded.policy.host.preflight is PreflightMode.ENFORCE
    assert loaded.policy.fabric.allow_environment == ("NCCL_DEBUG",)  # replaced whole
    assert loaded.sources["host.fail_on"].endswith("mine.yaml")
    assert loaded.sources["host.max_unknown"].endswith("baseline.yaml")
    assert "host.skip_checks" not in loaded.sources


def test_a_policy_may_extend_a_file_beside_it(write, tmp_path, monkeypatch):
    write("node: {lease_minutes: 7}\n", name="site.yaml")
    child = write("node: {min_tier: tpm}\n", name="child.yaml", extends="site.yaml")
    monkeypatch.chdir(tmp_path.parent)  # beside the file, not the working directory
    policy = load_policy(child).policy
    assert policy.node.lease_minutes == 7
    assert policy.node.min_tier is NodeTier.TPM


LOG = "checkpoint: {log: {"
KEY = "A" * 60
IN_CLEAR = "network: {require: [overlay, rdma-trusted], fabric: trusted-plaintext"
UNGUARDED = f"""\
{IN_CLEAR}, isolation: {{statement: our own switches}}}}
gradients: {{mode: 'off'}}
checkpoint: {{require_clean_verdict: false}}
"""


def test_a_fabric_in_clear_needs_its_name_a_reason_and_the_guard(write):
    network = load_policy(
        write(f"{IN_CLEAR}, isolation: {{statement: our own}}}}\n")
    ).policy.network
    assert network.fabric is FabricTrust.TRUSTED_PLAINTEXT
    assert network.isolation is not None
    assert network.isolation.evidence is IsolationEvidence.PARTITION


@items(
    "body, code, where",
    ("host: {fail_on: severe}\n", "ST-PLCY-002", "host.fail_on"),
    ("host: {colour: red}\n", "ST-PLCY-002", "mine.yaml"),
    ("colour: red\n", "ST-PLCY-002", ""),
    ("host: {max_unknown: '3'}\n", "ST-PLCY-002", "host.max_unknown"),
    ("host: {max_unknown: -1}\n", "ST-PLCY-002", "host.max_unknown"),
    ("host: {max_unknown: 1.5}\n", "ST-PLCY-002", "host.max_unknown"),
    ("host: [1]\n", "ST-PLCY-002", "host"),
    ("gradients: {threshold: 2.0}\n", "ST-PLCY-002", "gradients.threshold"),
    ("node: {allow_self_asserted: {max_nodes: 0, reason: x}}\n", "ST-PLCY-002", "node"),
    ("node: {min_tier: self-asserted}\n", "ST-PLCY-004", "node.allow_self_asserted"),
    ("node: {allow_self_asserted: {max_nodes: 1, reason: ' '}}\n", "ST-PLCY-004", "reason"),
    ("gradients: {mode: 'off'}\n", "ST-PLCY-004", "gradients.mode"),
    ("network: {require: []}\n", "ST-PLCY-004", "network.require"),
    ("network: {require: [rdma-trusted]}\n", "ST-PLCY-004", "network.fabric"),
    ("network: {fabric: trusted-plaintext}\n", "ST-PLCY-004", "network.fabric"),
    (f"{IN_CLEAR}}}\n", "ST-PLCY-004", "network.isolation.statement"),
    (f"{IN_CLEAR}, isolation: {{statement: ' '}}}}\n", "ST-PLCY-004", "network.isolation"),
    ("network: {isolation: {statement: x}}\n", "ST-PLCY-004", "network.isolation"),
    ("network: {fabric: clear}\n", "ST-PLCY-002", "network.fabric"),
    (UNGUARDED, "ST-PLCY-004", "gradients.mode"),
    (f"{LOG}origin: log.example}}}}\n", "ST-PLCY-004", "checkpoint.log.keys"),
    (f"{LOG}keys: [{KEY}]}}}}\n", "ST-PLCY-004", "checkpoint.log.origin"),
    (f"{LOG}witnesses: [{KEY}, {KEY}]}}}}\n", "ST-PLCY-004", "checkpoint.log.witnesses"),
    (f"{LOG}quorum: 2}}}}\n", "ST-PLCY-004", "checkpoint.log.quorum"),
    (f"{LOG}quorum: 2, witnesses: [{KEY}]}}}}\n", "ST-PLCY-004", "checkpoint.log.quorum"),
    (f"{LOG}quorum: 0}}}}\n", "ST-PLCY-002", "checkpoint.log.quorum"),
    (
        f"{LOG}origin: log.example, keys: [{KEY}], witnesses: [{KEY}]}}}}\n",
        "ST-PLCY-004",
        "checkpoint.log.witnesses",
    ),
    ("node: {tpm: {event_log: false}}\n", "ST-PLCY-004", "node.tpm.event_log"),
    ("host: {fail_on: !!str high}\n", "ST-PLCY-001", "mine.yaml"),
    ("a: &x 1\nb: *x\n", "ST-PLCY-001", "mine.yaml"),
    ("host: {}\nhost: {}\n", "ST-PLCY-001", "mine.yaml"),
    ("? [a, b]\n: c\n", "ST-PLCY-001", "mine.yaml"),
    ("host: {\n", "ST-PLCY-001", "mine.yaml"),
    ("--- second document\n", "ST-PLCY-001", "mine.yaml"),
)
def test_a_bad_policy_names_code_file_and_field(write, body, code, where):
    with pytest.raises(PolicyError) as refused:
        load_policy(write(body))
    assert refused.value.code == code
    assert where in refused.value.where
    assert refused.value.fix
    assert int(refused.value.exit_code) == 2


@pytest.mark.parametrize("change", [("policy/v1", "policy/v2"), ("kind: Policy", "kind: Job")])
def test_another_kind_of_document(write, change, tmp_path):
    path = write()
    text = (tmp_path / "mine.yaml").read_text().replace(*change)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(PolicyError) as refused:
        load_policy(path)
    assert refused.value.code == "ST-PLCY-002"


def test_extends_that_loops_or_leads_nowhere(write):
    for name, parent in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        path = write(name=name, extends=parent)
    with pytest.raises(PolicyError, match="loops") as refused:
        load_policy(path)
    assert refused.value.code == "ST-PLCY-003"
    with pytest.raises(PolicyError) as refused:
        load_policy(write(extends="gone.yaml"))
    assert refused.value.code == "ST-PLCY-003"
    with pytest.raises(PolicyError) as refused:
        load_policy(write(extends="[a, b]"))
    assert refused.value.code == "ST-PLCY-002"


def test_a_loop_is_named_where_it_closes(write):
    for name, parent in (("c.yaml", "a.yaml"), ("b.yaml", "c.yaml"), ("a.yaml", "b.yaml")):
        path = write(name=name, extends=parent)
    with pytest.raises(PolicyError) as refused:
        load_policy(path)
    assert refused.value.where == path


def test_who_a_policy_is_is_not_merged(write):
    """A child that forgot its version has not its parent's."""
    write(name="parent.yaml")
    path = Path(write(name="child.yaml", extends="parent.yaml"))
    path.write_text(path.read_text().replace(", version: 1.0.0", ""))
    with pytest.raises(PolicyError, match="version"):
        load_policy(str(path))


@items(
    "body",
    "node: {tpm: {event_log: false, secure_boot: false}}\n",
    "node: {tpm: {event_log: true, secure_boot: false}}\n",
    "gradients: {mode: 'off'}\ncheckpoint: {require_clean_verdict: false}\n",
)
def test_what_does_not_contradict_itself(write, body):
    load_policy(write(body))


def test_a_chain_has_an_end(write):
    write(name="p0.yaml")
    for number in range(1, MAX_CHAIN + 1):
        path = write(name=f"p{number}.yaml", extends=f"p{number - 1}.yaml")
    with pytest.raises(PolicyError, match="longer than"):
        load_policy(path)


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_text("#" * (FILE_LIMIT + 1))
    with pytest.raises(UsageError, match="larger than"):
        load_policy(str(path))


def test_bytes_that_are_not_utf_8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"title: \xe9\n")
    with pytest.raises(PolicyError, match="UTF-8"):
        load_policy(str(path))


def test_a_list_is_not_a_policy(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- a\n")
    with pytest.raises(PolicyError, match="not a mapping"):
        load_policy(str(path))


# --- YAML that would do more than hold data ------------------------------------------------------


def test_yaml_tags_run_nothing(tmp_path):
    """The attack: with PyYAML's unsafe loader this line runs a command."""
    import yaml

    marker = tmp_path / "ran"
    text = f"x: !!python/object/apply:os.mknod [{str(marker)!r}]\n"
    yaml.load(text, Loader=yaml.UnsafeLoader)
    assert marker.exists(), "the attack must work against the plain loader"
    marker.unlink()
    with pytest.raises(PolicyError) as refused:
        parse_yaml(text, "x")
    assert refused.value.code == "ST-PLCY-001"
    assert not marker.exists()


def test_aliases_cannot_grow_a_small_file_into_a_large_one():
    bomb = "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n"
    with pytest.raises(PolicyError, match="anchors and aliases"):
        parse_yaml(bomb, "x")


@pytest.mark.parametrize("text", ["a: &x 1\n", "&x a: 1\n", "a: [&x 1]\n", "a: *x\n"])
def test_an_anchor_or_an_alias_alone_is_refused_too(text):
    with pytest.raises(PolicyError, match="anchors and aliases"):
        parse_yaml(text, "x")


@items(
    "id, text, what, where",
    ("a-place", "a:\n  - {", "did not find expected node content", "x:2"),
    ("no-place", "a: \x01", "unacceptable character #x0001", "x"),
    ("no-day", "a: 2026-13-45", "month must be in 1..12", "x"),
    ("a-number-too-long", "a: " + "1" * 5000, "4300 digits", "x"),
)
def test_what_the_yaml_parser_says(text, what, where):
    with pytest.raises(PolicyError) as refused:
        parse_yaml(text, "x")
    assert refused.value.code == "ST-PLCY-001"
    assert what in refused.value.what
    assert refused.value.what.count("\n") == (where == "x" and "#" in what)
    assert refused.value.where == where


def test_deep_nesting_ends_in_an_error_and_not_in_a_crash():
    with pytest.raises(PolicyError):
        parse_yaml("[" * 20_000, "x")


@settings(max_examples=200, deadline=None)
@given(st.text(string.printable, max_size=200))
def test_any_text_is_data_or_a_policy_error(text):
    try:
        parse_yaml(text, "x")
    except PolicyError as error:
        assert error.code == "ST-PLCY-001"  # noqa: PT017 - most texts are fine


# --- what a run directory keeps ------------------------------------------------------------------


@items(
    "fields, budget",
    ("{}", 20.0),
    ("{data: per-rank}", 100.0),
    ("{threshold: 8.0}", 20.0),
    ("{threshold: 7.9}", 100.0),
    ("{threshold: 8.0, data: per-rank}", 100.0),
    ("{threshold: 5.0, false_alarms_per_million_rank_steps: 3}", 3.0),
)
def test_the_budget_of_false_alarms(write, fields, budget):
    assert load_policy(write(f"gradients: {fields}\n")).policy.gradients.budget == budget


def test_a_resolved_policy_is_read_back(tmp_path):
    loaded = load_policy("hardened")
    path = tmp_path / "policy.json"
    path.write_bytes(canonical.encode(loaded.policy))
    assert load_resolved(path).digest == loaded.digest


@items(
    "old, new, code",
    (b'"exclude-rank"', b'"nothing"', "ST-PLCY-002"),
    (b'"kind"', b'"sort"', "ST-PLCY-002"),
    (b'"detect"', b'"off"', "ST-PLCY-004"),
)
def test_a_resolved_policy_is_checked_again(tmp_path, old, new, code):
    data = canonical.encode(load_policy("hardened").policy)
    assert old in data
    path = tmp_path / "policy.json"
    path.write_bytes(data.replace(old, new))
    with pytest.raises(PolicyError) as refused:
        load_resolved(path)
    assert refused.value.code == code
