# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of policy files says what the loader says, with its words."""

import re
from pathlib import Path

import jsonschema
import pytest

from securetrain.core.errors import PolicyError
from securetrain.policy import load_policy, policy_schema
from securetrain.policy.explanation import documented_fields
from securetrain.policy.load import parse_yaml
from tests.tables import items

ROOT = Path(__file__).parents[2]
SCHEMA = policy_schema()
JUDGE = jsonschema.Draft202012Validator(SCHEMA)
SHIPPED = sorted((ROOT / "policies").glob("*.yaml"))
HEAD = """\
apiVersion: securetrain.dev/policy/v1
kind: Policy
extends: dev
metadata: {id: test, version: 1.0.0}
"""


def test_it_is_a_schema_that_editors_read():
    JUDGE.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")
    patterns = re.findall(r"'pattern': '([^']*)'", str(SCHEMA))
    assert patterns
    assert not [pattern for pattern in patterns if r"\Z" in pattern or "(?P" in pattern]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_policy_is_valid(path):
    JUDGE.validate(parse_yaml(path.read_text(), str(path)))


def test_there_are_shipped_policies():
    assert {"dev", "baseline", "hardened"} <= {path.stem for path in SHIPPED}


@items(
    "body",
    "hosts: {preflight: warn}",
    "host: {preflight: sometimes}",
    "host: {max_unknown: -1}",
    "node: {tpm: {imo: log}}",
    "node: {allow_self_asserted: {max_nodes: 0}}",
    "node: {reference_values: {file: f, signed_by: [short]}}",
    "network: {egress: ['UPPER:443']}",
    "checkpoint: {expect: {digest: 12}}",
    "gradients: {deadline_seconds: soon}",
    "chain: {require: [everything]}",
    "enforcement: perhaps",
    "kind: Pod",
    "metadata: {id: Test, version: 1.0.0}",
)
def test_what_the_loader_refuses_is_refused(tmp_path, body):
    key = body.partition(":")[0]
    kept = [line for line in HEAD.splitlines() if not line.startswith(f"{key}:")]
    text = "\n".join([*kept, body]) + "\n"
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError):
        load_policy(str(path))
    assert not JUDGE.is_valid(parse_yaml(text, "x"))


def test_a_layer_says_a_part_of_a_section(tmp_path):
    """What else a section must have, the policy below may give."""
    text = HEAD + "node: {allow_self_asserted: {reason: another}}\n"
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    assert load_policy(str(path)).policy.node.allow_self_asserted is not None
    JUDGE.validate(parse_yaml(text, "x"))


def test_every_field_has_its_meaning_and_its_enforcers():
    for doc in documented_fields():
        part = SCHEMA
        for name in doc.path:
            part = _resolved(part)["properties"][name]
        text = part.get("description", "")
        assert text.startswith(doc.description), doc.path
        assert f"(enforced by {', '.join(doc.enforced_by)})" in text, doc.path


def _resolved(part):
    """The struct that a property holds."""
    for one in (part, *part.get("anyOf", ())):
        if "$ref" in one:
            return SCHEMA["$defs"][one["$ref"].rpartition("/")[2]]
    return part
