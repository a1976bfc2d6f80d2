# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A job's evidence as a coordinator signs it, what is made under it, and its packs; no torch.

`Job` is the evidence; `Run` a run directory of statements without weights; `Segment` a checkpoint
with the records of its steps; `Whole` a run with weights, a dataset and records.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import UNSET, UnsetType

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.statement import context, members
from securetrain.artifacts.statement.checkpoint_predicate import IndexFile, RankFile
from securetrain.artifacts.statement.dataset_predicate import DataFile, DatasetPredicate, Split
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    NodeRef,
    Opened,
    Parent,
    PolicyRef,
    digest_of,
    open_statement,
    sign,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.layout import INDEX, STATEMENT, Kind, TreeInfo
from securetrain.chain import documents, packing
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.coordinators import endorse
from securetrain.chain.judging import judge
from securetrain.chain.keeper import Keeper
from securetrain.chain.links import Given, Subject, code_of
from securetrain.chain.packing import Wanted, pack
from securetrain.chain.records import (
    Recorder,
    StepRecord,
    StepRecords,
    recorded,
)
from securetrain.chain.rows import RowOrder
from securetrain.chain.store import EvidenceStore, InMemory
from securetrain.chain.verdict import Verdict
from securetrain.chain.verifying import Options, verify
from securetrain.core import canonical
from securetrain.core.hashtree import TreeParams, TreeWriter
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.evidence import AttestationResult, Binding, Evidence
from securetrain.identity import JobCA, Role, SpiffeId
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.policy.load import load_policy
from securetrain.policy.schema import Policy
from securetrain.rendezvous.coordinator import Shown
from securetrain.rendezvous.wire import Membership
from securetrain.rendezvous.wire.membership import Member, sign_membership
from tests.artifacts.statement import worlds as signing
from tests.vocabulary import trust_document

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
POLICY = "cd" * 32
MINUTE = timedelta(minutes=1)
NOTHING_MORE = Wanted()


def trust_bytes(
    root: PrivateKey,
    roles: Mapping[TrustRole, Sequence[PrivateKey]],
    *,
    apart: bool | UnsetType = True,
) -> bytes:
    """A trust root that names keys for roles, and places those of nodes apart."""
    keys = {role: [one.public for one in mine] for role, mine in roles.items()}
    term = NOW - 9000 * MINUTE, NOW + 300_000 * MINUTE
    made = trust_document({TrustRole.ROOT: [root.public], **keys}, *term, apart=apart)
    return sign_document(made, [root])


@dataclass
class Roles:
    """The keys of one run's trust root."""

    root: PrivateKey = field(default_factory=PrivateKey.generate)
    node: PrivateKey = field(default_factory=PrivateKey.generate)
    worker: PrivateKey = field(default_factory=PrivateKey.generate)

    def trust(self) -> TrustRoot:
        worker = {key: [self.worker] for key in (TrustRole.LEDGER, TrustRole.LEDGER_WORKER)}
        return TrustRoot.parse(trust_bytes(self.root, {TrustRole.NODE: [self.node], **worker}), NOW)


@dataclass
class Job:
    """One job with its coordinator, and the evidence that is kept of it."""

    name: str = "job-1"
    roles: Roles = field(default_factory=Roles)
    nodes: tuple[str, ...] = ("node-0", "node-1")
    tier: NodeTier = NodeTier.TPM
    policy: str = POLICY
    began: datetime = NOW
    epoch: int = 1
    lease: timedelta = 10 * MINUTE
    local_world: int = 2
    pieces: InMemory = field(default_factory=InMemory)

    def __post_init__(self) -> None:
        day = timedelta(days=1)
        self.ca = JobCA.create("securetrain.local", self.name, self.began)
        self.key = PrivateKey.generate(KeyKind.P256)
        leaf = self.ca.issue(Role.COORDINATOR, self.key.public, self.began, lifetime=day)
        self.node_keys = {node: PrivateKey.generate(KeyKind.P256) for node in self.nodes}
        self.keeper = Keeper(
            store=self.pieces,
            endorse=lambda ca: endorse(
                ca, self.name, self.began - MINUTE, self.began + day, self.roles.node
            ),
        )
        self.keeper.credential(self.name, (leaf, self.ca.certificate))
        self.results = {node: self.attest(node, self.began) for node in self.nodes}
        self.form()

    def spiffe(self, node: str) -> str:
        return str(SpiffeId("securetrain.local", self.name, Role.NODE, node))

    def result(self, node: str, at: datetime, **said: Any) -> AttestationResult:
        made = AttestationResult(
            job=self.name,
            node=node,
            key_id=self.node_keys[node].key_id,
            tier=self.tier,
            label=self.tier.value,
            media_type="application/vnd.securetrain.node-evidence+cbor",
            evidence="ee" * 32,
            policy=self.policy,
            issued=at,
            expires=at + self.lease,
            submods={},
        )
        return msgspec.structs.replace(made, **said)

    def attest(
        self, node: str, at: datetime, key: PrivateKey | None = None, **said: Any
    ) -> AttestationResult:
        """Have the coordinator sign a result, and keep it."""
        made = self.result(node, at, **said)
        binding = Binding(
            nonce=b"n" * 32,
            session=b"s" * 16,
            job=self.name,
            client_spki=self.node_keys[node].public.spki,
            server_spki=self.key.public.spki,
            exporter=b"e" * 32,
        )
        evidence = Evidence(
            media_type=made.media_type,
            body=b"quote of " + node.encode(),
            binding=b"",
            signature=b"",
        )
        shown = Shown(evidence=evidence, binding=binding, keys=None, secret=b"")
        self.keeper.result(made.sign(key or self.key), made, shown)
        return made

    def membership(self, **said: Any) -> Membership:
        of = Membership(
            job=self.name,
            coordinator=str(SpiffeId("securetrain.local", self.name, Role.COORDINATOR)),
            epoch=self.epoch,
            round=0,
            policy=self.policy,
            issued=self.began + MINUTE,
            members=tuple(
                Member(
                    rank=rank,
                    node=node,
                    certificate=f"{rank:064x}",
                    tier=self.results[node].tier,
                    result=self.results[node].digest,
                    address="127.0.0.1",
                    local_world=self.local_world,
                    role="default",
                )
                for rank, node in enumerate(self.nodes)
            ),
        )
        return msgspec.structs.replace(of, **said)

    def form(self, key: PrivateKey | None = None, **said: Any) -> None:
        made = self.membership(**said)
        self.keeper.membership(sign_membership(made, key or self.key), made)

    def refs(self) -> list[NodeRef]:
        return [
            NodeRef(
                node=self.spiffe(node),
                tier=self.results[node].tier,
                label=self.results[node].label,
                ranks=list(range(self.local_world * rank, self.local_world * (rank + 1))),
                result=self.results[node].digest,
            )
            for rank, node in enumerate(self.nodes)
        ]

    def checkpoint(self, created: datetime | None = None, **said: Any) -> CheckpointPredicate:
        """The honest word of a launcher on a checkpoint."""
        fields: dict[str, Any] = {
            "run_id": self.name,
            "step": 100,
            "seq": 1,
            "save_id": "0" * 32,
            "created": created or self.began + 5 * MINUTE,
            "world_size": self.local_world * len(self.nodes),
            "tree": TreeInfo.of(TreeParams(leaf_size=1024)),
            "files": [],
            "index": IndexFile(name="index", size=1, sha256="11" * 32),
            "epoch": self.epoch,
            "policy": PolicyRef(id="hardened", digest=self.policy),
            "nodes": self.refs(),
            "bound": Bound(membership=self.keeper.bound(self.epoch)),
        }
        return CheckpointPredicate(**(fields | said))

    def given(self, trust: TrustRoot | None = None, pieces: InMemory | None = None) -> Given:
        return Given(
            trust=trust or self.roles.trust(),
            pieces=self.pieces if pieces is None else pieces,
            now=NOW + timedelta(hours=1),
        )


def opened(said: Any, digest: str = "aa" * 32, kind: Kind = Kind.CHECKPOINT) -> Opened:
    return Opened(kind=kind, predicate=said, digest=digest, key_ids=frozenset())


def subject(said: CheckpointPredicate, **more: Any) -> Subject:
    return Subject(opened=opened(said), **more)


def rebound(job: Job, said: CheckpointPredicate, changes: dict[str, Any]) -> CheckpointPredicate:
    """A checkpoint that binds an altered document of its membership, signed again by its key."""
    assert said.bound.membership is not None
    kept = documents.decode(job.pieces.pieces[said.bound.membership], documents.Membership)
    digest = job.pieces.keep(msgspec.structs.replace(kept, **changes))
    bound = msgspec.structs.replace(said.bound, membership=digest)
    return msgspec.structs.replace(said, bound=bound)


LATER = NOW + timedelta(hours=12)
SHOWN = ("nodes", "membership", "policy", "parents")
"""The links for which the small run has evidence."""


@dataclass
class Run:
    """A run directory without weights: statements, and the evidence behind them."""

    root: Path
    key: PrivateKey = field(default_factory=PrivateKey.generate)
    roles: Roles = field(default_factory=Roles)
    made: list[CheckpointPredicate] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        policy = canonical.encode(load_policy("baseline").policy)
        self.policy = hashlib.sha256(policy).hexdigest()
        self.job = Job(roles=self.roles, policy=self.policy, lease=timedelta(hours=3))
        self.job.pieces.put(policy)

    def named(self) -> dict[TrustRole, list[PrivateKey]]:
        """The keys that the run's trust root names."""
        return {TrustRole.NODE: [self.roles.node], TrustRole.CHECKPOINT: [self.key]}

    def trust_bytes(self) -> bytes:
        return trust_bytes(self.roles.root, self.named())

    def trust(self, now: datetime = LATER) -> TrustRoot:
        return TrustRoot.parse(self.trust_bytes(), now)

    def beside(self, asked: Policy | None, url: str = "", **more: Any) -> Verdict:
        """The judgement of the newest one by its links, where the run lies, or in a store."""
        self.keep()
        newest = max(self.root.glob("checkpoints/step-" + 8 * "?"))
        found = verify(
            f"{url}/checkpoints/{newest.name}" if url else newest,
            trust=self.trust(),
            policy=asked,
            now=LATER,
            **more,
        )
        # Its statement is all that there is of it: its bytes are not, and nothing else beside it.
        found.problems = [p for p in found.problems if p.what.startswith(("run", "step", "parent"))]
        return found

    def said(self, **changes: Any) -> CheckpointPredicate:
        """The honest word on the next checkpoint."""
        number = len(self.made)
        bound = Bound(
            membership=self.job.keeper.bound(1), policy=self.policy, parents=self.statements[-1:]
        )
        parents = [Parent(digest=digest_of(self.made[-1]))] if self.made else []
        fields: dict[str, Any] = {
            "step": 10 * (number + 1),
            "seq": number,
            "files": [RankFile(name="rank-00000.bin", size=9, root=f"{number:064x}", rank=0)],
            "index": IndexFile(name=INDEX, size=1, sha256="11" * 32),
            "policy": PolicyRef(id="baseline", digest=self.policy),
            "gradients": GradientRecord(verdict=GradientVerdict.CLEAN, judged=10, clean_steps=10),
            "parents": parents,
            "bound": bound,
        }
        at = changes.pop("created", NOW + (5 + number) * MINUTE)
        return self.job.checkpoint(at, **(fields | changes))

    def save(self, said: CheckpointPredicate | None = None, key: PrivateKey | None = None) -> Path:
        """Sign and keep a checkpoint's statement."""
        said = said or self.said()
        folder = self.root / "checkpoints" / f"step-{said.step:08d}"
        folder.mkdir(parents=True)
        envelope = sign(said, folder.name, key or self.key)
        (folder / STATEMENT).write_bytes(envelope)
        self.made.append(said)
        if key is None:
            opened = open_statement(envelope, Kind.CHECKPOINT, self.trust(), "")
            self.statements.append(opened.statement)
        return folder

    def saved(self, times: int) -> Self:
        for _ in range(times):
            self.save()
        return self

    def keep(self) -> None:
        """Write the evidence."""
        store = EvidenceStore(self.root / "evidence")
        for data in self.job.pieces.pieces.values():
            store.put(data)

    def pack(self, name: str = "a.stpack", wanted: Wanted = NOTHING_MORE) -> Path:
        """Pack the newest."""
        self.keep()
        newest = max(one for one in (self.root / "checkpoints").iterdir() if one.is_dir())
        pack(newest, self.root / name, trust=self.trust(), wanted=wanted)
        return self.root / name

    def verify(
        self, path: Path, now: datetime = LATER, data: TrustRoot | None = None, **asked: Any
    ) -> Verdict:
        options = Options(trust_data=data, appraise=asked.pop("again", False))
        return verify(path, trust=self.trust(now), now=now, options=options, **asked)


def policy(*links: str, depth: str = "all", tier: str = "", **checkpoint: Any) -> Policy:
    """A policy that asks for links, and for nothing that a small run has not."""
    plain = msgspec.to_builtins(load_policy("dev").policy)
    lacking = {"require_lineage": False, "require_clean_verdict": False}
    plain["checkpoint"] |= lacking | msgspec.to_builtins(checkpoint)
    plain["chain"] = {"require": list(links), "depth": depth}
    if tier:
        plain["node"]["min_tier"] = tier
    return msgspec.convert(plain, Policy)


def codes(result: Verdict) -> set[str]:
    return {problem.code for problem in result.problems}


def why(result: Verdict) -> str:
    return "; ".join(problem.what for problem in result.problems)


ORDER = RowOrder(kind="random", seed=7, split="train", starts=968, seq_len=32, batch_rows=4)
SETTINGS = {
    "seed": 7,
    "data": {"train_split": "train", "seq_len": 32, "batch_rows": 4, "order": None}
    | {"format": "bytes", "epochs": 1},
}


def dataset(size: int = 1000, name: str = "prose") -> DatasetPredicate:
    return DatasetPredicate(
        name=name,
        seq=0,
        created=NOW,
        tree=TreeInfo.of(TreeParams(leaf_size=1024)),
        files=[DataFile(name="a.bin", size=size, root="ab" * 32)],
        splits=[Split(name="train", files=["a.bin"])],
    )


def signed_by(said: CheckpointPredicate, job: Job, signers: dict[str, Any]) -> CheckpointPredicate:
    """A statement with what all ranks of all nodes sign."""
    messages = members.messages_of(said)
    return msgspec.structs.replace(
        said,
        members=sorted(one.certificate for one in signers.values()),
        node_signatures=[
            signing.node_signature_of(said, ref.ranks, signers[node], messages)
            for node, ref in zip(job.nodes, said.nodes, strict=True)
        ],
    )


@dataclass
class Segment:
    """A checkpoint of step 16 after one of step 8, with records that every rank has signed."""

    job: Job
    order: RowOrder = ORDER
    after: int = 8
    count: int = 8
    pieces: InMemory = field(default_factory=InMemory)

    def __post_init__(self) -> None:
        self.run = self.job.name
        self.before = GradientRecord(
            verdict=GradientVerdict.CLEAN, judged=self.after, clean_steps=self.after
        )
        self.dataset = opened(dataset(), "da" * 32, Kind.DATASET)
        parent = self.job.checkpoint(NOW, step=self.after, gradients=self.before)
        self.parent = opened(parent)
        declared = self.pieces.keep(documents.Declared(program="m", settings=SETTINGS))
        self.bound_job = self.pieces.keep(documents.Job(program=None, declared=declared))
        term = (NOW - MINUTE, NOW + timedelta(days=1))
        self.signers = {
            node: members.issue(self.run, self.job.spiffe(node), term, self.job.roles.node)
            for node in self.job.nodes
        }
        self.lines = self.record()

    def record(self, order: RowOrder | None = None, **step: Any) -> list[bytes]:
        taken = Recorder(run=self.run, order=order or self.order, after=self.after)
        for number in range(self.after + 1, self.after + self.count + 1):
            said = {"loss": 5.5 / number, "norm": 1.25, "lr": 0.1, "verdict": "clean"}
            taken.add(step=number, **(said | {"watched": True} | step))  # type: ignore[arg-type]
        return [line for page in taken.taken().pages for line in page[:-1].split(b"\n")]

    def edit(self, at: int, **changes: Any) -> None:
        """Change one record, which all ranks then sign."""
        said = canonical.decode(self.lines[at], StepRecord)
        self.lines[at] = canonical.encode(msgspec.structs.replace(said, **changes))

    def keep(self, made: context.StepPieces) -> str:
        for data in (*made.pages, made.document):
            self.pieces.put(data)
        return made.digest

    def kept(self, **changes: Any) -> str:
        """Keep the records; `changes` are those of the document over them."""
        digest = self.keep(recorded(self.run, self.after, self.lines, self.order))
        if not changes:
            return digest
        said = documents.decode(self.pieces.pieces[digest], StepRecords)
        return self.pieces.keep(msgspec.structs.replace(said, **changes))

    def said(self, digest: str | None, **changes: Any) -> CheckpointPredicate:
        """The statement, with what all ranks sign."""
        last = self.after + self.count
        fields: dict[str, Any] = {
            "step": last,
            "seq": 2,
            "parents": [Parent(digest="aa" * 32)],
            "dataset": DatasetRef(
                name="prose", digest="da" * 32, cursor={"step": last, "rows": 4 * last}
            ),
            "gradients": GradientRecord(
                verdict=GradientVerdict.CLEAN, judged=last, clean_steps=last
            ),
            "bound": Bound(step_records=digest, job=self.bound_job),
        }
        return signed_by(self.job.checkpoint(**(fields | changes)), self.job, self.signers)

    def each_alone(self, said: CheckpointPredicate) -> CheckpointPredicate:
        """The same, with a signature of every rank: as statements had them before."""
        messages = members.messages_of(said)
        signers = [
            self.signers[node]
            for node, ref in zip(self.job.nodes, said.nodes, strict=True)
            for _ in ref.ranks
        ]
        made = [signing.signature_of(n, signers[n], one) for n, one in enumerate(messages)]
        return msgspec.structs.replace(said, node_signatures=UNSET, signatures=made)

    def judge(self, said: CheckpointPredicate, link: ChainLink) -> tuple[LinkState, str]:
        parents = {"aa" * 32: self.parent}
        subject = Subject(opened=opened(said, "cc" * 32), parents=parents, dataset=self.dataset)
        given = Given(trust=self.job.roles.trust(), pieces=self.pieces, now=NOW)
        verdict = judge(link, subject, given)
        assert verdict.problem() is None or verdict.problem().code == code_of(link)  # type: ignore[union-attr]
        return verdict.state, verdict.what


LEAF = 1024
PARAMS = TreeParams(leaf_size=LEAF)
WHOLE_ORDER = RowOrder(
    kind="random", seed=7, split="train", starts=70_000, seq_len=64, batch_rows=3
)
WHOLE_SETTINGS = {"seed": 7, "data": {"format": "bytes", "train_split": "train"}}


class Whole(Run):
    """A run directory with weights, a dataset, and the records of its steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.data_key = PrivateKey.generate()
        draw = random.Random(3)
        root = self.root / "data"
        root.mkdir(parents=True)
        (root / "a.bin").write_bytes(draw.randbytes(50_000))
        (root / "b.bin").write_bytes(draw.randbytes(20_064))
        (root / "held_out.bin").write_bytes(draw.randbytes(5000))
        splits = {"train": ("a.bin", "b.bin"), "eval": ("held_out.bin",)}
        about = About(name="prose", splits=splits)
        sign_in_place(root, about, key=self.data_key, now=NOW, params=PARAMS)
        self.dataset = open_statement(
            (root / STATEMENT).read_bytes(), Kind.DATASET, self.trust(), ""
        )
        declared = documents.Declared(program="p", settings=WHOLE_SETTINGS)
        job = documents.Job(program=None, module="m", declared=self.job.pieces.keep(declared))
        self.bound_job = self.job.pieces.keep(job)

    def named(self) -> dict[TrustRole, list[PrivateKey]]:
        return {**super().named(), TrustRole.DATASET: [self.data_key]}

    def weights(self, number: int) -> dict[str, bytes]:
        draw = random.Random(number)
        files = {f"rank-{rank:05d}.bin": draw.randbytes(5000 + rank) for rank in range(2)}
        step = index_file.ValueEntry(fqn="step", value=number)
        values = index_file.encode(index_file.Index.of([], [step]))
        return files | {INDEX: values, "config.json": b"{}"}

    def save_whole(self, **changes: Any) -> Path:
        """Save the next checkpoint with its bytes, ten steps after the last one."""
        number = len(self.made)
        files = self.weights(number)
        recorder = Recorder(run=self.job.name, order=WHOLE_ORDER, after=10 * number)
        for step in range(10 * number + 1, 10 * number + 11):
            recorder.add(step=step, loss=1.0, norm=1.0, lr=0.1, verdict="clean", watched=True)
        taken = recorder.taken()
        for data in (taken.document, *taken.pages):
            self.job.pieces.put(data)
        sizes = {
            name: IndexFile(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        }
        bound = Bound(
            membership=self.job.keeper.bound(1),
            policy=self.policy,
            parents=self.statements[-1:],
            job=self.bound_job,
            step_records=taken.digest,
            dataset=self.dataset.statement,
        )
        fields: dict[str, Any] = {
            "dataset": DatasetRef(name="prose", digest=self.dataset.digest),
            **changes,
        }
        said = self.said(
            tree=TreeInfo.of(PARAMS),
            files=[
                RankFile(name=name, size=len(files[name]), root=root_of(files[name]), rank=rank)
                for rank, name in enumerate(sorted(files)[2:])
            ],
            index=sizes[INDEX],
            documents=[sizes["config.json"]],
            bound=bound,
            **fields,
        )
        folder = self.save(said)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        for name in sorted(files)[2:]:
            (folder / (name + ".leaves")).write_bytes(tree_of(files[name]).leaves)
        return folder


def documents_of(path: Path) -> tuple[Document, dict[str, Document]]:
    with Pack.open(path) as opened:
        found = {
            digest: Document.of(one.media_type, opened.read(digest, 1 << 26))
            for digest, one in opened.layers.items()
        }
        return found[opened.subject.hex], found


def taken_apart(path: Path) -> tuple[Document, dict[str, Document], Any]:
    """The subject, all other documents but the contents, and the contents as plain data."""
    subject, found = documents_of(path)
    (old,) = [one for one in found.values() if one.media_type == packing.CONTENTS_TYPE]
    del found[old.digest]
    return subject, found, canonical.loads(bytes(old.source))  # type: ignore[arg-type]


def put_together(out: Path, subject: Document, found: dict[str, Document], plain: Any) -> Path:
    """The pack, whole."""
    listed = Document.of(packing.CONTENTS_TYPE, canonical.dumps(plain))
    write_pack(out, subject, [listed, *found.values()])
    return out


def tree_of(data: bytes) -> Any:
    tree = TreeWriter(PARAMS)
    tree.update(data)
    return tree.finish()


def root_of(data: bytes) -> str:
    return str(tree_of(data).root.hex())
