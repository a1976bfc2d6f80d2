# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Two nodes train, log and witness one run: its pack proves it, and a worker's lies are refused."""

import json
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from securetrain.artifacts.lineage.folder import proof_name
from securetrain.artifacts.statement.statements import open_statement, sign
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.chain import judging
from securetrain.chain.exports.writing import ExportFormat
from securetrain.chain.links import verified
from securetrain.cli import clock as cli_clock
from securetrain.cli.main import main
from securetrain.core import ExitCode
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity import Chain, Role, load_certificate, trust_domain_of
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import Authority, TrustRole, TrustRoot, sign_document
from securetrain.ledger import Ledger, events
from securetrain.testing.cluster import missing
from tests.launch import two_nodes
from tests.launch.two_nodes import PATIENCE, TwoNodes, up, with_witnesses
from tests.launch.worlds import run_with_documents
from tests.vocabulary import needs, ran

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.many,
    needs(missing),
]

JOB = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: tiny
steps: 4
launch: {nnodes: 2}
model: {dim: 32, layers: 1, heads: 2, ffn: 48}
data: {seq_len: 32, batch_rows: 4}
optimizer: {warmup_steps: 2}
checkpoint: {every: 2}
metrics: {console_every: 0, tensorboard: false}
eval: {every: 4, rows: 4}
"""
RANKS_OWN = {ChainLink.ROWS, ChainLink.GRADIENTS}
"""Missing here: where a node joins a coordinator elsewhere, its ranks sign nothing."""
ON_REQUEST = {ChainLink.TABLES, ChainLink.REPLAY}
"""Of a run that kept its tables, or that somebody has done again."""
LINKS = ", ".join(link for link in ChainLink if link not in RANKS_OWN | ON_REQUEST)
ASKS = """\
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {{id: asks, version: 1.0.0}}
extends: dev
node: {{min_tier: {tier}, allow_self_asserted: {{max_nodes: 2, reason: a test}}}}
checkpoint: {{require_lineage: false, require_clean_verdict: false}}
chain: {{require: [{links}], depth: {depth}}}
"""
CLUSTER = """\
from securetrain.chain import Keeper
from securetrain.chain.store import EvidenceStore
from securetrain.identity import ClusterCA
cluster = ClusterCA.create(folder / "ca", policy.policy.identity.trust_domain, now())
ca = cluster.job(sys.argv[4], now(), cluster.key)
"""
"""In place of a job CA of its own: as `securetrain coordinator` has it."""


class Trained(TwoNodes):
    """The built-in trainer on one run directory on one disk; each machine has its own memory."""

    shared = "run"
    remembers = True
    patience = 2 * PATIENCE

    def script(self, **_):
        return ("-m", "securetrain.train", self.folder / "job.yaml")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A run of two nodes that has ended well."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(with_witnesses(tmp_path))
    (tmp_path / "job.yaml").write_text(JOB)
    run = run_with_documents(tmp_path / "run", str(policy)).run
    own = "ca = JobCA.create(policy.policy.identity.trust_domain, sys.argv[4], now())\n"
    keep = 'keep=Keeper(store=EvidenceStore(folder / "coordinator" / "evidence"))'
    code = two_nodes.COORDINATE.replace(own, CLUSTER)
    code = code.replace("vault=vault, **lease", f"vault=vault, {keep}, **lease")
    monkeypatch.setattr(two_nodes, "COORDINATE", code)
    with up(tmp_path, kind=Trained) as nodes:
        nodes.train()
    trust_the_cluster(run, tmp_path)
    return RunDir(tmp_path / "run")


def trust_the_cluster(run, folder):
    """The auditor's trust root: the run's, with the cluster CA that vouches for coordinators."""
    certificate = load_certificate((folder / "ca" / "ca.crt").read_bytes(), "ca.crt")
    known = TrustRoot.load(run.trust, datetime.now(UTC)).document
    authority = Authority(
        role=TrustRole.NODE,
        certificate=Chain.of([certificate]).certificates[0],
        trust_domain=trust_domain_of(certificate),
        parties=[Role.COORDINATOR],
    )
    made = msgspec.structs.replace(
        known, version=known.version + 1, authorities=[*known.authorities, authority]
    )
    data = sign_document(made, [PrivateKey.load(run.key("root"))])
    (folder / "auditor.json").write_bytes(data)


class Asker:
    """Packs and verifies as a user does."""

    def __init__(self, run, folder, capsys):
        self.run, self.folder, self.capsys = run, folder, capsys
        self.trust, self.number = str(folder / "auditor.json"), 0

    def pack(self, *more):
        self.number += 1
        out = self.folder / f"{self.number}.stpack"
        words = [str(self.run.checkpoint(4)), "--trust", self.trust, "--out", str(out)]
        evidence = ["--evidence", str(self.folder / "coordinator")]
        self.capsys.readouterr()
        assert main(["pack", *words, *evidence, "--json", *more]) == 0, self.capsys.readouterr()
        return out

    def policy(self, links=LINKS, depth="all", tier="self-asserted"):
        path = self.folder / "asks.yaml"
        path.write_text(ASKS.format(links=links, depth=depth, tier=tier))
        return str(path)

    def words(self, path, *more, policy=""):
        asked = ["--policy", policy or self.policy(), "--trust", self.trust]
        return ["verify", str(path), *asked, "--json", *more]

    def verify(self, path, *more, policy=""):
        self.capsys.readouterr()
        code = main(self.words(path, *more, policy=policy))
        said = json.loads(self.capsys.readouterr().out)
        return code, {problem["code"] for problem in said["problems"]}, said


def test_two_nodes_are_proven_by_one_file(trained, tmp_path, capsys, monkeypatch):
    run, ask = trained, Asker(trained, tmp_path, capsys)
    path = ask.pack("--weights-since", "2", "--rows", "1-4")
    code, codes, said = ask.verify(path)
    assert (code, codes) == (0, set()), said
    first = said["checkpoints"][0]["links"]
    others = {name for name, one in first.items() if one["state"] != "verified"}
    assert others == RANKS_OWN | ON_REQUEST
    assert {first[name]["state"] for name in RANKS_OWN} == {"missing"}
    assert {first[name]["state"] for name in ON_REQUEST} == {LinkState.NOT_ASKED}
    # Under the run's own root alone, nobody vouches for a coordinator elsewhere.
    with monkeypatch.context() as own:
        own.setattr(ask, "trust", str(run.trust))
        assert {"ST-CHAN-010", "ST-CHAN-011"} <= ask.verify(path)[1]
    assert len(said["held"]) == 3
    # Where there is no network at all.
    alone = [sys.executable, "-m", "securetrain", *ask.words(path)]
    ran(["unshare", "-n", *alone])
    ten_years_on(ask, path, run, monkeypatch)
    for kind in ExportFormat:
        out = tmp_path / f"{kind}.json"
        words = ["--trust", ask.trust, "--format", str(kind), "--out", str(out)]
        # What the ranks did not sign is declared, or left out.
        assert main(["export", str(path), *words]) == ExitCode.INCOMPLETE
        assert json.loads(out.read_text())
    html = tmp_path / "pack.html"
    words = ["--trust", ask.trust, "--policy", ask.policy(), "--html", str(html)]
    assert main(["report", str(path), *words]) == 0
    assert "<script" not in html.read_text()
    a_worker_lies(ask, run, monkeypatch)


def ten_years_on(ask, path, run, monkeypatch):
    """By the witnesses' time, under a trust root that has expired since."""

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3653)

    with monkeypatch.context() as clock:
        clock.setattr(cli_clock, "datetime", Later)
        assert ask.verify(path, "--at", "witness")[:2] == (0, set())
        assert main(ask.words(path)) != 0


def a_worker_lies(ask, run, monkeypatch):
    """One line by ``keys/worker.pem`` makes both laptops ``tee+gpu``, in the statement, too."""
    newest = run.checkpoint(4)
    honest, ledger = (newest / STATEMENT).read_bytes(), run.ledger.read_bytes()
    trust = TrustRoot.load(run.trust, datetime.now(UTC))
    said = open_statement(honest, Kind.CHECKPOINT, trust).checkpoint
    assert len(said.nodes) == 2
    run.ledger.write_bytes(b"\n".join(ledger.split(b"\n")[:-2]) + b"\n")  # it is not closed yet
    worker = PrivateKey.load(run.key("worker"))
    book = Ledger(run.ledger, worker, "rank-0", lambda: datetime.now(UTC))
    for node in said.nodes:
        tier = NodeTier.TEE_GPU
        line = events.NodeAdmitted(subject=node.node, tier=tier, label=tier, result=node.result)
        book.write(line)
    # The line alone.
    code, codes, _ = ask.verify(ask.pack())
    assert (code != 0, codes) == (True, {"ST-CHAN-019"})
    nodes = [msgspec.structs.replace(one, tier=NodeTier.TEE_GPU) for one in said.nodes]
    lie = msgspec.structs.replace(said, nodes=nodes)
    key = PrivateKey.load(run.key("checkpoint"))
    (newest / STATEMENT).write_bytes(sign(lie, newest.name, key))
    # The proof is of the honest statement: a liar leaves it out.
    proof = newest.with_name(proof_name(newest.name))
    assert "ST-CKPT-180" in ask.verify(ask.pack())[1]
    logged = proof.read_bytes()
    proof.unlink()
    strict = ask.policy(links="nodes", depth="checkpoint", tier="tee+gpu")
    path = ask.pack()
    code, codes, _ = ask.verify(path, policy=strict)
    assert code != 0
    assert "ST-CHAN-010" in codes
    # With the judges away, the statement's own word counts.
    own = {one.node: one.tier for one in nodes}
    with monkeypatch.context() as off:
        for link in ChainLink:
            judge = lambda *_, link=link: verified(link, "anything", own)  # noqa: E731
            off.setitem(judging.JUDGES, link, judge)
        assert ask.verify(path, policy=strict)[:2] == (0, set())
    proof.write_bytes(logged)
    (newest / STATEMENT).write_bytes(honest)
    run.ledger.write_bytes(ledger)
    assert ask.verify(ask.pack())[:2] == (0, set())
