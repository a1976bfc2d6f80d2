# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run's evidence as facts: what does not verify is none, and never a pass."""

import base64
import hashlib
import json
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.session import write_reference_values
from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.facts import decode_body
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.run.collect import collect_run
from securetrain.audit.subjects.run.facts import RunFacts
from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import NodeTier, State
from securetrain.evidence import EnrolledNode, ReferenceValues
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import events
from securetrain.policy import load_policy
from securetrain.testing.runs import make_run
from tests.audit.conftest import NOW

CHECKS = [check for check in load_checks() if check.kind == "run"]
MINUTE = timedelta(minutes=1)


class Job:
    """A run of two nodes that goes on, its auditor's trust root and inventory."""

    def __init__(self, folder):
        self.folder, self.time = folder, NOW - 5 * MINUTE
        self.run = make_run(folder / "run", policy="baseline", clock=lambda: self.time)
        self.trust = folder / "trust.json"
        self.trust.write_bytes(self.run.run_dir.trust.read_bytes())
        self.policy = load_policy("baseline")
        self.inventory = ["a", "b"]
        self.digest = ""

    def write(self, *said, writer="agent"):
        for event in said:
            self.run.ledger(writer).write(event)

    def node(self, name, event=events.NodeAdmitted, **more):
        subject = f"spiffe://example.org/job/j/node/{name}"
        if event in {events.NodeAdmitted, events.LeaseRenewed}:
            more = {"tier": NodeTier.TPM, **more}
        if event is events.NodeAdmitted:
            more = {"reference_values": self.digest, **more}
        self.write(event(subject=subject, **more))

    def start(self, *names, ranks="0-7 8-15", nodes=None):
        self.write(events.CoordinatorStarted(address="x", policy="p"))
        for name in names:
            self.node(name)
        self.epoch(nodes or " ".join(names), ranks)

    def epoch(self, nodes, ranks, number=0):
        count = len(nodes.split())
        self.write(
            events.RoundFormed(subject=f"epoch {number}", round=0, nodes=count),
            events.EpochStarted(subject=f"epoch {number}", epoch=number, nodes=nodes, ranks=ranks),
        )

    def judge(self, now=NOW):
        body = collect_run(
            self.run.run_dir.root,
            now=now,
            trust=self.trust,
            policy=self.policy,
            inventory=self.inventory,
        )
        assert decode_body(body.to_json(), {"run": RunFacts}, "x") == body
        result = audit(facts_of([body]), CHECKS, self.policy.policy, now)
        return {
            check.id: [f for f in result.findings if f.check == check.id and f.state != "pass"]
            for check in CHECKS
        }


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def states(found):
    return {check: sorted({one.state for one in some}) for check, some in found.items()}


GOOD: dict[str, list[str]] = {"ST-HST-001": [], "ST-RDZ-014": []}


def test_a_run_of_two_attested_nodes_passes(job):
    job.start("a", "b")
    assert states(job.judge()) == GOOD


def test_a_stranger_among_the_ranks_is_named_with_its_line(job):
    job.start("a", "evil")
    (bad,) = job.judge()["ST-RDZ-014"]
    assert (bad.state, bad.subject) == (State.FAIL, "run.ranks[8-15]")
    assert "evil" in bad.reason
    line = job.run.run_dir.ledger.read_text().splitlines()[bad.location.line - 1]
    assert "epoch-started" in line


@pytest.mark.parametrize(
    ("nodes", "ranks", "said"),
    [("a b", "0-7 9-15", "rank 8 should come next"), ("a a", "0-7 0-7", "rank 8 should come"),
     ("a b", "0-7 7-15", "rank 8 should")],
)  # fmt: skip
def test_ranks_that_overlap_or_are_missing(job, nodes, ranks, said):
    job.start("a", "b", nodes=nodes, ranks=ranks)
    assert said in job.judge()["ST-RDZ-014"][0].reason


def test_a_member_that_was_never_admitted_fails_both(job):
    job.start("a", nodes="a b")
    assert states(job.judge()) == {"ST-HST-001": ["fail"], "ST-RDZ-014": ["fail"]}


def test_launchers_that_disagree_about_an_epoch(job):
    job.start("a", "b")
    job.write(events.EpochStarted(subject="epoch 0", epoch=0, nodes="a c", ranks="0-7 8-15"))
    found = job.judge()["ST-RDZ-014"]
    assert any("another launcher says" in one.reason for one in found)


def test_the_newest_epoch_counts(job):
    job.start("a", "evil")
    job.epoch("a b", "0-7 8-15", number=1)
    job.node("b")
    assert states(job.judge()) == GOOD


@pytest.mark.parametrize("tier", [NodeTier.SELF_ASSERTED, NodeTier.TEST_ONLY])
def test_a_node_that_spoke_for_itself(job, tier):
    job.start("a", "b")
    job.node("b", events.LeaseRenewed, tier=tier)
    (bad,) = job.judge()["ST-HST-001"]
    assert bad.subject == "run.nodes[b]"
    assert f"the tier {tier}" in bad.reason


def test_a_proof_that_was_not_renewed(job):
    job.start("a", "b")
    job.time = NOW + 5 * MINUTE
    job.node("a", events.LeaseRenewed)
    (bad,) = job.judge(NOW + 10 * MINUTE)["ST-HST-001"]
    assert (bad.subject, bad.state) == ("run.nodes[b]", State.FAIL)
    assert "15 minutes old" in bad.reason
    # what ended is judged by its end
    job.time = NOW + 7 * MINUTE
    job.write(events.RunEnded(outcome="succeeded", exit_code=0))
    assert "12 minutes old when" in job.judge(NOW + timedelta(hours=2))["ST-HST-001"][0].reason
    assert job.judge(NOW)["ST-RDZ-014"] == []


def test_a_refusal_counts_until_the_node_proves_itself(job):
    job.start("a", "b")
    job.node("b", events.NodeEvicted, code="ST-ATTS-309")
    (bad,) = job.judge()["ST-HST-001"]
    assert "ST-ATTS-309" in bad.reason
    job.node("b", events.LeaseRenewed)
    assert job.judge()["ST-HST-001"] == []


def fleet(job, *names, signer=None, expires=timedelta(days=3)):
    key = PrivateKey.generate()
    values = ReferenceValues(
        version=1,
        issued=NOW - timedelta(days=1),
        expires=NOW + expires,
        nodes={name: EnrolledNode() for name in names},
    )
    write_reference_values(job.folder / "fleet.json", values, signer or key)
    text = base64.b64encode(key.public.spki).decode()
    (job.folder / "fleet.yaml").write_text(
        "extends: baseline\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
        "metadata: {id: fleet, version: 1.0.0}\n"
        f"node: {{reference_values: {{file: fleet.json, signed_by: [{text}]}}}}\n"
    )
    job.policy = load_policy(str(job.folder / "fleet.yaml"))
    job.digest = hashlib.sha256(canonical.encode(values)).hexdigest()


def test_reference_values_are_an_inventory_and_what_nodes_are_compared_with(job):
    fleet(job, "a", "b")
    job.inventory = None
    job.start("a", "b")
    assert states(job.judge()) == GOOD
    fleet(job, "a")
    found = job.judge()
    assert [one.reason for one in found["ST-RDZ-014"]] == [
        "they are on b, which the inventory does not list"
    ]
    assert "was not compared with" in found["ST-HST-001"][0].reason


@pytest.mark.parametrize("how", ["other-signer", "over", "gone"])
def test_reference_values_that_cannot_be_believed_leave_it_open(job, how):
    fleet(job, "a", "b")
    job.start("a", "b")
    assert states(job.judge()) == GOOD
    if how == "gone":
        (job.folder / "fleet.json").unlink()
    else:
        signer = PrivateKey.generate() if how == "other-signer" else None
        fleet(job, "a", "b", signer=signer, expires=timedelta(days=3 if signer else -1) / 2)
    assert states(job.judge()) == {"ST-HST-001": ["unknown"], "ST-RDZ-014": ["unknown"]}


def test_without_any_list_of_nodes_the_place_of_ranks_is_unknown(job):
    job.inventory = None
    job.start("a", "b")
    found = job.judge()
    assert states(found) == {"ST-HST-001": [], "ST-RDZ-014": ["unknown"]}
    assert "--inventory" in found["ST-RDZ-014"][0].reason


def edit(job, change):
    path = job.run.run_dir.ledger
    path.write_bytes(change(path.read_bytes()))


FORGERIES = {
    "a word is changed": lambda data: data.replace(b"self-asserted", b"tpm"),
    "a line is taken out": lambda data: b"".join(data.splitlines(keepends=True)[:-2]) + b"\n",
    "the last line is cut": lambda data: data[:-20],
    "it is emptied": lambda data: b"",
    "it is no ledger": lambda data: b"{}\n" + data,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_ledger_that_does_not_verify_is_no_evidence(job, name):
    job.start("a", "evil")
    job.node("evil", events.LeaseRenewed, tier=NodeTier.SELF_ASSERTED)
    assert states(job.judge()) == {"ST-HST-001": ["fail"], "ST-RDZ-014": ["fail"]}
    edit(job, FORGERIES[name])
    assert states(job.judge()) == {"ST-HST-001": ["unknown"], "ST-RDZ-014": ["unknown"]}


def test_a_run_directory_of_somebody_elses_making_is_no_evidence(job, tmp_path):
    """Whoever can write the directory can sign all of it anew: the auditor's root decides."""
    job.start("a", "b")
    forged = Job.__new__(Job)
    (tmp_path / "other").mkdir()
    Job.__init__(forged, tmp_path / "other")
    forged.start("a", "b")
    assert states(forged.judge()) == GOOD
    forged.trust = job.trust
    assert states(forged.judge()) == {"ST-HST-001": ["unknown"], "ST-RDZ-014": ["unknown"]}
    forged.trust = None
    found = forged.judge()
    assert states(found) == {"ST-HST-001": ["unknown"], "ST-RDZ-014": ["unknown"]}
    assert "--trust" in found["ST-HST-001"][0].reason


def test_a_worker_that_admits_a_node_makes_the_ledger_no_evidence(job):
    job.start("a")
    subject = "spiffe://example.org/job/j/node/evil"
    job.write(events.NodeAdmitted(subject=subject, tier=NodeTier.TPM), writer="rank-0")
    found = job.judge()
    assert states(found) == {"ST-HST-001": ["unknown"], "ST-RDZ-014": ["unknown"]}
    assert "count for nothing" in found["ST-HST-001"][0].reason


def test_a_ledger_without_the_coordinator_or_without_an_epoch_leaves_it_open(job):
    assert states(job.judge()) == {"ST-HST-001": ["unknown"], "ST-RDZ-014": ["unknown"]}
    job.epoch("a b", "0-7 8-15")
    found = job.judge()
    assert "no coordinator" in found["ST-HST-001"][0].reason
    assert found["ST-RDZ-014"][0].state is State.UNKNOWN


def test_a_directory_that_is_none_is_an_error(job, tmp_path):
    with pytest.raises(UsageError, match="no run directory"):
        collect_run(tmp_path, now=NOW, trust=job.trust, policy=job.policy)


def test_facts_of_a_run_hold_no_secret_and_little(job):
    job.start("a", "b")
    body = collect_run(
        job.run.run_dir.root, now=NOW, trust=job.trust, policy=job.policy, inventory=["a"]
    )
    assert len(body.to_json()) < 4000
    assert "PRIVATE" not in json.dumps(msgspec.to_builtins(body), default=str)
