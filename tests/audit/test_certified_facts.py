# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts that a node signs with its enrolled identity: the inventory names the CA and no keys.

Commands of docs/how-to/audit-a-node.md are tried here.
"""

import json
from datetime import timedelta

import msgspec
import pytest

from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.inventory import read_inventory, sign_facts
from securetrain.audit.sources.stored import StoredFacts
from securetrain.audit.subjects.node.facts.node import decode_facts
from securetrain.core.errors import AuditError
from securetrain.identity import ClusterCA, JobCA, Role, certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import Kind

NONCE = "9f2c7d51aa0e4b6c"
DAY = timedelta(hours=24)


class Fleet:
    """A cluster's CA, the CA of a job, nodes with identities, and the auditor's folder."""

    def __init__(self, folder, fixtures, catalogue, now):
        self.folder, self.fixtures, self.catalogue, self.now = folder, fixtures, catalogue, now
        self.began = now - timedelta(hours=2)
        self.cluster = ClusterCA.create(folder / "ca", "example.org", self.began)
        self.job = self.cluster.job("job-1", self.began, self.cluster.key)
        (folder / "facts").mkdir()
        (folder / "ca.crt").write_bytes(certificate_pem(self.cluster.certificate))

    def node(self, name, *, certified="", ca=None, role=Role.NODE, at=None, chain=True, late=None):
        key = PrivateKey.generate(KeyKind.P256)
        issuer = ca or self.job
        leaf = issuer.issue(
            role, key.public, at or self.began, node=certified or name, lifetime=DAY / 2
        )
        plain = json.loads(self.fixtures.case("reference").document.body.to_json())
        plain["collected"]["hostname"] = name
        facts = decode_facts(json.dumps(plain).encode(), name)
        at = facts.collected.at - (late or timedelta())
        collected = msgspec.structs.replace(facts.collected, at=at)
        facts = msgspec.structs.replace(facts, collected=collected)
        certificates = (leaf, issuer.certificate) if chain else (leaf,)
        data = sign_facts(facts, [key], NONCE, certificates)
        (self.folder / "facts" / f"{name}.json").write_bytes(data)
        return leaf

    def judge(self, *names, revocations=True, anchor="ca.crt", **more):
        authority = {"file": anchor}
        if revocations:
            (self.folder / "revoked").write_bytes(self.cluster.revocations_file.read_bytes())
            authority["revocations"] = "revoked"
        head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Inventory"}
        assets = [{"asset": f"node:{name}", **more.get(name, {})} for name in names]
        path = self.folder / "inventory.yaml"
        path.write_text(json.dumps(head | {"authorities": [authority], "assets": assets}))
        facts = StoredFacts(self.folder / "facts", read_inventory(path), nonce=NONCE)
        result = audit(facts, self.catalogue, self.fixtures.policy, self.now)
        return result, [f.reason for f in result.findings if f.check == "ST-AUD-006"]


@pytest.fixture
def fleet(tmp_path, fixtures, catalogue, now):
    made = Fleet(tmp_path, fixtures, catalogue, now)
    yield made
    made.cluster.close()


def test_a_node_that_the_cluster_certified_counts_without_a_key_in_the_inventory(fleet):
    fleet.node("a")
    fleet.node("b", certified="gpu-b.example.org")
    result, refused = fleet.judge("a", "b", b={"certified_as": "gpu-b.example.org"})
    assert refused == []
    assert [one.asset for one in result.assets] == ["node:a", "node:b"]
    assert (result.exit_code, result.notes) == (0, ())


def test_a_job_ca_may_be_the_authority_itself(fleet):
    fleet.node("a", chain=False)
    (fleet.folder / "job.crt").write_bytes(certificate_pem(fleet.job.certificate))
    result, refused = fleet.judge("a", revocations=False, anchor="job.crt")
    assert (refused, len(result.assets)) == ([], 1)
    assert "no list of revocations" in result.notes[0]


def test_one_node_cannot_speak_for_another(fleet):
    fleet.node("a", certified="b")
    result, (reason,) = fleet.judge("a", "b")
    assert result.exit_code == 4
    assert reason == "about node:a, signed by the key of node:b"
    (_, (reason,)) = fleet.judge("a")
    assert "signed by node b" in reason


def test_a_stranger_with_a_ca_of_its_own_is_refused(fleet):
    fleet.node("a", ca=JobCA.create("example.org", "job-1", fleet.began))
    result, (reason,) = fleet.judge("a")
    assert result.exit_code == 4
    assert "not issued by the cluster CA" in reason


def test_a_coordinators_certificate_is_no_nodes(fleet):
    fleet.node("a", role=Role.MEMBER)
    _, (reason,) = fleet.judge("a")
    assert "not a certificate for the role node" in reason


@pytest.mark.parametrize("kind", [Kind.NODE, Kind.SERIAL, Kind.JOB])
def test_a_revoked_node_is_refused(fleet, kind):
    leaf = fleet.node("a")
    name = {Kind.NODE: "a", Kind.SERIAL: f"{leaf.serial_number:x}", Kind.JOB: "job-1"}[kind]
    fleet.cluster.revoke(kind, name, "stolen", fleet.now, fleet.cluster.key())
    result, (reason,) = fleet.judge("a")
    assert result.exit_code == 4
    assert "was revoked" in reason
    # the control: without the list nobody sees it, and the result says so
    result, refused = fleet.judge("a", revocations=False)
    assert refused == []
    assert "no list of revocations" in result.notes[0]


def test_facts_from_before_or_after_the_certificate_are_refused(fleet):
    fleet.node("a", late=timedelta(hours=3))
    fleet.node("b", at=fleet.began - timedelta(hours=12))
    _, reasons = fleet.judge("a", "b")
    assert len(reasons) == 2
    assert all("signed by a certificate that is good from" in one for one in reasons)


def test_a_node_with_keys_of_its_own_is_spoken_for_by_those_alone(fleet):
    fleet.node("a")
    public = PrivateKey.generate().public
    (fleet.folder / "a.pub").write_bytes(public.pem)
    result, (reason,) = fleet.judge("a", a={"key_files": ["a.pub"]})
    assert result.exit_code == 4
    assert "about node:a" in reason


def test_a_signature_by_another_key_than_the_certificates(fleet):
    fleet.node("a")
    place = fleet.folder / "facts" / "a.json"
    first = json.loads(place.read_bytes())
    fleet.node("a")
    second = json.loads(place.read_bytes())
    mixed = {"certificates": first["certificates"], "envelope": second["envelope"]}
    place.write_text(json.dumps(mixed, separators=(",", ":"), sort_keys=True))
    result, (reason,) = fleet.judge("a")
    assert result.exit_code == 4
    assert "trusted keys" in reason


@pytest.mark.parametrize("text", ["", "junk", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_an_authority_that_is_none(fleet, text):
    (fleet.folder / "bad.crt").write_text(text)
    with pytest.raises(AuditError) as refused:
        fleet.judge("a", anchor="bad.crt", revocations=False)
    assert refused.value.code == "ST-AUDT-005"
    assert "bad.crt" in refused.value.where


def test_a_list_of_revocations_by_somebody_else(fleet):
    other = ClusterCA.create(fleet.folder / "ca2", "example.org", fleet.began)
    other.close()
    (fleet.folder / "other.crt").write_bytes(certificate_pem(other.certificate))
    with pytest.raises(AuditError, match="ST-IDEN-012"):
        fleet.judge("a", anchor="other.crt")


@pytest.mark.parametrize(
    ("assets", "message"),
    [
        ([{"asset": "node:a"}, {"asset": "node:b", "certified_as": "a"}], "one name"),
        ([{"asset": "slurm:a", "certified_as": "a"}], "certified_as"),
    ],
)
def test_names_in_certificates_are_of_one_node_each(fleet, assets, message):
    path = fleet.folder / "i.yaml"
    head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Inventory"}
    path.write_text(json.dumps(head | {"assets": assets}))
    with pytest.raises(AuditError, match=message):
        read_inventory(path)
