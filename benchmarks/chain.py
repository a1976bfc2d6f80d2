# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A pack of a long run, and a checkpoint of many ranks: what a verifier needs for them.

``python benchmarks/chain.py PACK TRUST`` is the verifier that is measured: a process of its own,
because memory that was once used is seldom given back. Its processor time counts from the open file
to the verdict; starting Python does not.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ab import Benchmark, Figure, Goal, Side
from securetrain.artifacts.statement import (
    Bound,
    CheckpointPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    Opened,
    Parent,
    members,
    open_statement,
)
from securetrain.artifacts.statement.checkpoint_predicate import RankFile
from securetrain.artifacts.statement.statements import sign
from securetrain.artifacts.tree.layout import INDEX, Kind
from securetrain.chain import documents, packing
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.packed import verify_pack
from securetrain.chain.records import Recorder
from securetrain.chain.row_order import RowOrder
from securetrain.chain.store import InMemory
from securetrain.core import canonical
from securetrain.core.vocabulary import ChainLink
from securetrain.guard import Judged, Layout, StepTable
from securetrain.guard.openings import opening_of
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.ledger import Ledger, events
from securetrain.train.kept_tables import keeper_of_tables

ROOT: Final = Path(__file__).resolve().parent.parent
ANCESTORS: Final = 10_000
RANKS: Final = 1024
NODES: Final = 128
STEPS: Final = 8
RECORDED: Final = 10_000
LINES: Final = 100
"""Lines of the ledger."""
_SEQ: Final = 32
_WIDTH: Final = 128
_LEFT_OUT: Final = {ChainLink.LOG, ChainLink.TIME, ChainLink.REPLAY, ChainLink.TABLES}
LINKS: Final = tuple(link for link in ChainLink if link not in _LEFT_OUT)
"""All for which a run itself has evidence, and that need no more than its records: no proof of a
log, nobody who did the steps again, and no tables.
"""
_SETTINGS: Final[dict[str, Any]] = {
    "seed": 7,
    "data": {"train_split": "train", "seq_len": 32, "batch_rows": 16, "order": None}
    | {"format": "bytes", "epochs": 1},
}
_ORDER: Final = RowOrder(
    kind="random", seed=7, split="train", starts=968, seq_len=32, batch_rows=16
)


@dataclass
class LongRun:
    """A run with evidence for every link but the log's."""

    nodes: int = 1
    local_world: int = 2
    steps: int = STEPS
    """Between two checkpoints."""
    rows: int = 16
    """Of a step."""
    tabled: bool = False
    """Whether records name what the ranks said of their gradients."""
    roles: Any = None
    documents: list[Document] = field(default_factory=list)
    entries: list[packing.Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        from tests.chain.conftest import NOW, Job, Roles
        from tests.chain.test_steps import dataset

        self.now = NOW
        self.roles = Roles()
        self.key, self.writer = PrivateKey.generate(), PrivateKey.generate()
        policy = canonical.encode(self.policy())
        pieces = InMemory()
        self.policy_digest = pieces.put(policy)
        names = tuple(f"node-{number}" for number in range(self.nodes))
        month = timedelta(days=30)
        self.job = Job(
            roles=self.roles,
            nodes=names,
            policy=self.policy_digest,
            lease=month,
            pieces=pieces,
            local_world=self.local_world,
        )
        self.order = msgspec.structs.replace(_ORDER, batch_rows=self.rows)
        settings = _SETTINGS | {"data": _SETTINGS["data"] | {"batch_rows": self.rows}}
        declared = pieces.keep(documents.Declared(program="m", settings=settings))
        self.bound = {
            "job": pieces.keep(documents.Job(program=None, declared=declared)),
            "code": pieces.keep(
                documents.Code(distributions=(documents.Distribution(name="torch", version="2"),))
            ),
            "environment": pieces.keep(documents.Environment(torch="2")),
            "policy": self.policy_digest,
            "membership": self.job.keeper.bound(1),
        }
        term = (NOW - timedelta(hours=1), NOW + month)
        self.signers = {
            node: members.issue(self.job.name, self.job.spiffe(node), term, self.roles.node)
            for node in names
        }
        self.dataset = self._add(sign(dataset(), "prose", self.key), Kind.DATASET)
        self.ledger, self.head = self._ledger()

    @staticmethod
    def policy() -> Any:
        """One that asks for every link of every ancestor."""
        from tests.chain.test_packs import policy

        return policy(*LINKS)

    def trust(self) -> TrustRoot:
        """The trust root."""
        return TrustRoot.parse(self.trust_bytes(), self.now)

    def trust_bytes(self) -> bytes:
        """The trust root's file."""
        from tests.vocabulary import trust_document

        roles = {
            TrustRole.ROOT: [self.roles.root.public],
            TrustRole.NODE: [self.roles.node.public],
            TrustRole.CHECKPOINT: [self.key.public],
            TrustRole.DATASET: [self.key.public],
            TrustRole.LEDGER: [self.writer.public],
            **{role: [self.writer.public] for role in TrustRole if role.startswith("ledger-")},
        }
        year = timedelta(days=300)
        made = trust_document(roles, self.now - timedelta(days=9), self.now + year)
        return sign_document(made, [self.roles.root])

    def _ledger(self) -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.jsonl"
            ledger = Ledger(path, self.writer, "agent", lambda: self.now)
            for number in range(LINES):
                ledger.write(events.LedgerMended(subject="l", bytes=number, digest="0" * 64))
            data = path.read_bytes()
        document = Document.of(packing.LEDGER_TYPE, data)
        self.documents.append(document)
        return document.digest, Document.of("", data.splitlines()[-1]).digest

    def _add(self, envelope: bytes, kind: Kind, **beside: Any) -> Opened:
        document = Document.of(packing.STATEMENT_TYPE, envelope)
        self.documents.append(document)
        self.entries.insert(0, packing.Entry(statement=document.digest, **beside))
        return open_statement(envelope, kind, self.trust(), "")

    def train(self, checkpoints: int) -> None:
        """Save so many checkpoints, a second apart."""
        before: Opened | None = None
        for number in range(checkpoints):
            before = self._save(number, before)

    def _save(self, number: int, before: Opened | None) -> Opened:
        last, job = self.steps * (number + 1), self.job
        taken = Recorder(run=job.name, order=self.order, after=last - self.steps)
        for step in range(last - self.steps + 1, last + 1):
            table = _said(step) if self.tabled else None
            # Numbers of all their digits: others would make the records smaller.
            loss, norm, lr = (one / (7 + step) for one in (5.5, 1.25, 3e-4))
            taken.add(
                step=step, verdict="clean", watched=True, loss=loss, norm=norm, lr=lr, table=table
            )
        made = taken.taken()
        for data in (made.document, *made.pages):
            job.pieces.put(data)
        said = job.checkpoint(
            self.now + timedelta(minutes=5, seconds=number),
            step=last,
            seq=number,
            save_id=f"{number:032x}",
            world_size=self.nodes * self.local_world,
            files=[
                RankFile(name=f"rank-{r:05d}.bin", size=9, root=f"{last:032x}{r:032x}", rank=r)
                for r in range(self.nodes * self.local_world)
            ],
            index=msgspec.structs.replace(job.checkpoint().index, name=INDEX),
            policy=msgspec.structs.replace(job.checkpoint().policy, id="dev"),
            dataset=DatasetRef(
                name="prose",
                digest=self.dataset.digest,
                cursor={"step": last, "rows": self.rows * last},
            ),
            gradients=GradientRecord(verdict=GradientVerdict.CLEAN, judged=last, clean_steps=last),
            parents=[] if before is None else [Parent(digest=before.digest)],
            bound=Bound(
                **self.bound,
                step_records=made.digest,
                dataset=self.dataset.statement,
                ledger_head=self.head,
                parents=[] if before is None else [before.statement],
            ),
        )
        signed = sign(self._signed(said), f"step-{last}", self.key)
        return self._add(signed, Kind.CHECKPOINT, ledger=self.ledger)

    def _signed(self, said: CheckpointPredicate) -> CheckpointPredicate:
        messages = members.messages_of(said)
        return msgspec.structs.replace(
            said,
            members=sorted(one.certificate for one in self.signers.values()),
            node_signatures=[
                members.node_signature_of(said, ref.ranks, self.signers[node], messages)
                for node, ref in zip(self.job.nodes, said.nodes, strict=True)
            ],
        )

    def write(self, folder: Path) -> list[str]:
        """Write pack and trust root; the verifier's arguments."""
        listed = canonical.encode(packing.Contents(statements=tuple(self.entries)))
        kept = [Document.of(packing.PIECE_TYPE, one) for one in self.job.pieces.pieces.values()]
        subject = next(one for one in self.documents if one.digest == self.entries[0].statement)
        others = [*self.documents, *kept, Document.of(packing.CONTENTS_TYPE, listed)]
        pack, trust = folder / "a.stpack", folder / "trust.json"
        write_pack(pack, subject, others)
        trust.write_bytes(self.trust_bytes())
        return [str(pack), str(trust)]


def _measured(run: LongRun) -> dict[str, float]:
    """Processor seconds and MB of a verifier, and bytes of the pack."""
    with tempfile.TemporaryDirectory() as name:
        arguments = run.write(Path(name))
        done = subprocess.run(
            [sys.executable, __file__, *arguments], check=True, capture_output=True, cwd=ROOT
        )
        size = Path(arguments[0]).stat().st_size
    found: dict[str, float] = json.loads(done.stdout)
    return {**found, "MB of the pack": size / 1e6}


def ancestors(count: int = ANCESTORS) -> Figure:
    """Verify every link of a checkpoint and of all its ancestors."""
    run = LongRun()
    run.train(count + 1)
    values = _measured(run)
    return Figure(
        name="chain-ancestors",
        title=f"verifying {len(LINKS)} links of {count} ancestors, {STEPS} steps each",
        values=values,
        goal="<= 5 CPU s, <= 300 MB",
        goal_met=values["CPU s"] <= 5 and values["MB"] <= 300,
    )


def ranks() -> Figure:
    """Verify every link of one checkpoint of many ranks."""
    run = LongRun(nodes=NODES, local_world=RANKS // NODES)
    run.train(1)
    values = _measured(run)
    besides = values["CPU s again"] - values["CPU s of hashing"]
    return Figure(
        name="chain-ranks",
        title=f"verifying {len(LINKS)} links of a checkpoint of {RANKS} ranks on {NODES} nodes",
        values={
            "CPU ms": 1000 * values.pop("CPU s"),
            "CPU ms again": 1000 * values.pop("CPU s again"),
            "CPU ms of hashing": 1000 * values.pop("CPU s of hashing"),
            **values,
        },
        goal="<= 50 CPU ms besides hashing, again: without what only the first verification does",
        goal_met=besides <= 0.05,
    )


def long_records(*, tabled: bool = False) -> Figure:
    """Pack and verify one checkpoint of many ranks after many steps, without weights, without what
    the results were judged on, and without tables.

    Args:
        tabled: Whether the records name the tables, as those of a guarded run do.
    """
    run = LongRun(
        nodes=NODES, local_world=RANKS // NODES, steps=RECORDED, rows=RANKS, tabled=tabled
    )
    run.train(1)
    statement = sum(one.size for one in run.documents if one.media_type == packing.STATEMENT_TYPE)
    pages = [one for one in run.job.pieces.pieces.values() if one.count(b"\n") > 1]
    values = {
        **_measured(run),
        "MB of statements": statement / 1e6,
        "MB of records": sum(map(len, pages)) / 1e6,
    }
    named = "recorded steps that name their tables" if tabled else "recorded steps"
    return Figure(
        name="chain-steps-tabled" if tabled else "chain-steps",
        title=f"a pack of {RANKS} ranks on {NODES} nodes and {RECORDED} {named}",
        values=values,
        goal="<= 4 MB",
        goal_met=values["MB of the pack"] <= 4,
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """Processor seconds of `STEPS` steps that are recorded, and of the same without; the records'
    document is made at the end, as a save does. The model is small: of a larger one it is less.
    """

    rows: int = 16
    pairs: int = 9
    kept: bool = False
    """Whether the tables of the ranks' sketches are kept, too; their digests are in any case."""

    @property
    def name(self) -> str:
        """Short name."""
        return f"record-{self.rows}-rows" + ("-kept" if self.kept else "")

    @property
    def title(self) -> str:
        """What is compared."""
        what = "recorded, and their tables kept" if self.kept else "recorded"
        return f"steps of {self.rows} rows of {_SEQ} tokens that are {what}, against plain ones"

    @property
    def goal(self) -> Goal:
        """A hundredth."""
        return Goal(ratio=1.01)

    def run(self, order: Sequence[Side]) -> list[float]:
        """Take the steps once for each entry."""
        with tempfile.TemporaryDirectory() as folder:
            return self._run(order, Path(folder))

    def _trained(self) -> Callable[[], dict[str, Any]]:
        """Something that takes one step, and says its loss and norm."""
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, 0.0, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        batch = torch.randn(self.rows, _SEQ, _WIDTH)

        def step() -> dict[str, Any]:
            loss = model(batch).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return {"loss": loss.item(), "norm": norm.item()}

        return step

    def _recorder(self, folder: Path) -> Recorder:
        rows = msgspec.structs.replace(_ORDER, batch_rows=self.rows)
        keep = keeper_of_tables(folder / "tables") if self.kept else None
        return Recorder(run="job-1", order=rows, keep=keep)

    def _run(self, order: Sequence[Side], folder: Path) -> list[float]:
        train, seconds = self._trained(), []
        tables = [_said(step) for step in range(1, STEPS + 1)]
        for side in order:
            taken = self._recorder(folder)
            started = time.process_time()
            for step, table in enumerate(tables, 1):
                values = train()
                if side is Side.OURS:
                    taken.add(step=step, table=table, **_PLAIN, **values)
            if side is Side.OURS:
                taken.taken()
            seconds.append(time.process_time() - started)
        return seconds

    def share(self, steps: int) -> float:
        """The median over some steps of what recording one took of its own processor seconds."""
        shares, train = [], self._trained()
        with tempfile.TemporaryDirectory() as folder:
            taken = self._recorder(Path(folder))
            for step in range(1, steps + 1):
                table = _said(step)
                started = time.process_time()
                values = train()
                trained = time.process_time()
                taken.add(step=step, table=table, **_PLAIN, **values)
                shares.append((time.process_time() - trained) / (trained - started))
        return median(shares[1:])


_PLAIN: Final[dict[str, Any]] = {"lr": 1e-4, "verdict": "clean", "watched": True}


def recording() -> Figure:
    """The share of a step that recording it takes: both parts of the same step are compared, so
    that a busy machine widens it little. The pairs tell what it does to the steps around it.
    """
    shares = {
        f"% at {rows} rows{', tables kept' if kept else ''}": 100
        * Recording(rows=rows, kept=kept).share(steps)
        for rows, kept, steps in ((16, False, 60), (16, True, 60), (256, False, 8))
    }
    return Figure(
        name="record-share",
        title="processor time of recording a step, of the step's own",
        values=shares,
        goal="<= 1 %",
        goal_met=max(shares.values()) <= 1,
    )


def _said(step: int) -> Judged:
    """What a guard of four ranks leaves of a step of a model in three groups."""
    ranks, groups, size = 4, 3, 256
    layout = Layout(
        ranks=ranks,
        groups=tuple(f"group-{n}" for n in range(groups)),
        parts=ranks,
        size=size,
        keys=1,
        owners=tuple(range(ranks)),
        roundoff=(2.0**-24).hex(),
        near_zero=(0.0).hex(),
        batches=(tuple(f"{n}|group-{n}|4096|4|torch.float32|()|;" for n in range(groups)),),
    )
    opening = opening_of(f"batch|0|{groups}", [step.to_bytes(32, "big")] * ranks)
    return Judged(
        table=StepTable(layout=layout, unopened=((),), scaled=False, rows=_WORDS),
        seeds=(hashlib.sha256(opening).digest(),),
        openings=(opening,),
        anchors=b"",
        learned=step,
    )


_WORDS: Final = [bytes(32 + 4 * 256 * (4 + 3 * 3))] * 4
BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Recording(),
    Recording(rows=256, pairs=5),
    Recording(kept=True),
)


def _verify(pack: Path, trust: Path) -> None:
    from tests.chain.conftest import NOW

    root = TrustRoot.parse(trust.read_bytes(), NOW)
    policy = LongRun.policy()  # before the time is taken: it imports modules of tests
    used = []
    for _ in range(2):
        started = time.process_time()
        with Pack.open(pack) as opened:
            result = verify_pack(opened, trust=root, policy=policy, now=NOW + timedelta(hours=12))
        if result.exit_code or result.required != frozenset(LINKS):
            raise RuntimeError(f"it does not verify: {result.problems[:3]}")
        used.append(time.process_time() - started)
        if len(result.judged) > 100:
            break
    peak = _peak()  # before the documents are read again
    found = {"CPU s": used[0], "CPU s again": used[-1], "CPU s of hashing": _hashing(pack)}
    print(json.dumps({**found, "MB": peak}))


def _peak() -> float:
    """The most memory that this program had, in MB. What getrusage says would count what the
    process that started it had by then: a new program goes on from that.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmHWM")


def _hashing(pack: Path) -> float:
    """Processor seconds for the digest of every document, which a verifier cannot do without. The
    leaves of trees and what signatures hash are not in it.
    """
    with Pack.open(pack) as opened:
        documents = [opened.read(digest, 1 << 26) for digest in opened.layers]
    started = time.process_time()
    for data in documents:
        hashlib.sha256(data).digest()
    return time.process_time() - started


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "chain-ancestors": ancestors,
    "chain-ranks": ranks,
    "chain-steps": long_records,
    "record-share": recording,
    "chain-steps-tabled": partial(long_records, tabled=True),
}

if __name__ == "__main__":
    _verify(Path(sys.argv[1]), Path(sys.argv[2]))
