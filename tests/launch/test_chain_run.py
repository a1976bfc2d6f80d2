# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A whole run: what its statements bind, and a worker that gives its laptop another tier."""

import json
import shutil
from datetime import UTC, datetime

import msgspec
import pytest

from securetrain.artifacts.lineage import head
from securetrain.artifacts.statement.statements import DatasetRef, NodeRef, open_statement, sign
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.chain import documents, verifying
from securetrain.chain.judging import Judgement
from securetrain.chain.links import verified
from securetrain.chain.store import EvidenceStore, document
from securetrain.cli.main import main
from securetrain.core import ExitCode
from securetrain.core.vocabulary import ChainLink, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot, sign_document
from securetrain.launch.setup import prepare_run
from securetrain.ledger import Ledger, events
from securetrain.train.admitted import admitted_nodes
from tests.launch.worlds import write_policy

pytestmark = pytest.mark.dist

SCRIPT = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
import torch, torch.distributed as dist
import securetrain.artifacts as artifacts
dist.init_process_group("gloo")
out, run, model = Path(sys.argv[1]), artifacts.this_run(), torch.nn.Linear(8, 8)
parents = ()
for step in (4, 8):
    model.weight.data.fill_(step)
    context = artifacts.SaveContext(
        run_id=run.run_id, step=step, seq=step, created=datetime.now(UTC), parents=parents
    )
    saved = artifacts.save({"model": model.state_dict()}, out / f"step-{step:08d}", context=context)
    from securetrain.artifacts.statement.statements import Parent
    parents = (Parent(digest=saved.digest),)
# A worker that lies: other nodes, another tier, nothing bound. The launcher signs none of them.
if dist.get_rank() == 0:
    import msgspec
    from securetrain.artifacts.statement.statements import sign
    from securetrain.artifacts.statement.statements import Bound
    from securetrain.core.errors import RuntimeRefusal
    from securetrain.artifacts import Kind
    from securetrain.artifacts.statement.statements import open_statement
    from securetrain.identity.trust import TrustRoot
    root = TrustRoot.load(Path(os.environ["SECURETRAIN_RUN_DIR"]) / "trust.json", datetime.now(UTC))
    data = (out / "step-00000008" / "statement.json").read_bytes()
    said, codes = open_statement(data, Kind.CHECKPOINT, root).checkpoint, []
    node = msgspec.structs.replace(said.nodes[0], tier="tee+gpu")
    other = msgspec.structs.replace(said.bound, policy="0" * 64)
    for lie in ({"nodes": [node]}, {"nodes": []}, {"bound": Bound()}, {"bound": other}):
        try:
            sign(msgspec.structs.replace(said, **lie), "x", run.checkpoint)
        except RuntimeRefusal as refusal:
            codes.append(refusal.code)
    (out / "codes").write_text(" ".join(codes))
dist.barrier()
dist.destroy_process_group()
"""


def asking(path, *links, tier="self-asserted", depth="all"):
    """A policy that asks for these links of a chain."""
    write_policy(
        path,
        node={"min_tier": tier},
        gradients={"mode": "off"},
        checkpoint={"require_lineage": False, "require_clean_verdict": False},
        chain={"require": links, "depth": depth},
    )
    return path


@pytest.fixture
def verify(capsys):
    """Verify a checkpoint as a user does: exit code, codes of the problems, all that was said."""

    def call(path, run, policy, *more, trust=None):
        root = str(trust or run.trust)
        words = ["verify", str(path), "--trust", root, "--policy", str(policy), "--json"]
        capsys.readouterr()
        code = main([*words, *map(str, more)])
        said = json.loads(capsys.readouterr().out)
        return code, [problem["code"] for problem in said["problems"]], said

    return call


def lied(path, run, **changes):
    """The checkpoint again, with a statement that its own key signs."""
    trust = TrustRoot.load(run.trust, datetime.now(UTC))
    said = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust).checkpoint
    key = PrivateKey.load(run.key("checkpoint"))
    made = msgspec.structs.replace(said, **changes)
    (path / STATEMENT).write_bytes(sign(made, path.name, key))
    return said


def test_a_run_binds_its_evidence_and_a_false_tier_is_refused(
    launch, verify, tmp_path, monkeypatch
):
    made = prepare_run(tmp_path / "run", "dev", datetime.now(UTC))
    run = made.run
    (tmp_path / "save.py").write_text(SCRIPT)
    done = launch(
        run.root,
        *("--standalone", "--nproc-per-node", "2"),
        *(str(tmp_path / "save.py"), str(run.checkpoints)),
    )
    assert done.code == 0, done.err
    assert (run.checkpoints / "codes").read_text() == " ".join(["ST-RUNT-031"] * 4)
    (run.checkpoints / "codes").unlink()

    newest = run.checkpoint(8)
    trust = TrustRoot.load(run.trust, datetime.now(UTC))
    opened = open_statement((newest / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    said, store = opened.checkpoint, EvidenceStore(run.evidence)
    (node,) = said.nodes
    assert (node.tier, node.ranks) == (NodeTier.SELF_ASSERTED, [0, 1])
    job = document(store, said.bound.job or "", documents.Job)
    assert job is not None
    assert job.program is not None
    assert job.program.name == "save.py"
    code = document(store, said.bound.code or "", documents.Code)
    assert code is not None
    assert {"torch", "msgspec"} <= {one.name for one in code.distributions}
    assert any(one.path == "save.py" for one in code.files)
    kept = b"".join(data for name in store.names() if (data := store.get(name)))
    for path in (str(tmp_path), "/tmp", "/root"):
        assert path.encode() not in b"".join(
            store.get(digest) or b"" for digest in (said.bound.job, said.bound.code) if digest
        )
    assert kept

    links = ("nodes", "membership", "policy", "job", "code", "environment", "parents", "ledger")
    asked = asking(tmp_path / "asked.yaml", *links)
    code_, codes, all_said = verify(newest, run, asked)
    assert (code_, codes) == (0, []), all_said

    # What cannot be shown is missing, and no pass.
    every = asking(tmp_path / "every.yaml", *ChainLink)
    assert set(verify(newest, run, every)[1]) == {
        *("ST-CHAN-015", "ST-CHAN-016", "ST-CHAN-017", "ST-CHAN-020", "ST-CHAN-021"),
        "ST-CHAN-023",
        "ST-CHAN-026",
    }

    # The measured attack: the statement says tee+gpu, and the checkpoint's own key has signed it.
    first = run.checkpoint(4)
    strict = asking(tmp_path / "strict.yaml", "nodes", tier="tee+gpu")
    laptop = NodeRef(node=node.node, tier=NodeTier.TEE_GPU, ranks=[0, 1], result=node.result)
    before = lied(first, run, nodes=[laptop])
    code_, codes, _ = verify(first, run, strict)
    assert (code_, set(codes)) == (ExitCode.LINEAGE, {"ST-CHAN-010"})
    # An ancestor's lie is found from its descendant, by its own link and by the parent's.
    assert {"ST-CHAN-010", "ST-CHAN-018"} <= set(verify(newest, run, asked)[1])
    lied(first, run, nodes=before.nodes)
    assert verify(newest, run, asked)[1] == []

    # Evidence that is removed where it is kept: every link that needs it is named.
    for link, code_ in (("job", "ST-CHAN-022"), ("policy", "ST-CHAN-012")):
        path = run.evidence / getattr(said.bound, link)
        away = path.rename(tmp_path / path.name)
        assert set(verify(newest, run, asked)[1]) == {code_}
        shutil.move(away, path)
    # A ledger that is cut, and one of another run.
    ledger = run.ledger.read_bytes()
    run.ledger.write_bytes(b"\n".join(ledger.split(b"\n")[:3]) + b"\n")
    assert set(verify(newest, run, asked)[1]) == {"ST-CHAN-019"}
    run.ledger.write_bytes(ledger)
    foreign_line(run, newest, verify, tmp_path, monkeypatch)


def foreign_line(run, path, verify, tmp_path, monkeypatch):
    """The measured attack: ``node-admitted`` by ``keys/worker.pem``, taken over by a statement."""
    now = datetime.now(UTC)
    trust = TrustRoot.load(run.trust, now)
    said = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust).checkpoint
    lines = run.ledger.read_bytes().split(b"\n")
    run.ledger.write_bytes(b"\n".join(lines[:-2]) + b"\n")  # it is not closed yet
    worker = PrivateKey.load(run.key("worker"))
    ledger = Ledger(run.ledger, worker, "rank-0", lambda: datetime.now(UTC))
    (node,) = said.nodes
    ledger.write(
        events.NodeAdmitted(
            subject=node.node, tier=NodeTier.TEE_GPU, label="tee+gpu", result=node.result
        )
    )
    old = older_trust(run, tmp_path)
    taken = admitted_nodes(head.read_run_ledger(run.ledger, old).events, 2)
    assert [node.tier for node in taken] == [NodeTier.TEE_GPU]
    # A root that names roles does not take the line over at all.
    now_taken = admitted_nodes(head.read_run_ledger(run.ledger, trust).events, 2)
    assert [node.tier for node in now_taken] == [NodeTier.SELF_ASSERTED]
    lied(path, run, nodes=list(taken), dataset=DatasetRef(name="prose", digest="ab" * 32))

    strict = asking(tmp_path / "tee.yaml", tier="tee+gpu", depth="checkpoint")
    by_ledger = asking(tmp_path / "by-ledger.yaml", "ledger", depth="checkpoint")
    roots = {"older": tmp_path / "older.json", "named": run.trust}
    for name, root in roots.items():
        # With the check off, the statement's own word counts: that is how it was measured.
        with monkeypatch.context() as off:
            off.setattr(verifying, "judge", lambda link, one, _: own_word(link, one.opened))
            off.setattr(verifying, "judge_chain", lambda *_: Judgement())
            code, codes, _ = verify(path, run, strict, trust=root)
            assert (code, codes) == (0, [])
        codes = verify(path, run, strict, trust=root)[1]
        assert set(codes) == {"ST-CHAN-010", *(["ST-CHAN-019"] if name == "named" else [])}
    # The statement is honest again; the line alone is refused, too.
    lied(path, run, nodes=said.nodes, dataset=said.dataset)
    for root in roots.values():
        assert set(verify(path, run, by_ledger, trust=root)[1]) == {"ST-CHAN-019"}
    # Without the line, a root that names no roles still shows nothing of who wrote what.
    run.ledger.write_bytes(b"\n".join(lines))
    assert set(verify(path, run, by_ledger, trust=roots["older"])[1]) == {"ST-CHAN-019"}
    assert verify(path, run, by_ledger, trust=roots["named"])[1] == []


def own_word(link, opened):
    return verified(link, "", {node.node: node.tier for node in opened.checkpoint.nodes})


def older_trust(run, folder):
    """The run's trust root, as one of before the roles of a ledger's writers."""
    now = datetime.now(UTC)
    document_ = TrustRoot.load(run.trust, now).document
    roles = {role: keys for role, keys in document_.roles.items() if not role.startswith("ledger-")}
    made = msgspec.structs.replace(document_, roles=roles)
    data = sign_document(made, [PrivateKey.load(run.key("root"))])
    (folder / "older.json").write_bytes(data)
    return TrustRoot.parse(data, now)
