# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Open what the run directory holds and build one rank's trainer.

Checked before the first step, in order: the policy and the trust root, the dataset's statement and
listing, the mesh against the number of processes, and that the guard sees every gradient. A
refusal goes into the ledger and ends the run.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

import torch
import torch.distributed as dist

from securetrain.artifacts import Floors, Freshness, RankSigner, VerifiedDataset
from securetrain.artifacts.waivers import read_waivers
from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.core.nodestate import NodeState
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import Boundary
from securetrain.guard import GradientGuard
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Ledger
from securetrain.parallel.mesh import Mesh, make_mesh
from securetrain.parallel.parallelize import Description, parallelize
from securetrain.policy import LoadedPolicy
from securetrain.policy.load import load_resolved
from securetrain.policy.schema import Gradients, GuardMode
from securetrain.train.agree import recorded
from securetrain.train.checkpointing import Checkpoints
from securetrain.train.composition import check_world
from securetrain.train.config import JobConfig, settings_of, shape_of
from securetrain.train.data import ByteSplit, Rows
from securetrain.train.lineage import RunHistory, read_history
from securetrain.train.models.initial import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.optim import make_optimizer
from securetrain.train.records import SketchWriter
from securetrain.train.trainer import Stop, Trainer

Clock = Callable[[], datetime]
RUN_ID_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """This process and where it runs. The default process group exists."""

    run: RunDir
    device: torch.device
    clock: Clock
    stop: Stop
    console: TextIO | None
    """Where rank 0 tells people how it goes."""
    witness: bool = False
    """Whether this is the first rank of its node."""
    state: NodeState | None = None
    """What this machine keeps between runs; None without a launcher that says where."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes things down."""
        return dist.get_rank() == 0


@dataclass(slots=True, kw_only=True)
class Session:
    """One rank's run, ready for its first step. Close it when done."""

    job: JobConfig
    worker: Worker
    mesh: Mesh
    policy: LoadedPolicy
    ledger: Ledger
    dataset: VerifiedDataset
    train: ByteSplit
    held_out: ByteSplit | None
    trainer: Trainer
    checkpoints: Checkpoints
    sketches: SketchWriter

    def close(self) -> None:
        """Close the files."""
        self.sketches.close()
        self.dataset.close()


def open_session(job: JobConfig, where: str, worker: Worker) -> Session:
    """Check and open everything (collective).

    Args:
        job: What to do.
        where: The job file's name, for messages.
        worker: This process.

    Raises:
        SecureTrainError: something was refused.
    """
    run = worker.run
    world = dist.get_world_size()
    degrees = check_world(job, world, where)
    policy = load_resolved(run.resolved_policy)
    trust = TrustRoot.load(run.trust, worker.clock())
    ledger = Ledger(
        run.ledger,
        PrivateKey.load(run.key("worker")),
        f"rank-{dist.get_rank()}",
        worker.clock,
    )
    path = run.dataset if job.data.dataset is None else Path(job.data.dataset)
    if not path.is_dir():
        raise UsageError(
            "ST-USAG-007",
            f"there is no dataset at {path}",
            f"{where}: data.dataset",
            "name the directory of a dataset that a key of this run's trust root has signed",
        )
    with recorded(ledger, Boundary.DATASET, "dataset-refused", str(path)):
        dataset = VerifiedDataset.open(path, trust=trust, policy=policy.policy, now=worker.clock())
    train, held_out = _splits(job, where, dataset)
    mesh = make_mesh(degrees, worker.device.type)
    sketches = SketchWriter(run.sketches)
    trainer = build(
        job,
        worker,
        mesh,
        policy.policy.gradients,
        (train, held_out),
        sketches if worker.first else None,
    )
    if worker.first:
        ledger.allow(
            Boundary.DATASET,
            "dataset-opened",
            str(path),
            digest=dataset.digest,
            bytes=len(train),
        )
    checkpoints = Checkpoints(
        run=run,
        run_id=run_id_of(trust),
        trust=trust,
        policy=policy,
        key=PrivateKey.load(run.key("checkpoint")) if worker.first else None,
        signer=_rank_signer(run),
        dataset_name=dataset.predicate.name,
        dataset_digest=dataset.digest,
        code={"job": job.name, "jobDigest": hashlib.sha256(canonical.encode(job)).hexdigest()},
        history=read_history(run, trust, world) if worker.first else RunHistory(),
        ledger=ledger,
        first=worker.first,
        witness=worker.witness,
        clock=worker.clock,
        device=worker.device,
        decryption_key=Path(job.checkpoint.decryption_key)
        if job.checkpoint.decryption_key
        else None,
        freshness=_freshness(worker, run_id_of(trust)),
    )
    return Session(
        job=job,
        worker=worker,
        mesh=mesh,
        policy=policy,
        ledger=ledger,
        dataset=dataset,
        train=train,
        held_out=held_out,
        trainer=trainer,
        checkpoints=checkpoints,
        sketches=sketches,
    )


def build(  # noqa: PLR0917 - one call, in the order of the docstring
    job: JobConfig,
    worker: Worker,
    mesh: Mesh,
    settings: Gradients,
    splits: tuple[ByteSplit, ByteSplit | None],
    sketches: SketchWriter | None = None,
) -> Trainer:
    """Model, optimizer, guard and data of one rank (collective).

    Args:
        job: What to do.
        worker: This process.
        mesh: The ranks.
        settings: What the policy asks of the guard.
        splits: Training data, and held-out data if there is any.
        sketches: Takes the guard's records.
    """
    shape = shape_of(job)
    model = Description(
        make=lambda: Llama(shape),
        fill=lambda part: init_weights(part, job.seed, shape),
        plan=LlamaPlan(),
    )
    parallel = parallelize(model, mesh, settings_of(job), worker.device)
    guard = None
    if settings.mode is not GuardMode.OFF:
        guard = GradientGuard(
            mesh.dp_group, settings, on_record=None if sketches is None else sketches.write
        )
        guard.attach(parallel.parts[0])
    seq_len = job.data.seq_len
    train, held_out = splits
    return Trainer(
        job=job,
        shape=shape,
        model=parallel,
        optimizer=make_optimizer(parallel, job.optimizer),
        rows=Rows(train, seq_len, job.seed),
        held_out=None if held_out is None else Rows(held_out, seq_len, job.seed),
        guard=guard,
        max_refused=settings.max_refused_steps,
        stop=worker.stop,
    )


def run_id_of(trust: TrustRoot) -> str:
    """The launcher's job id: the root key's, which belongs to one run directory alone."""
    return f"job-{trust.document.roles[TrustRole.ROOT].keys[0][:RUN_ID_DIGITS]}"


def _rank_signer(run: RunDir) -> RankSigner | None:
    """The key that the launcher has certified for the ranks of this node."""
    if not run.rank_certificate.exists():
        return None
    return RankSigner.load(run.key("rank"), run.rank_certificate)


def _freshness(worker: Worker, run_id: str) -> Freshness | None:
    """What this node has seen of the run, which its agent keeps, and the waivers for it."""
    if worker.state is None:
        return None
    floors = Floors(worker.state.floors(run_id))
    return Freshness(floors=floors, waivers=read_waivers(worker.run.waivers), head=False)


def _splits(
    job: JobConfig, where: str, dataset: VerifiedDataset
) -> tuple[ByteSplit, ByteSplit | None]:
    train = ByteSplit(dataset, job.data.train_split, f"{where}: data.train_split")
    if job.data.validation_split is None:
        return train, None
    name = job.data.validation_split
    return train, ByteSplit(dataset, name, f"{where}: data.validation_split")
