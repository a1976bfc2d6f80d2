# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run directory with real keys, signatures and ledger, and curves like those of a real run."""

import json
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DataFile,
    DatasetPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    IndexFile,
    Parent,
    PolicyRef,
    RankFile,
    Split,
    TreeInfo,
    digest_of,
    sign,
)
from securetrain.core.errors import AdmissionError
from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import NetworkProfile, NodeTier, tier_label
from securetrain.ledger import events
from securetrain.testing.runs import SmallRun, make_run

TREE = TreeInfo(algorithm=HashAlgorithm.BLAKE3, leaf_size=1 << 20)


@pytest.fixture
def bare(tmp_path: Path) -> SmallRun:
    """Keys, trust root, policy and a ledger of one entry; nothing else."""
    return make_run(tmp_path / "run")


@pytest.fixture
def full(tmp_path: Path) -> SmallRun:
    """Everything that a report can show."""
    return add_history(make_run(tmp_path / "run"))


@pytest.fixture(scope="session")
def fill() -> Callable[..., SmallRun]:
    """Adds a whole history to a run; a text given as `hostile` goes into every free text."""
    return add_history


@pytest.fixture
def refuse() -> Callable[..., None]:
    """Adds a refusal at the rendezvous to a run's ledger."""
    return add_refusal


def add_history(run: SmallRun, hostile: str = "") -> SmallRun:
    """Add a whole history; `hostile` goes into every free text."""
    now = run.clock()
    ledger, worker = run.ledger(), run.ledger("rank-0")
    tier = NodeTier.SELF_ASSERTED
    ledger.write(events.NodeAdmitted(subject=f"node-0{hostile}", tier=tier, label=tier_label(tier)))
    ledger.write(events.RoundFormed(subject="epoch 0", round=1, nodes=1))
    ledger.write(events.ProfileAchieved(subject="loopback", network=NetworkProfile.LOOPBACK))
    ledger.write(events.PinnedVariablesRemoved(names=f"NCCL_DEBUG{hostile}"))
    worker.write(events.DatasetOpened(subject=f"prose{hostile}"))
    worker.write(
        events.TrainingFinished(subject="step 300", tokens=300, refused=0, observed=0, loss=1.5)
    )
    worker.write(
        events.CheckpointSigned(
            subject="step-00000300", step=300, digest="ab" * 32, verdict="clean"
        )
    )
    data = _dataset(run, now, hostile)
    _checkpoints(run, now, data)
    _curves(run)
    _write(run.run_dir.audit, _audit(hostile))
    _write(run.run_dir.root / "drills.json", {"drills": [_drill(hostile)]})
    _write(
        run.run_dir.summary,
        {
            "run_id": f"demo{hostile}",
            "outcome": "succeeded",
            "exit_code": 0,
            "network": "loopback",
            "world_size": 3,
            "started": "2026-01-01T00:00:00.000000Z",
            "ended": None,
            "command": ["--standalone", f"train.py{hostile}"],
        },
    )
    ledger.close()
    return run


def add_refusal(run: SmallRun, hostile: str = "") -> None:
    """Add a refusal at the rendezvous."""
    error = AdmissionError("ST-ADMN-004", f"the peer belongs to another job{hostile}")
    run.ledger().write(events.NodeRefused.of(error, f"node-9{hostile}"))


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _dataset(run: SmallRun, now: datetime, hostile: str) -> DatasetPredicate:
    files = [
        DataFile(name="train.bin", size=1_900_000, root="11" * 32),
        DataFile(name="validation.bin", size=160_000, root="22" * 32),
    ]
    predicate = DatasetPredicate(
        name=f"prose{hostile}",
        seq=1,
        created=now,
        tree=TREE,
        files=files,
        splits=[
            Split(name="train", files=["train.bin"]),
            Split(name="validation", files=["validation.bin"]),
        ],
        metadata={"documents": "613", "source": f"CPython 3.11{hostile}"},
    )
    run.run_dir.dataset.mkdir()
    (run.run_dir.dataset / "statement.json").write_bytes(
        sign(predicate, "dataset", run.keys["dataset"])
    )
    return predicate


def _checkpoints(run: SmallRun, now: datetime, data: DatasetPredicate) -> None:
    parents: list[Parent] = []
    for seq, step in enumerate((100, 200, 300)):
        predicate = CheckpointPredicate(
            run_id="demo",
            step=step,
            seq=seq,
            save_id=f"{seq:032x}",
            created=now,
            world_size=3,
            tree=TREE,
            files=[RankFile(name="rank-00000.bin", size=7_500_000, root=f"{seq:064x}", rank=0)],
            index=IndexFile(name="index.json", size=900, sha256="33" * 32),
            parents=parents,
            dataset=DatasetRef(name="prose", digest=digest_of(data)),
            policy=PolicyRef(id="dev", digest=run.policy.digest),
            gradients=GradientRecord(verdict=GradientVerdict.CLEAN, judged=step),
        )
        folder = run.run_dir.checkpoint(step)
        folder.mkdir()
        (folder / "statement.json").write_bytes(
            sign(predicate, folder.name, run.keys["checkpoint"])
        )
        parents = [Parent(digest=digest_of(predicate))]


def _curves(run: SmallRun) -> None:
    metrics, sketches = [], []
    for step in range(1, 91):
        bits = 2.4 + 5.6 * math.exp(-step / 45) + 0.05 * math.sin(step * 1.7)
        line = {"step": step, "loss": bits * math.log(2), "bits_per_byte": bits}
        line |= {"grad_norm": 0.4 + 3 * math.exp(-step / 20) + 0.1 * abs(math.sin(step))}
        line |= {"seconds": 0.2 + 0.01 * (step % 7), "data_seconds": 0.004 * (step % 3)}
        if step % 30 == 0:
            line |= {"val_bits_per_byte": bits + 0.1, "unigram_bits": 4.76, "bigram_bits": 3.77}
        metrics.append(json.dumps(line))
        table = [
            {
                "rank": rank,
                "finite": True,
                "norm": 1.0,
                "evidence": 1.5 + math.sin(step * (rank + 1)),
                "limit": 10.8,
            }
            for rank in range(3)
        ]
        verdict = {
            "step": step,
            "ok": True,
            "response": "observe",
            "table": table,
            "integrity": 0.5,
        }
        sketches.append(json.dumps({"verdict": verdict, "totals": {}, "world_size": 3}))
    run.run_dir.metrics.write_text("\n".join(metrics) + "\n")
    run.run_dir.sketches.write_text("\n".join(sketches) + "\n")


def _audit(hostile: str) -> dict[str, object]:
    rows = [
        ("ST-HST-001", "Core dumps are off", "medium", "host", "fail"),
        ("ST-HST-002", "The kernel refuses unsigned modules", "high", "host", "unknown"),
        ("ST-SUP-001", "torch is recent enough", "high", "supply-chain", "pass"),
        ("ST-DBG-001", "No debug server listens", "high", "debug", "pass"),
        ("ST-FAB-001", "RDMA devices are isolated", "high", "fabric", "not-applicable"),
    ]
    findings = [
        {
            "check": check,
            "title": title + hostile,
            "severity": severity,
            "boundary": boundary,
            "state": state,
            "subject": "node",
            "evidence": f"kernel.core_pattern is |/usr/share/apport{hostile}",
            "remediation": f"ulimit -c 0{hostile}",
        }
        for check, title, severity, boundary, state in rows
    ]
    return {"findings": findings, "counts": {"pass": 2, "fail": 1, "unknown": 1}, "exit_code": 1}


def _drill(hostile: str) -> dict[str, object]:
    def side(name: str, **values: object) -> dict[str, object]:
        return {"side": name, "evidence": f"The {name} side said so.{hostile}", **values}

    return {
        "id": "D-RDZ-PICKLE",
        "title": "Run code in the launcher",
        "boundary": "rendezvous",
        "expected_code": "ST-ADMN-002",
        "plain": side("plain", succeeded=True, refused=False, code=""),
        "hardened": side("hardened", succeeded=False, refused=True, code="ST-ADMN-002"),
        "ok": True,
        "problem": "",
    }
