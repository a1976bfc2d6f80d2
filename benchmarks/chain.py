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
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ab import Figure
from benchmarks.recording import ORDER, STEPS, said_in
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.checkpoint_predicate import RankFile
from securetrain.artifacts.statement.statements import (
    Bound,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    Opened,
    Parent,
    open_statement,
    sign,
)
from securetrain.artifacts.tree.layout import INDEX, Kind
from securetrain.chain import documents, packing, verify
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.records import Recorder
from securetrain.chain.store import InMemory
from securetrain.core import canonical
from securetrain.core.vocabulary import ChainLink
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.ledger import Ledger, events

ROOT: Final = Path(__file__).resolve().parent.parent
ANCESTORS: Final = 10_000
RANKS: Final = 1024
NODES: Final = 128
RECORDED: Final = 10_000
LINES: Final = 100
"""Lines of the ledger."""
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
        from tests.chain.worlds import NOW, Job, Roles, dataset

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
        self.order = msgspec.structs.replace(ORDER, batch_rows=self.rows)
        settings = _SETTINGS | {"data": _SETTINGS["data"] | {"batch_rows": self.rows}}
        declared = pieces.keep(documents.Declared(program="m", settings=settings))
        self.bound: dict[str, Any] = {
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
        from tests.chain.worlds import policy

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
        made = trust_document(roles, self.now - timedelta(days=9), self.now + year, apart=True)
        return sign_document(made, [self.roles.root])

    def _ledger(self) -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.jsonl"
            ledger = Ledger(path, self.writer, "agent", lambda: self.now)
            ledger.begin(self.job.name, self.trust())
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
        from tests.chain.worlds import signed_by

        last, job = self.steps * (number + 1), self.job
        taken = Recorder(run=job.name, order=self.order, after=last - self.steps)
        for step in range(last - self.steps + 1, last + 1):
            table = said_in(step) if self.tabled else None
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
        signed = sign(signed_by(said, self.job, self.signers), f"step-{last}", self.key)
        return self._add(signed, Kind.CHECKPOINT, ledger=self.ledger)

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


def _verify(pack: Path, trust: Path) -> None:
    from tests.chain.worlds import NOW

    root = TrustRoot.parse(trust.read_bytes(), NOW)
    policy = LongRun.policy()  # before the time is taken: it imports modules of tests
    used = []
    for _ in range(2):
        started = time.process_time()
        with Pack.open(pack) as opened:
            result = verify(opened, trust=root, policy=policy, now=NOW + timedelta(hours=12))
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
    "chain-steps-tabled": partial(long_records, tabled=True),
}

if __name__ == "__main__":
    _verify(Path(sys.argv[1]), Path(sys.argv[2]))
