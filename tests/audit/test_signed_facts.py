# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts that were brought from elsewhere: who says so, and when.

Commands of docs/how-to/audit-a-node.md are tried here.
"""

import base64
import json
from datetime import timedelta

import msgspec
import pytest

from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.inventory import read_inventory, sign_facts
from securetrain.audit.sources.stored import StoredFacts
from securetrain.audit.subjects.node.facts.node import decode_facts
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from securetrain.identity.keys import PrivateKey
from tests.vocabulary import refused

NONCE = "9f2c7d51aa0e4b6c"


class World:
    """Nodes with keys, the folder that their facts are brought to, and its auditor."""

    def __init__(self, folder, fixtures, catalogue, now):
        self.folder, self.fixtures, self.catalogue, self.now = folder, fixtures, catalogue, now
        self.keys = {}
        (folder / "facts").mkdir()

    def node(self, name, *, fixture="reference", key="", nonce=NONCE, late=timedelta(), sign=True):
        plain = json.loads(self.fixtures.case(fixture).document.body.to_json())
        plain["collected"]["hostname"] = name
        facts = decode_facts(json.dumps(plain).encode(), name)
        at = facts.collected.at - late
        facts = msgspec.structs.replace(
            facts, collected=msgspec.structs.replace(facts.collected, at=at)
        )
        signer = self.keys.setdefault(key or name, PrivateKey.generate())
        data = sign_facts(facts, [signer], nonce) if sign else facts.to_json()
        (self.folder / "facts" / f"{name}.json").write_bytes(data)
        return data

    def inventory(self, *names):
        assets = [
            {"asset": f"node:{name}", "keys": [base64.b64encode(self.key(name).spki).decode()]}
            for name in names
        ]
        path = self.folder / "inventory.yaml"
        head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Inventory"}
        path.write_text(json.dumps(head | {"assets": assets}))
        return read_inventory(path)

    def key(self, name):
        return self.keys.setdefault(name, PrivateKey.generate()).public

    def judge(self, *names, nonce=NONCE, unsigned=False):
        inventory = self.inventory(*names) if names else None
        facts = StoredFacts(self.folder / "facts", inventory, nonce=nonce, unsigned=unsigned)
        return audit(facts, self.catalogue, self.fixtures.policy, self.now)


@pytest.fixture
def world(tmp_path, fixtures, catalogue, now):
    return World(tmp_path, fixtures, catalogue, now)


def refusals(result):
    return [f.reason for f in result.findings if f.check == "ST-AUD-006"]


def test_signed_facts_count(world):
    world.node("a")
    world.node("b", fixture="accept-ra")
    result = world.judge("a", "b")
    assert [asset.asset for asset in result.assets] == ["node:a", "node:b"]
    assert result.exit_code == 1
    assert result.problems == ()
    assert result.notes == ()


def test_an_edited_file_no_longer_turns_a_failure_into_a_pass(world):
    """The attack: remove what fails from facts that somebody carried here."""
    data = world.node("a", fixture="service-on-any-address", sign=False)
    world.judge("a", unsigned=True)
    assert world.judge(unsigned=True).exit_code == 1
    edited = json.loads(data)
    edited["node"]["listeners"]["value"] = []
    (world.folder / "facts" / "a.json").write_text(json.dumps(edited))
    assert world.judge(unsigned=True).exit_code == 0, "the control: without signatures it works"
    assert "whoever could write" in world.judge(unsigned=True).notes[0]
    result = world.judge()
    assert result.exit_code == 4
    assert result.assets == ()
    assert refusals(result) == ["about node:a, and not signed"]
    # signed, and the payload changed
    envelope = json.loads(world.node("a", fixture="service-on-any-address"))
    payload = json.loads(base64.b64decode(envelope["payload"]))
    payload["node"]["listeners"]["value"] = []
    changed = base64.b64encode(json.dumps(payload).encode()).decode()
    text = json.dumps(envelope | {"payload": changed}, separators=(",", ":"), sort_keys=True)
    (world.folder / "facts" / "a.json").write_text(text)
    result = world.judge("a")
    assert result.exit_code == 4
    assert result.assets == ()


def test_another_hosts_signature_is_refused_and_its_owner_named(world):
    world.node("a", key="b")
    result = world.judge("a", "b")
    assert result.exit_code == 4
    assert refusals(result) == ["about node:a, signed by the key of node:b"]
    assert {f.asset for f in result.findings if f.check == "ST-AUD-005"} == {"node:a", "node:b"}


def test_a_key_that_nobody_knows(world):
    world.node("a", key="stranger")
    (reason,) = refusals(world.judge("a"))
    assert "not by any of the 1 trusted keys" in reason


def test_a_replayed_answer_is_refused(world):
    world.node("a", nonce="0000000000000000")
    world.node("b", nonce="")
    result = world.judge("a", "b")
    assert result.exit_code == 4
    assert result.assets == ()
    assert all("than the one asked for" in reason for reason in refusals(result))
    # without a nonce the time alone says how old they are, and the result says so
    result = world.judge("a", "b", nonce="")
    assert result.exit_code == 0
    assert "the nodes' own word" in result.notes[0]


def test_stale_facts_are_a_finding_on_their_asset(world):
    world.node("a", late=timedelta(days=2))
    result = world.judge("a")
    assert result.exit_code == 4
    (finding,) = [f for f in result.findings if f.check == "ST-AUD-006"]
    assert (finding.asset, finding.severity) == ("node:a", "critical")
    assert "older than 24 hours" in finding.reason


def test_an_asset_of_the_inventory_without_facts_is_a_finding(world):
    world.node("a")
    result = world.judge("a", "b")
    (finding,) = result.of(State.FAIL)
    assert (finding.check, finding.asset) == ("ST-AUD-005", "node:b")
    assert result.exit_code == 1


def test_facts_about_what_the_inventory_does_not_list_are_refused(world):
    world.node("a")
    world.node("evil", key="a2")
    inventory = world.inventory("a", "a2")
    facts = StoredFacts(world.folder / "facts", inventory, nonce=NONCE)
    result = audit(facts, world.catalogue, world.fixtures.policy, world.now)
    assert refusals(result) == ["the inventory does not list node:evil"]
    assert [asset.asset for asset in result.assets] == ["node:a"]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[" * 100_000, b'{"payload":1}', b'{"payload":"AAAA","x":1}', b"\xff\xfe"]
)
def test_garbage_in_the_folder_is_refused_and_the_others_are_judged(world, data):
    world.node("a")
    (world.folder / "facts" / "z.json").write_bytes(data)
    result = world.judge("a")
    assert result.exit_code == 4
    assert [asset.asset for asset in result.assets] == ["node:a"]
    assert len(refusals(result)) == 1


def test_a_signed_file_without_an_inventory_is_no_better_than_an_unsigned_one(world):
    world.node("a")
    (reason,) = refusals(world.judge())
    assert "--inventory" in reason
    assert world.judge(unsigned=True).exit_code == 0


@pytest.mark.parametrize(
    ("assets", "message"),
    [
        ([], "length"),
        ([{"asset": "gpu-1"}], "regex"),
        ([{"asset": "node:a"}, {"asset": "node:a"}], "stands twice"),
        ([{"asset": "node:a", "keys": ["AAAA"]}], "no public key"),
        ([{"asset": "node:a", "keys": ["!"]}], "no public key"),
        ([{"asset": "node:a", "key": "x"}], "unknown field"),
    ],
)
def test_a_bad_inventory_is_an_error(tmp_path, assets, message):
    path = tmp_path / "i.yaml"
    head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Inventory"}
    path.write_text(json.dumps(head | {"assets": assets}))
    with pytest.raises(AuditError) as error:
        read_inventory(path)
    assert error.value.code == "ST-AUDT-005"
    assert message in error.value.what
    assert "i.yaml" in error.value.where


def test_two_assets_never_have_one_key(tmp_path):
    public = PrivateKey.generate().public
    (tmp_path / "k.pub").write_bytes(public.pem)
    assets = [
        {"asset": "node:a", "keys": [base64.b64encode(public.spki).decode()]},
        {"asset": "node:b", "key_files": ["k.pub"]},
    ]
    path = tmp_path / "i.yaml"
    head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Inventory"}
    path.write_text(json.dumps(head | {"assets": assets}))
    refused(AuditError, "another asset's", read_inventory, path)


def test_fewer_answers_than_the_policy_asks_for_are_a_finding(world, fixtures):
    world.node("a", fixture="no-sysctls")
    inventory = world.inventory("a")

    def judged(percent):
        section = msgspec.structs.replace(fixtures.policy.audit, min_coverage_percent=percent)
        policy = msgspec.structs.replace(fixtures.policy, audit=section)
        facts = StoredFacts(world.folder / "facts", inventory, nonce=NONCE)
        result = audit(facts, world.catalogue, policy, world.now)
        return [f for f in result.findings if f.check == "ST-AUD-001"]

    assert judged(50) == []
    (finding,) = judged(100)
    assert "the policy asks for 100 %" in finding.reason
