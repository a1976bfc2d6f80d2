# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rules of the signing socket: what each worker may have its launcher sign. No I/O.

A worker is known by its process (`peers`). What it asks for is read as strictly as a
verifier reads it afterwards; bytes that are not exactly one of these messages are not signed:

=============  ===================================================================================
a rank's file  of this run, this rank and this world (or of rank 0 alone); no step before its last;
               one in a save. The node's signature is made when all its ranks agree (`node_files`)
a word         in a dispute: of this run, this rank and this world; each number of a guard and group
               once, so that no rank has two words signed for one
a statement    from rank 0 alone: a checkpoint of this run, name, policy, membership and world,
               made in this round by the launcher's clock, naming only nodes that were admitted,
               binding exactly what the launcher keeps (`binding`), with rank signatures that
               verify; no step or number before the last
a head         from rank 0 alone: of a statement signed in this launch, above the last head, without
               a place in the log, which only the launcher gives
a secret       by every worker, by its name; the coordinator has decided whether the node gets it
a declaration  from rank 0 alone: its own word on its code, settings and inputs (`binding`)
what to bind   from rank 0 alone
saved files    where the policy has the saves of scripts signed: of this run, name, policy, rank and
               world, made in this round by the launcher's clock. The bytes are the worker's word
an event       of the role ``rank`` or ``worker``; what rank 0 writes for all from rank 0 alone; a
               checkpoint that was signed only where it was signed here
=============  ===================================================================================

Everything else (trust roots, waivers, datasets, certificates, a launcher's events) is refused. What
was refused changes nothing: the same question is judged anew.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

from securetrain.artifacts import members, saved_files
from securetrain.artifacts.lineage import head, machine
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    digest_of,
    read_message,
)
from securetrain.core import canonical
from securetrain.core.errors import RuntimeRefusal, SecureTrainError, reason
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import words
from securetrain.identity.signing import (
    LIMITS,
    VERSION,
    Ask,
    Bind,
    Bonds,
    Declaration,
    Hello,
    Wanted,
)
from securetrain.identity.trust import TrustRoot
from securetrain.launch.signing.binding import Binder
from securetrain.launch.signing.node_files import NodeFiles, Whole, Word
from securetrain.launch.signing.peers import Worker
from securetrain.ledger import Event, LedgerEvent, WriterRole, events
from securetrain.policy.schema import GuardResponse

_T = TypeVar("_T")

NOT_OWN: Final = "ST-RUNT-031"
MALFORMED: Final = "ST-RUNT-032"
OTHER_TIME: Final = "ST-RUNT-033"
_SILENT: Final = "ST-GRAD-010"
_MOST_GROUPS: Final = 256
"""Of one rank's guards in a round."""
_AHEAD: Final = timedelta(minutes=1)
"""A worker's clock is the launcher's; this is for a clock that was set meanwhile."""
RANK_ZERO: Final = frozenset({Ask.CHECKPOINT, Ask.HEAD, Ask.DECLARE, Ask.BIND})
FOR_ALL: Final = frozenset(
    {
        events.DatasetOpened,
        events.GradientsWatched,
        events.TensorGroupSpansMachines,
        events.MeshChecked,
        events.MeshRefused,
        events.WeightsLoaded,
        events.RunResumed,
        events.CheckpointSigned,
        events.CheckpointRemoved,
        events.StepRefused,
        events.StepSettled,
        events.RankExcluded,
        events.RankReadmitted,
        events.RunHalted,
        events.TrainingFinished,
    }
)
"""The trainer's events that rank 0 writes for all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The launcher's own knowledge, against which a worker's words are held."""

    run_id: str
    name: str
    """The name under which the run signs: its policy's, or its own."""
    policy: str
    """The digest of the run's policy."""
    response: GuardResponse
    """That policy's, to a bad rank: what workers may have the launcher do follows from it."""
    trust: TrustRoot
    clock: Callable[[], datetime]
    binder: Binder | None = None
    """Says what statements bind; None where nothing is kept."""
    signs_saves: bool = False
    """Whether the policy has the saves of scripts signed (``checkpoint.sign_saves``)."""
    admitted: Callable[[], Mapping[str, NodeTier] | None]
    """The nodes that were admitted; None where another launcher has the coordinator."""


@dataclass(slots=True)
class Last:
    """The last thing that was signed of a kind."""

    step: int = -1
    seq: int = -1


@dataclass(slots=True, kw_only=True)
class Judge:
    """Judges the questions of one launch's workers."""

    here: Circumstances
    epoch: int | None = None
    """The membership that is in force; None before the first."""
    began: datetime = field(init=False)
    """When this round began."""
    files: NodeFiles = field(default_factory=NodeFiles)
    """What the ranks of this node have said of their files, in this round."""
    _ranks: dict[int, int] = field(default_factory=dict)
    """The last step of which each rank has signed its file, in this round."""
    _words: dict[tuple[int, int, str], int] = field(default_factory=dict)
    """The last number that each rank has used in each guard and group, in this round."""
    _statement: Last = field(default_factory=Last)
    _head: Last = field(default_factory=Last)
    _signed: dict[str, Last] = field(default_factory=dict)
    """The statements that were signed in this launch, by digest."""

    def __post_init__(self) -> None:
        self.began = self.here.clock()

    def begin_round(self) -> None:
        """New workers start: they may go on from an older step."""
        self.began = self.here.clock()
        self.files.begin(frozenset())
        self._ranks.clear()
        self._words.clear()
        self._statement = Last()

    def roll_back(self, step: int) -> None:
        """The run goes back to a step, and does the later ones again; numbers still grow."""
        self._ranks = {rank: min(last, step) for rank, last in self._ranks.items()}
        self._statement = Last(min(self._statement.step, step), self._statement.seq)

    def admit(self, worker: Worker, ask: Ask) -> None:
        """Judge a question by its first letter, before its body is taken.

        Raises:
            RuntimeRefusal: ST-RUNT-031.
        """
        if ask in RANK_ZERO and worker.rank != 0:
            raise RuntimeRefusal(
                NOT_OWN, f"rank {worker.rank} asks for a {ask.name.lower()}; only rank 0 may"
            )

    def hello(self, body: bytes) -> None:
        """Judge a greeting.

        Raises:
            RuntimeRefusal: ST-RUNT-032.
        """
        said = _read(lambda: canonical.decode(body, Hello, limit=LIMITS[Ask.HELLO], canonical=True))
        if said.version != VERSION:
            raise RuntimeRefusal(
                MALFORMED, f"version {said.version} of the protocol, not {VERSION}"
            )

    @staticmethod
    def wanted(body: bytes) -> str:
        """Judge a question for a secret; any worker of this launch may ask. Returns the name.

        Raises:
            RuntimeRefusal: ST-RUNT-032.
        """
        limit = LIMITS[Ask.SECRET]
        return _read(lambda: canonical.decode(body, Wanted, limit=limit, canonical=True)).name

    def rank_file(self, worker: Worker, message: bytes) -> Whole | None:
        """Judge a rank's word on its file, and keep it; returns what the caller signs next when it
        was the last one of its node in this save.

        Raises:
            RuntimeRefusal: ST-RUNT-031 to 033.
        """
        said = _read(lambda: members.read_message(message))
        self._check_run(said.run_id)
        if said.rank != worker.rank:
            raise RuntimeRefusal(NOT_OWN, f"rank {worker.rank} asks for the word of {said.rank}")
        if said.file is not None and said.file.rank != worker.rank:
            raise RuntimeRefusal(
                NOT_OWN, f"rank {worker.rank} asks for a file of rank {said.file.rank}"
            )
        self._check_world(worker, said.world_size)
        last = self._ranks.get(worker.rank, -1)
        if said.step < last:
            raise RuntimeRefusal(OTHER_TIME, f"step {said.step} comes after step {last}")
        whole = self.files.take(Word(said=said, message=message))
        self._ranks[worker.rank] = said.step
        return whole

    def word(self, worker: Worker, message: bytes) -> None:
        """Judge a rank's word in a dispute; the caller signs it next.

        Raises:
            RuntimeRefusal: ST-RUNT-031 to 033.
        """
        said = _read(lambda: words.read_message(message))
        self._check_run(said.run_id)
        if said.rank != worker.rank:
            raise RuntimeRefusal(NOT_OWN, f"rank {worker.rank} asks for the word of {said.rank}")
        if said.world_size != worker.world_size:
            raise RuntimeRefusal(
                NOT_OWN, f"it speaks of {said.world_size} ranks, there are {worker.world_size}"
            )
        key = (worker.rank, said.guard, said.group)
        last = self._words.get(key, 0)
        if said.number <= last:
            raise RuntimeRefusal(
                OTHER_TIME, f"word {said.number} comes after word {last} of the same guard"
            )
        if key not in self._words and self._groups(worker) >= _MOST_GROUPS:
            raise RuntimeRefusal(NOT_OWN, f"rank {worker.rank} has words in {_MOST_GROUPS} groups")
        self._words[key] = said.number

    def _groups(self, worker: Worker) -> int:
        return sum(rank == worker.rank for rank, _, _ in self._words)

    def statement(self, worker: Worker, message: bytes) -> None:
        """Judge a checkpoint's statement; the caller signs it next.

        Raises:
            RuntimeRefusal: ST-RUNT-031 to 033.
        """
        self.admit(worker, Ask.CHECKPOINT)
        said = _read(lambda: read_message(message))
        self._check_run(said.run_id)
        self._check_world(worker, said.world_size)
        self._check_time(said.created)
        if said.policy.digest not in {"", self.here.policy}:
            raise RuntimeRefusal(NOT_OWN, f"it names the policy {said.policy.digest[:16]}")
        if said.epoch is not None and said.epoch != self.epoch:
            raise RuntimeRefusal(
                OTHER_TIME, f"it is of membership {said.epoch}, and {self.epoch} is in force"
            )
        if said.name not in {"", said.run_id, self.here.name}:
            raise RuntimeRefusal(NOT_OWN, f"it bears the name {said.name!r}, which is another's")
        if self.here.binder is not None:
            self.here.binder.check(said)
        elif said.bound != Bound():
            raise RuntimeRefusal(NOT_OWN, "it binds what this launcher does not keep")
        last = self._statement
        if said.step < last.step or said.seq < last.seq:
            raise RuntimeRefusal(
                OTHER_TIME,
                f"step {said.step}, number {said.seq} comes after step {last.step}, number"
                f" {last.seq}",
            )
        self._check_nodes(said)
        if len(said.members) > len(said.signatures) + len(said.by_nodes):
            raise RuntimeRefusal(NOT_OWN, "it has more certificates than there are signatures")
        for problem in members.check(said, self.here.trust, required=False):
            raise RuntimeRefusal(NOT_OWN, f"the ranks' signatures: {problem.what}")
        self._statement = Last(said.step, said.seq)
        self._signed[digest_of(said)] = self._statement
        if self.here.binder is not None:
            self.here.binder.signed(digest_of(said), message)

    def saved(self, worker: Worker, message: bytes) -> saved_files.SavedFiles:
        """Judge a statement on files that a script has saved; the caller signs it next.

        Raises:
            RuntimeRefusal: ST-RUNT-031 to 033.
        """
        if not self.here.signs_saves:
            raise RuntimeRefusal(NOT_OWN, "the policy does not have the saves of scripts signed")
        said = _read(lambda: saved_files.read_saved_message(message))
        self._check_run(said.run_id)
        if said.rank != worker.rank:
            raise RuntimeRefusal(NOT_OWN, f"rank {worker.rank} asks for a save of {said.rank}")
        if said.world_size != worker.world_size:
            raise RuntimeRefusal(
                NOT_OWN, f"it speaks of {said.world_size} ranks, there are {worker.world_size}"
            )
        self._check_time(said.created)
        if said.policy.digest != self.here.policy:
            raise RuntimeRefusal(NOT_OWN, f"it names the policy {said.policy.digest[:16]}")
        if said.name not in {said.run_id, self.here.name}:
            raise RuntimeRefusal(NOT_OWN, f"it bears the name {said.name!r}, which is another's")
        return said

    def declaration(self, worker: Worker, body: bytes) -> None:
        """Judge and keep a worker's own word on what it runs.

        Raises:
            RuntimeRefusal: ST-RUNT-031 or 032.
        """
        self.admit(worker, Ask.DECLARE)
        said = _read(
            lambda: canonical.decode(body, Declaration, limit=LIMITS[Ask.DECLARE], canonical=True)
        )
        if self.here.binder is not None:
            self.here.binder.declare(said)

    def bonds(self, worker: Worker, body: bytes) -> Bonds:
        """Say what the next statement has to bind.

        Raises:
            RuntimeRefusal: ST-RUNT-031 or 032.
        """
        self.admit(worker, Ask.BIND)
        said = _read(lambda: canonical.decode(body, Bind, limit=LIMITS[Ask.BIND], canonical=True))
        return Bonds(keeps=False) if self.here.binder is None else self.here.binder.bind(said)

    def head(self, worker: Worker, message: bytes) -> None:
        """Judge the head of the run; the caller signs it next.

        Raises:
            RuntimeRefusal: ST-RUNT-031 to 033.
        """
        self.admit(worker, Ask.HEAD)
        said: machine.Head = _read(lambda: head.read_message(message))
        self._check_run(said.run_id)
        self._check_time(said.created)
        made = self._signed.get(said.digest)
        if made is None or (made.step, made.seq) != (said.step, said.seq):
            raise RuntimeRefusal(
                NOT_OWN, "it is of a checkpoint that was not signed in this launch"
            )
        if said.log_index is not None or said.expires > said.created + head.LIFETIME:
            raise RuntimeRefusal(NOT_OWN, "it names a place in the log, or keeps too long")
        if said.seq <= self._head.seq:
            raise RuntimeRefusal(
                OTHER_TIME, f"the head was checkpoint {self._head.seq} already, not {said.seq}"
            )
        self._head = Last(said.step, said.seq)

    def event(self, worker: Worker, body: bytes) -> tuple[LedgerEvent, WriterRole]:
        """Judge an event; returns it, and as which role the caller writes it.

        Raises:
            RuntimeRefusal: ST-RUNT-031 or 032.
        """
        line = _read(lambda: canonical.decode(body, Event, limit=LIMITS[Ask.EVENT], canonical=True))
        try:
            said = events.decode_event(line)
        except ValueError as error:  # msgspec's errors are among them
            raise RuntimeRefusal(MALFORMED, f"not an event: {error}"[:300]) from error
        roles = said.WRITERS & {WriterRole.RANK, WriterRole.WORKER}
        if not roles:
            raise RuntimeRefusal(
                NOT_OWN, f"{said.NAME} is written by the {min(said.WRITERS)}, not by a worker"
            )
        if isinstance(said, events.LedgerMended):
            raise RuntimeRefusal(NOT_OWN, f"{said.NAME} is written by whoever mends the ledger")
        if type(said) in FOR_ALL and worker.rank != 0:
            raise RuntimeRefusal(NOT_OWN, f"rank {worker.rank} asks for a {said.NAME}; rank 0 may")
        self._check_said(worker, said)
        return said, min(roles)

    def _check_said(self, worker: Worker, said: LedgerEvent) -> None:
        match said:
            case events.CheckpointSigned():
                made = self._signed.get(said.digest)
                if made is None or made.step != said.step:
                    raise RuntimeRefusal(NOT_OWN, "it is of a checkpoint that was not signed here")
            case (
                events.CheckpointSeen()
                | events.RankSuspected()
                | events.ReductionDisputed()
                | events.RolledBack()
            ) if worker.local_rank != 0:
                raise RuntimeRefusal(
                    NOT_OWN, f"only the first rank of a node asks for a {said.NAME}"
                )
            case events.RankSuspected() if said.rank not in range(worker.world_size):
                raise RuntimeRefusal(NOT_OWN, f"there is no rank {said.rank}")
            case events.RankSuspected() if (
                said.cause != _SILENT and self.here.response is not GuardResponse.EVICT_NODE
            ):
                raise RuntimeRefusal(
                    NOT_OWN, f"gradients.response is {self.here.response}: only silence is reported"
                )
            case events.RolledBack() if self.here.response is not GuardResponse.ROLLBACK:
                # Else any worker could have a run's checkpoints set aside.
                raise RuntimeRefusal(
                    NOT_OWN, f"gradients.response is {self.here.response}: nothing is taken back"
                )
            case events.PickleLetThrough() if said.rank != worker.rank:
                raise RuntimeRefusal(NOT_OWN, f"rank {worker.rank} speaks of rank {said.rank}")
            case _:
                pass

    def _check_run(self, run_id: str) -> None:
        if run_id != self.here.run_id:
            raise RuntimeRefusal(
                OTHER_TIME, f"it is of run {run_id[:64]}, this is {self.here.run_id}"
            )

    def _check_world(self, worker: Worker, world_size: int) -> None:
        is_alone = world_size == 1 and worker.rank == 0
        if world_size != worker.world_size and not is_alone:
            raise RuntimeRefusal(
                NOT_OWN,
                f"it speaks for {world_size} ranks, there are {worker.world_size}",
                fix="save with all ranks, or with rank 0 alone; a save of other groups needs a"
                " key of your own",
            )

    def _check_time(self, created: datetime) -> None:
        """By the launcher's clock: nobody dates a checkpoint back before an eviction."""
        now = self.here.clock()
        if not self.began - members.CLOCK_SKEW <= created <= now + _AHEAD:
            raise RuntimeRefusal(
                OTHER_TIME,
                f"it is dated {created.isoformat()}; this round began {self.began.isoformat()}",
            )

    def _check_nodes(self, said: CheckpointPredicate) -> None:
        admitted = self.here.admitted()
        if admitted is None:
            return
        for node in said.nodes:
            if admitted.get(node.node) is not node.tier:
                raise RuntimeRefusal(
                    NOT_OWN, f"node {node.node[:64]} was not admitted as {node.tier}"
                )


def _read(parse: Callable[[], _T]) -> _T:
    """Turn a parser's refusal into the socket's."""
    try:
        return parse()
    except SecureTrainError as error:
        raise RuntimeRefusal(MALFORMED, reason(error)[:500]) from error
