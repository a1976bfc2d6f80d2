# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Open what the run directory holds and build one rank's trainer.

Checked before the first step, in order: the policy and the trust root, the dataset's statement and
listing, the mesh against the number of processes, and that the guard sees every gradient. A
refusal goes into the ledger and ends the run.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

import torch
import torch.distributed as dist

from securetrain.artifacts import Dataset, context
from securetrain.artifacts.lineage import Recovery, head, judging, waivers
from securetrain.artifacts.model import SignedModel
from securetrain.chain.records import Recorder
from securetrain.core import NodeState, RunDir, canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import local_file
from securetrain.guard import (
    GuardTextfile,
    OnSuspicion,
    SketchWriter,
    Suspicion,
    WordSigner,
    launcher_words,
    sketch_backend,
)
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Journal, WriterRole, events, open_worker_ledger
from securetrain.parallel import (
    Description,
    Mesh,
    machine_id,
    make_mesh,
    parallelize,
    tp_machine_span,
)
from securetrain.policy.load import load_resolved
from securetrain.policy.schema import Gradients, GuardResponse
from securetrain.train.admitted import admitted_nodes
from securetrain.train.agree import (
    rank_zero_decides,
    recording_refusals,
    run_together,
)
from securetrain.train.checkpointing import Checkpoints
from securetrain.train.composition import check_guard, check_rollback, check_world
from securetrain.train.config import Format, JobConfig, settings_of, shape_of
from securetrain.train.data import Rows
from securetrain.train.data.open import Data, plan_data
from securetrain.train.data.prefetch import Prefetch
from securetrain.train.inputs import show_inputs
from securetrain.train.kept_tables import keeper_of_tables
from securetrain.train.models.init_weights import clear_weights, init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.optim import make_optimizer
from securetrain.train.trainer import Stop, Trainer
from securetrain.train.watching import attach_guard
from securetrain.train.weights import open_weights, trust_of_inputs

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
    is_node_leader: bool = False
    """Whether this is the first rank of its node."""
    state: NodeState | None = None
    """The machine's state between runs; None without a launcher that says where."""
    signer: str = ""
    """The launcher's signing socket; empty without a launcher, and the run's key files are used."""

    @property
    def is_rank_zero(self) -> bool:
        """True on rank 0, which writes things down."""
        return dist.get_rank() == 0


@dataclass(slots=True, kw_only=True)
class Session:
    """One rank's run, ready for its first step. Close it when done."""

    job: JobConfig
    worker: Worker
    mesh: Mesh
    ledger: Journal
    dataset: Dataset
    data: Data
    weights: SignedModel | None
    """The weights that a run without a checkpoint starts from."""
    trainer: Trainer
    checkpoints: Checkpoints
    sketches: SketchWriter
    may_roll_back: bool
    """Whether the policy has the run go back to checkpoints."""

    def close(self) -> None:
        """Close the files."""
        self.trainer.rows.close()
        self.sketches.close()
        self.dataset.close()


def open_session(job: JobConfig, where: str, worker: Worker) -> Session:
    """Check and open everything (collective).

    Args:
        job: The job.
        where: The job file's name, for messages.
        worker: This process.

    Raises:
        SecureTrainError: something was refused.
    """
    run = worker.run
    world = dist.get_world_size()
    policy = load_resolved(run.resolved_policy)
    check_guard(job, policy.policy.gradients.mode, where)
    trust = TrustRoot.load(run.trust, worker.clock())
    ledger = open_worker_ledger(run, worker.signer, WriterRole.RANK, dist.get_rank(), worker.clock)
    with recording_refusals(ledger, events.RunHalted, "gradients.response"):
        check_rollback(policy.policy.gradients, has_launcher=bool(worker.signer))
    signing = _signing(worker)
    with recording_refusals(ledger, events.InputsRefused, str(job.trust)):
        inputs = trust_of_inputs(job, trust, worker.clock())
    with recording_refusals(ledger, events.WeightsRefused, str(job.model.weights)):
        job, weights = open_weights(
            job, where, trust=inputs, policy=policy.policy, now=worker.clock()
        )
    degrees = check_world(job, world, where)
    path = run.dataset if job.data.dataset is None else local_file(job.data.dataset)
    if not path.is_dir():
        raise UsageError(
            "ST-USAG-007",
            f"there is no dataset at {path}",
            f"{where}: data.dataset",
            "name the directory of a signed dataset, and in trust: the keys that may sign it",
            path=path,
        )
    with recording_refusals(ledger, events.DatasetRefused, str(path)):
        dataset = Dataset.open(
            path,
            # The run's own dataset is signed by its own key.
            trust=trust if job.data.dataset is None else inputs,
            policy=policy.policy,
            now=worker.clock(),
        )
        data = _open_data(job, where, dataset, weights, worker)
    show_inputs(signing, job, path)
    mesh = make_mesh(degrees, worker.device.type)
    _warn_of_spread_tp(mesh, worker, ledger)
    sketches = SketchWriter(run.sketches, _textfile(job, run, run_id_of(trust)))
    trainer = build(
        job,
        worker,
        mesh,
        policy.policy.gradients,
        (data.train, data.held_out),
        sketches if worker.is_rank_zero else None,
        nodes=signing.nodes,
        on_suspicion=_recorder(ledger) if worker.is_node_leader and worker.signer else None,
        signer=_words(worker, run, ledger),
    )
    trainer.byte_tokens = data.format is Format.BYTES
    if worker.is_rank_zero:
        said = data.environment
        ledger.write(
            events.DatasetOpened(
                subject=str(path),
                digest=dataset.digest,
                signer=min(dataset.key_ids),
                bytes=dataset.split_size(job.data.train_split),
                tokens=data.tokens,
                format=data.format.value,
                index=said.get("index"),
                validation_index=said.get("validationIndex"),
                tokenizer=said.get("tokenizer"),
                tokenizer_end=said.get("tokenizerEnd"),
                tokenizers=said.get("tokenizers"),
            )
        )
    past = None
    if worker.is_rank_zero and run.ledger.exists():
        past = head.read_run_ledger(run.ledger, trust)
    if past is not None and worker.console is not None:
        worker.console.write("".join(f"warning: the ledger's {line}\n" for line in past.ignored))
    checkpoints = Checkpoints(
        run=run,
        run_id=run_id_of(trust),
        trust=trust,
        policy=policy,
        key=signing.checkpoint,
        head_key=signing.head,
        signer=signing.signer,
        dataset_name=dataset.predicate.name,
        dataset_digest=dataset.digest,
        code={"job": job.name, "jobDigest": hashlib.sha256(canonical.encode(job)).hexdigest()},
        env=data.environment | _sketches(trainer),
        base=None if weights is None else weights.digest,
        history=head.read_history(past.recorded if past is not None else ()),
        nodes=admitted_nodes(past.events if past is not None else (), world),
        ledger=ledger,
        is_rank_zero=worker.is_rank_zero,
        is_node_leader=worker.is_node_leader,
        clock=worker.clock,
        device=worker.device,
        decryption_key=job.checkpoint.decryption_key,
        freshness=_freshness(worker, run_id_of(trust)),
        job=job.checkpoint,
        recovery=_recovery(worker, trust),
        show=signing.show,
        inputs=inputs,
        recorder=_records(worker, job, data, run_id_of(trust)),
    )
    return Session(
        job=job,
        worker=worker,
        mesh=mesh,
        ledger=ledger,
        dataset=dataset,
        data=data,
        weights=weights,
        trainer=trainer,
        checkpoints=checkpoints,
        sketches=sketches,
        may_roll_back=trainer.guard is not None
        and policy.policy.gradients.response is GuardResponse.ROLLBACK,
    )


def _textfile(job: JobConfig, run: RunDir, run_id: str) -> GuardTextfile | None:
    if not job.metrics.prometheus:
        return None
    return GuardTextfile(run.guard_metrics, {"run": run_id, "job": job.name})


def _recorder(ledger: Journal) -> OnSuspicion:
    """The launcher hears of it by the event, and tells the rendezvous."""

    def record(one: Suspicion) -> None:
        ledger.write(
            events.RankSuspected(
                subject=f"rank {one.rank}", rank=one.rank, cause=one.code, said=one.what
            )
        )

    return record


def _records(worker: Worker, job: JobConfig, data: Data, run_id: str) -> Recorder | None:
    """The launcher keeps them; without one nobody does."""
    if not worker.signer:
        return None
    kept = job.checkpoint.tables and worker.is_rank_zero
    return Recorder(
        run=run_id,
        order=data.train.described(job.data.batch_rows),
        keep=keeper_of_tables(worker.run.tables) if kept else None,
    )


def _sketches(trainer: Trainer) -> dict[str, str]:
    """Name what sketches gradients here, which is part of what this run was made with."""
    return {} if trainer.guard is None else {"sketches": sketch_backend()}


def build(  # noqa: PLR0917 - one call, in the order of the docstring
    job: JobConfig,
    worker: Worker,
    mesh: Mesh,
    settings: Gradients,
    rows: tuple[Rows, Rows | None],
    sketches: SketchWriter | None = None,
    *,
    nodes: Sequence[int] | None = None,
    on_suspicion: OnSuspicion | None = None,
    signer: WordSigner | None = None,
) -> Trainer:
    """Model, optimizer, guard and data of one rank (collective).

    Args:
        job: The job.
        worker: This process.
        mesh: The ranks.
        settings: The policy's section about the guard.
        rows: Training data, and held-out data if there is any.
        sketches: Takes the guard's records.
        nodes: The node of each rank.
        on_suspicion: Told whom the guard reports to the rendezvous.
        signer: Signs this rank's words in the guard's disputes.
    """
    shape = shape_of(job)
    model = Description(
        build=lambda: Llama(shape),
        materialize=(lambda part: init_weights(part, job.seed, shape))
        if job.model.weights is None
        else clear_weights,
        plan=LlamaPlan(),
    )
    parallel = parallelize(model, mesh, settings_of(job), worker.device)
    guard = attach_guard(
        parallel,
        settings,
        on_record=None if sketches is None else sketches.write,
        nodes=nodes,
        on_suspicion=on_suspicion,
        signer=signer,
    )
    optimizer = make_optimizer(parallel, job.optimizer)
    if guard is not None:
        guard.use_optimizer(optimizer)
    train, held_out = rows
    return Trainer(
        job=job,
        shape=shape,
        model=parallel,
        optimizer=optimizer,
        rows=Prefetch(train, job.data.prefetch, last=job.steps),
        held_out=held_out,
        guard=guard,
        max_refused=settings.max_refused_steps,
        stop=worker.stop,
    )


def _warn_of_spread_tp(mesh: Mesh, worker: Worker, ledger: Journal) -> None:
    """Warn when ranks that share matrices do not share a machine: it works, slowly (collective)."""
    machines = tp_machine_span(mesh, machine_id(), worker.device)
    if machines == 1 or not worker.is_rank_zero:
        return
    ledger.write(events.TensorGroupSpansMachines(subject=str(mesh.degrees), machines=machines))
    if worker.console is not None:
        worker.console.write(
            f"warning: tensor-parallel groups lie over {machines} machines, and every layer waits"
            " for the network between them; start ranks so that tp divides the ranks of each node\n"
        )


def run_id_of(trust: TrustRoot) -> str:
    """The launcher's job id: the root key's, which belongs to one run directory alone."""
    return f"job-{trust.document.roles[TrustRole.ROOT].keys[0][:RUN_ID_DIGITS]}"


def _signing(worker: Worker) -> context.RunSigning:
    """The launcher's keys, or without a launcher those in the run directory."""
    if worker.signer:
        return context.open_signing(Path(worker.signer))
    key = PrivateKey.load(worker.run.key("checkpoint")) if worker.is_rank_zero else None
    return context.RunSigning(run_id="", rank=dist.get_rank(), checkpoint=key, head=key)


def _words(worker: Worker, run: RunDir, ledger: Journal) -> WordSigner | None:
    """The launcher signs what this rank says in disputes; without one nobody does."""
    if not worker.signer:
        return None
    keeps = worker.is_node_leader
    return launcher_words(Path(worker.signer), run, keeps=keeps, record=ledger.write)


def _freshness(worker: Worker, run_id: str) -> judging.Freshness | None:
    """This node's memory of the run, which its agent keeps, and the waivers for it."""
    if worker.state is None:
        return None
    floors, waived = judging.Floors(worker.state.floors(run_id)), worker.run.waivers
    return judging.Freshness(floors=floors, waivers=waivers.read_waivers(waived), head=False)


def _recovery(worker: Worker, trust: TrustRoot) -> Recovery | None:
    """Rank 0's part of the launcher's, where there is none."""
    if worker.signer or not worker.is_rank_zero:
        return None
    run = worker.run
    return Recovery(
        folder=run.checkpoints,
        run_id=run_id_of(trust),
        trust=trust,
        ledger=open_worker_ledger(run, "", WriterRole.LAUNCHER, 0, worker.clock),
        key=lambda: PrivateKey.load(run.key("checkpoint")),
        clock=worker.clock,
        files=run.worker_files,
    )


def _open_data(
    job: JobConfig,
    where: str,
    dataset: Dataset,
    weights: SignedModel | None,
    worker: Worker,
) -> Data:
    """Rows, which are the same on all ranks (collective). One rank of each node counts documents.

    Raises:
        IntegrityError: ST-DATA-133 when this rank counted otherwise than rank 0; else as
            `plan_data`.
    """
    plan = plan_data(job, where, dataset, model_file=None if weights is None else weights.document)
    folder = worker.run.index
    run_together(plan.counting(folder) if worker.is_node_leader else iter(()), worker.device)
    # The others find what was kept; where nothing can be shared, each counts.
    run_together(plan.counting(folder), worker.device)
    data = plan.open()
    said = canonical.encode([data.environment, data.tokens])
    own = int.from_bytes(hashlib.sha256(said).digest()[:7], "big")
    agreed = rank_zero_decides(lambda: own, worker.device)
    run_together(_compare(own == agreed, where), worker.device)
    return data


def _compare(same: bool, where: str) -> Iterator[None]:  # noqa: FBT001 - one fact
    if not same:
        raise IntegrityError(
            "ST-DATA-133",
            "this rank's tokenizer or index of documents is not that of rank 0",
            f"{where}: data",
            "install the same version of tokenizers on all nodes, and remove index/ from the run"
            " directory",
        )
    yield
