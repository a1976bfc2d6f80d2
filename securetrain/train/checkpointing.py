# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Save signed checkpoints, and start from one.

Rules:

1. the state is tensors and plain values under names: nothing that has to be unpickled;
2. a checkpoint appears whole or not at all, is signed, and names its run, step, dataset and cursor,
   policy, nodes, the verdict on its gradients and the checkpoint before it;
3. nothing is loaded that the policy and the trust root do not allow, and nothing of it is used
   before it was verified;
4. resuming gives the run that was not interrupted, bit for bit, on the same number of ranks;
5. what is said about a checkpoint (head, ledger) is said when it is there, and old ones go only
   after that (`artifacts.lineage.folder`);
6. what a death has interrupted is finished before anything is chosen: by the launcher before its
   workers start, or here without one (`artifacts.lineage.recovery`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from securetrain.artifacts import (
    Kind,
    SaveContext,
    SavedCheckpoint,
    async_save,
    encryption,
    members,
    read_statement,
    save,
    storage,
)
from securetrain.artifacts.lineage import (
    Recovery,
    head,
    judging,
    machine,
    proof_name,
)
from securetrain.artifacts.lineage import (
    folder as run_folder,
)
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    NodeRef,
    Opened,
    Parent,
    ParentRole,
    PolicyRef,
    digest_of,
    open_statement,
)
from securetrain.chain import counted
from securetrain.chain.records import Recorder
from securetrain.core import RunDir
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.guard import Verdict
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Journal, events
from securetrain.parallel import Mesh
from securetrain.policy import LoadedPolicy
from securetrain.train.agree import rank_zero_decides
from securetrain.train.config import AUTO, NEVER, CheckpointJob
from securetrain.train.decryption import decryption_keys
from securetrain.train.fitting import load_into
from securetrain.train.saved_state import gradient_record, restore, state_of
from securetrain.train.saving import Background
from securetrain.train.trainer import Progress, StepResult, Trainer


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """Saves and loads for one run; every method is collective."""

    run: RunDir
    run_id: str
    trust: TrustRoot
    policy: LoadedPolicy
    key: Signer | None
    """Rank 0 signs for all; None on the other ranks."""
    head_key: Signer | None
    """Signs the head of the run; None on the other ranks."""
    signer: members.FileSigner | None
    """Signs this rank's own file; None without a launcher that certifies keys."""
    dataset_name: str
    dataset_digest: str
    code: dict[str, str]
    env: dict[str, str]
    """The inputs besides the dataset that decide the rows."""
    base: str | None
    """The digest of the weights that the run started from."""
    history: machine.History
    """Rank 0's; empty on the other ranks."""
    nodes: tuple[NodeRef, ...]
    """Those that take part, as rank 0 knows them."""
    ledger: Journal
    is_rank_zero: bool
    """Whether this is rank 0, which looks and writes for all."""
    is_node_leader: bool
    """Whether this is the first rank of its node, which enters what it took part in."""
    clock: Callable[[], datetime]
    device: torch.device
    job: CheckpointJob
    """How checkpoints are written, and how many stay."""
    recovery: Recovery | None = None
    """Rank 0's, where there is no launcher to do it."""
    decryption_key: str = ""
    """Opens an encrypted checkpoint that is resumed."""
    freshness: judging.Freshness | None = None
    """This node's memory of the run, and operators' waivers; asked when the newest one is."""
    show: Callable[[bytes], None] = field(default=lambda _: None)
    """Shows the launcher the statement of a checkpoint from elsewhere (`RunSigning.show`)."""
    inputs: TrustRoot | None = None
    """The job's trust root for what comes from elsewhere; None has the run's own alone."""
    recorder: Recorder | None = None
    """Takes the records of the steps; None without a launcher to keep them."""
    _parent: str | None = None
    _seq: int = 0
    _writing: Background = field(init=False)
    _saved_step: int = field(default=-1)

    def __post_init__(self) -> None:
        self._writing = Background(self.device)

    def save(self, trainer: Trainer) -> None:
        """Save the state after the trainer's last step, unless that is saved already.

        In the background, if the job says so: `settle` tells how it ended.
        """
        step = trainer.progress.step
        if step == self._saved_step:
            return
        self.settle(wait=True)
        if self.recorder is not None and _has_pieces(trainer.model.mesh):
            self._agree_on_words(self.recorder)
        path, context = self.run.checkpoint(step), self._context(trainer)
        recipients = list(map(encryption.Recipient.parse, self.policy.policy.checkpoint.encrypt_to))
        self._saved_step = step
        self._begin_records(step)

        def there(saved: SavedCheckpoint) -> None:
            self._committed(path, context, saved.digest)

        state = state_of(trainer)
        if self.job.background:
            future = async_save(
                state,
                path,
                key=self.key,
                context=context,
                signer=self.signer,
                recipients=recipients,
            )
            self._writing.begin(future, there)
        else:
            there(
                save(
                    state,
                    path,
                    key=self.key,
                    context=context,
                    signer=self.signer,
                    recipients=recipients,
                )
            )

    def record(self, result: StepResult, step: int) -> None:
        """Take the record of a step that was done, the same on every rank."""
        if self.recorder is not None:
            self.recorder.add(
                step=step,
                loss=result.loss,
                norm=result.grad_norm,
                lr=result.lr,
                verdict=result.verdict,
                watched=result.judged is not None,
                without=() if result.judged is None else result.judged.excluded,
                table=result.table,
            )

    def _agree_on_words(self, recorder: Recorder) -> None:
        """Say of steps what rank 0 says, whose word the statement has (collective)."""
        mine = recorder.applied
        if not mine:
            return
        words = torch.tensor(list(mine), dtype=torch.uint8, device=self.device)
        dist.broadcast(words, src=0)
        recorder.say_as(bytes(words.tolist()))

    def _begin_records(self, after: int, *, anew: bool = False) -> None:
        if self.recorder is not None:
            (self.recorder.begin_anew if anew else self.recorder.begin)(after)

    def settle(self, *, wait: bool) -> None:
        """Note a checkpoint that was written in the background, if it is there; with `wait`, wait.

        Raises:
            SecureTrainError: it could not be written, here (ST-CKPT-200 and others) or on another
                rank (ST-RUNT-004).
        """
        self._writing.settle(wait=wait)

    def _committed(self, path: Path, context: SaveContext, digest: str) -> None:
        """A checkpoint is there, whole and signed."""
        step = context.step
        if self.is_rank_zero:
            self._advance_head(path)
            self.ledger.write(
                events.CheckpointSigned(
                    subject=path.name,
                    step=step,
                    digest=digest,
                    verdict=context.gradients.verdict.value,
                )
            )
            self._remove_old()
        elif self.is_node_leader:
            self.ledger.write(events.CheckpointSeen(subject=path.name, step=step, digest=digest))
        self._parent, self._seq = digest, self._seq + 1

    def _remove_old(self) -> None:
        if not self.job.keep:
            return
        job, folder = self.job, self.run.checkpoints
        found = run_folder.checkpoints_of(folder, self.run_id, self.trust)
        protected = {self.history.restart}
        if self.policy.policy.checkpoint.log is not None:
            # A checkpoint that must be logged stays until its proof lies beside it.
            protected |= {
                one.digest for one in found if not (folder / proof_name(one.path.name)).is_file()
            }
        going = machine.removable(found, keep=job.keep, every=job.keep_every, protected=protected)

        def tell(old: run_folder.Found) -> None:
            self.ledger.write(
                events.CheckpointRemoved(
                    subject=old.name, step=old.checkpoint.step, digest=old.digest
                )
            )

        run_folder.remove(folder, self.run_id, self.trust, going, tell)

    def resume(
        self, trainer: Trainer, choice: str, *, with_guard: bool = True
    ) -> CheckpointPredicate | None:
        """Load what `choice` (auto, never or a directory) names; None when there is nothing.

        Args:
            trainer: Takes it.
            choice: The checkpoint.
            with_guard: Whether the guard goes on from it, too.

        Raises:
            IntegrityError: the checkpoint is refused (ST-CKPT).
            UsageError: ST-USAG-005 when resume is 'never' but the run has checkpoints.
        """
        rank_zero_decides(self._recover, self.device)
        if choice in {AUTO, NEVER}:
            step = rank_zero_decides(lambda: self._choose(choice), self.device)
            if step < 0:
                if self.is_rank_zero:
                    self._skip_to_head()
                return None
            path = self.run.checkpoint(step)
        else:
            path = Path(choice)
        state = state_of(trainer)
        policy = self.policy.policy
        if choice == AUTO:
            # Which one is the newest is said by the ledger, in which evictions stand, too.
            # Steps are counted by whoever verifies: a replay of them comes after the run.
            own = {"require_head": False, "min_clean_steps": None, "max_audit_age_steps": None}
            asked = msgspec.structs.replace(policy.checkpoint, **own)
            policy = msgspec.structs.replace(policy, checkpoint=asked)
        trust = self.trust if choice in {AUTO, NEVER} else self._trust_of(path)
        predicate = load_into(
            state,
            path,
            shape=trainer.shape,
            trust=trust,
            policy=counted(policy, trust=trust, now=self.clock()),
            now=self.clock(),
            # One that a person names may be old, unless the policy asks for the head.
            freshness=self.freshness if choice == AUTO or policy.checkpoint.require_head else None,
            keys=decryption_keys(self.decryption_key),
            expect=self.job.expected(),
        )
        digest = digest_of(predicate)
        if choice == AUTO:
            self._check_same(predicate, path)
            opened = Opened(
                kind=Kind.CHECKPOINT, predicate=predicate, digest=digest, key_ids=frozenset()
            )
            rank_zero_decides(lambda: self._check_newest(opened, path), self.device)
        restore(trainer, state, with_guard=with_guard)
        self._begin_records(trainer.progress.step, anew=True)
        self._check_cursor(predicate, trainer.progress, path)
        if self.is_rank_zero:
            self.ledger.write(
                events.RunResumed(subject=path.name, step=predicate.step, digest=digest)
            )
            if choice != AUTO:
                self.show(read_statement(path, Kind.CHECKPOINT))
        same_run = predicate.run_id == self.run_id
        self._parent, self._saved_step = digest, predicate.step if same_run else -1
        self._seq = predicate.seq + 1 if same_run else 0
        if self.is_rank_zero:
            self._skip_to_head()
            if choice == AUTO:
                self._remove_old()  # a death may have come before that
        return predicate

    def _trust_of(self, path: Path) -> TrustRoot:
        """The trust root that a checkpoint which a person names is verified under: the run's own
        where it vouches for it, else the job's. `load` verifies all of it under that one.
        """
        try:
            open_statement(read_statement(path, Kind.CHECKPOINT), Kind.CHECKPOINT, self.trust)
        except (SecureTrainError, OSError):
            return self.inputs or self.trust
        return self.trust

    def roll_back(self, trainer: Trainer, verdict: Verdict) -> int | None:
        """Go back to the newest checkpoint from before what a rank is excluded for; the guard goes
        on as it is, with the rank excluded.

        Returns:
            The step; None when no such checkpoint is left.

        Raises:
            IntegrityError: the checkpoint is refused (ST-CKPT).
        """
        assert verdict.roll_back_to is not None
        self.settle(wait=True)
        since = torch.tensor(verdict.roll_back_to, device=self.device)
        dist.all_reduce(since, op=dist.ReduceOp.MIN)
        before, ranks = int(since), ", ".join(map(str, verdict.newly_excluded))
        step = rank_zero_decides(lambda: self._newest_until(before), self.device)
        subject = f"step {verdict.step}"
        if step < 0:
            if self.is_rank_zero:
                self.ledger.write(
                    events.RollbackImpossible(subject=subject, since=before, ranks=ranks)
                )
            return None
        said = events.RolledBack(
            subject=subject, to=step, ranks=ranks, evidence=verdict.reason[:1000]
        )
        # The launcher of rank 0 sets later ones aside before those of other nodes look.
        rank_zero_decides(lambda: self._say_rolled_back(said), self.device)
        if self.is_node_leader and not self.is_rank_zero:
            self.ledger.write(said)
        rank_zero_decides(self._read_again, self.device)
        self.resume(trainer, AUTO, with_guard=False)
        return step

    def _say_rolled_back(self, said: events.RolledBack) -> int:
        self.ledger.write(said)
        return 0

    def _read_again(self) -> int:
        self.history = head.read_history(head.read_run_ledger(self.run.ledger, self.trust).recorded)
        return 0

    def _recover(self) -> int:
        if self.recovery is not None and self.recovery.begin(self.history):
            return self._read_again()
        return 0

    def _newest_until(self, step: int) -> int:
        """The newest of this run's own checkpoints up to a step; -1 for none."""
        found = run_folder.checkpoints_of(self.run.checkpoints, self.run_id, self.trust)
        return max(
            (one.checkpoint.step for one in found if one.checkpoint.step <= step), default=-1
        )

    def _advance_head(self, path: Path) -> None:
        """Say that what was just saved is the newest of the run."""
        assert self.head_key is not None
        kind = Kind.CHECKPOINT
        opened = open_statement(read_statement(path, kind), kind, self.trust, str(path))
        folder = storage.LocalStorage(self.run.checkpoints)
        head.advance(folder, opened.checkpoint, self.head_key, self.trust, self.clock())

    def _skip_to_head(self) -> None:
        """Number what comes next above everything that the head and this node have seen, set aside
        or not: no number is used twice.
        """
        present = head.read_head(storage.LocalStorage(self.run.checkpoints), self.trust)
        floors = self.freshness.floors if self.freshness is not None else None
        keys = self.trust.keys_for(TrustRole.CHECKPOINT).keys()
        floor = None if floors is None else floors.floor(self.run_id, keys)
        self._seq = machine.next_seq(self._seq, self.run_id, present, floor)

    def _context(self, trainer: Trainer) -> SaveContext:
        progress = trainer.progress
        expected = self.policy.policy.checkpoint.expect
        return SaveContext(
            run_id=self.run_id,
            name=(expected.name or "") if expected is not None else "",
            step=progress.step,
            seq=self._seq,
            epoch=None if self.history.epoch == machine.NO_EPOCH else self.history.epoch,
            created=self.clock(),
            dataset=DatasetRef(
                name=self.dataset_name,
                digest=self.dataset_digest,
                cursor={"step": progress.step, "rows": trainer.job.data.batch_rows * progress.step},
            ),
            policy=PolicyRef(id=self.policy.policy.metadata.id, digest=self.policy.digest),
            gradients=gradient_record(progress, watched=trainer.guard is not None),
            parents=self._parents(),
            nodes=self.nodes,
            code=self.code,
            env=self.env,
            records=None if self.recorder is None else self.recorder.taken(),
        )

    def _parents(self) -> tuple[Parent, ...]:
        named = ((self._parent, ParentRole.PREVIOUS), (self.base, ParentRole.BASE))
        return tuple(Parent(digest=digest, role=role) for digest, role in named if digest)

    def _check_same(self, predicate: CheckpointPredicate, path: Path) -> None:
        found = (predicate.run_id, predicate.dataset.digest)
        if found != (self.run_id, self.dataset_digest):
            raise IntegrityError(
                "ST-CKPT-170",
                f"it is of run {predicate.run_id} on dataset {predicate.dataset.digest[:16]}, this"
                f" is run {self.run_id} on dataset {self.dataset_digest[:16]}",
                str(path),
                f"give --resume {path} to continue from it all the same",
            )

    def _check_cursor(self, predicate: CheckpointPredicate, progress: Progress, path: Path) -> None:
        if predicate.dataset.cursor.get("step") != progress.step or predicate.step != progress.step:
            raise IntegrityError(
                "ST-CKPT-170",
                f"the statement says step {predicate.step}, the state says {progress.step}",
                str(path),
                "do not use it: a trusted key signed a false statement",
            )

    def _check_newest(self, opened: Opened, path: Path) -> int:
        """Refuse a checkpoint that is not where the ledger says the run stopped; returns its step.

        Raises:
            IntegrityError: ST-CKPT-150 when it is older, ST-CKPT-160 when it was set aside,
                ST-CKPT-170 when it is not the run's own.
        """
        known = machine.Known(history=self.history)
        for problem in machine.newest_believed([opened], known).problems[0]:
            raise IntegrityError(
                problem.code,
                problem.what,
                str(path),
                "find out who put it back; the ledger says why it was set aside"
                if problem.code == "ST-CKPT-160"
                else f"give --resume {path} to continue from it all the same",
            )
        return opened.checkpoint.step

    def _choose(self, choice: str) -> int:
        """The step to start from; -1 for the beginning."""
        step, last = run_folder.highest_step(self.run.checkpoints), self.history.last
        if choice == NEVER and step is not None:
            raise UsageError(
                "ST-USAG-005",
                "the run has checkpoints already, and resume is 'never'",
                str(self.run.checkpoint(step)),
                "use a new run directory, or resume: auto",
            )
        if step is None and last is not None:
            raise IntegrityError(
                "ST-CKPT-150",
                f"the ledger says that step {last.step} was saved, but there is no checkpoint",
                str(self.run.checkpoints),
                "put the checkpoints back, or use a new run directory",
            )
        return -1 if step is None else step


def _has_pieces(mesh: Mesh) -> bool:
    """Tell whether several groups of ranks are guarded, each for its piece of the model."""
    groups = (mesh.comparable, mesh.comparable_experts)
    return any(group is not None and group.size() < dist.get_world_size() for group in groups)
