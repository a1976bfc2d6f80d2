# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The launcher's signing socket: workers have no key, and say what they want signed.

Rules:

1. one thread serves all; nothing that a worker does or leaves out makes another one wait;
2. a peer is identified when it connects (`peers`), and every question is judged
   (`rules`) before a key is used. The launcher writes the workers' events itself, under the
   key of their role, with the rank that it knows;
3. limits before memory: connections, questions, bytes and ledger entries of each rank, the time
   for a question, the size of each kind of question. A statement may be large, so a rank sends one
   at a time;
4. a refusal is in the ledger: the first of each rank one by one, the rest counted. Entries above a
   rank's share are left out, counted, and said in one event.
"""

import base64
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts import members, saved_files
from securetrain.core import RunDir, canonical
from securetrain.core.errors import IntegrityError, RuntimeRefusal, SecureTrainError, os_error
from securetrain.core.files import make_private_dir
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import Role, SpiffeId, signing
from securetrain.identity.keys import PairSigner, PrivateKey, Signer
from securetrain.identity.signing import (
    Ask,
    Bonds,
    Given,
    Handed,
    Refusal,
    Reply,
    Signed,
    Welcome,
    Written,
)
from securetrain.identity.trust import TrustRoot
from securetrain.launch.agent import elastic_agent
from securetrain.launch.node.secrets import no_secrets
from securetrain.launch.process import workerlog
from securetrain.launch.setup import RunSetup
from securetrain.launch.signing.binding import Binder
from securetrain.launch.signing.node_files import Whole
from securetrain.launch.signing.peers import Quota, Share, Worker, identify, stood_for, workers_of
from securetrain.launch.signing.rules import MALFORMED, Circumstances, Judge
from securetrain.ledger import Ledger, LedgerEvent, WriterRole, events, key_file
from securetrain.rendezvous.coordinator import Coordinator
from securetrain.rendezvous.wire import Membership, node_ranks

_WORKERS: Final = (WriterRole.RANK, WriterRole.WORKER)

MAX_CONNECTIONS: Final = 32
"""Of one rank: its threads' and its data loaders'."""
QUESTION_SECONDS: Final = 30.0
"""From the first byte of a question to its last."""
PATIENCE_SECONDS: Final = 2.0
"""For a sandbox to tell which process is whose."""
MAX_UNKNOWN: Final = 64
LISTED: Final = 20
"""Refusals of one rank, or of strangers, that are written one by one."""
STRANGER: Final = -1
_PART: Final = 1 << 16
_SHORT: Final = 0.02


@dataclass(slots=True)
class _Connection:
    """One peer."""

    socket: socket.socket
    worker: Worker
    buffer: bytearray = field(default_factory=bytearray)
    asks: Ask | None = None
    """The question that is being read."""
    size: int = 0
    deadline: float = 0.0
    """When it must be there; 0 when none has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys that the service signs with."""

    checkpoint: Signer
    rank: members.RankSigner | None
    """None where nobody certifies a key for this node's ranks."""
    ledgers: Mapping[WriterRole, Signer]
    """By the workers' two roles."""


@dataclass(slots=True, kw_only=True)
class SigningService:
    """One launcher's. Made by `start`; `stop` may be called again."""

    run: RunDir
    keys: Keys
    judge: Judge
    ledger: Ledger
    """The launcher's own, for refusals."""
    stands_in: bool = False
    """Whether the agent's processes stand for workers in a sandbox."""
    quota: Quota = field(default_factory=Quota)
    """Of each rank."""
    monotonic: Callable[[], float] = time.monotonic
    path: Path = field(init=False)
    """The socket's; workers find it by ``SECURETRAIN_SIGNER``."""
    nodes: tuple[int, ...] = ()
    """The workers of each node of the epoch."""
    act: Callable[[Worker, LedgerEvent], None] = lambda _worker, _event: None
    """Does what follows from a worker's event, once that is in the ledger (`after_events`)."""
    secret: Callable[[str], bytes] = no_secrets
    """Gives a named secret of the job, or refuses it (`node.secrets`)."""
    problem: SecureTrainError | None = None
    """Why an event could not be written; the run's ledger has a gap."""
    _listener: socket.socket = field(init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _wake: tuple[int, int] = field(init=False)
    _thread: threading.Thread | None = None
    _stopping: bool = False
    _starting: bool = False
    """Workers are being started: who connects waits until it is known which rank it is."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _workers: dict[int, Worker] = field(default_factory=dict)
    _inside: dict[int, Worker] = field(default_factory=dict)
    """The same workers by their processes in a sandbox (`peers`, rule 6)."""
    _unknown: dict[socket.socket, float] = field(default_factory=dict)
    """Peers of which a sandbox has not told yet, and until when they may wait."""
    _round: int = 0
    _connections: dict[socket.socket, _Connection] = field(default_factory=dict)
    _shares: dict[int, Share] = field(default_factory=dict)
    _refused: dict[int, int] = field(default_factory=dict)
    """Refusals so far in this round, by rank."""

    def start(self) -> None:
        """Listen.

        Raises:
            UsageError: ST-USAG-002 when the socket cannot be made.
        """
        folder = make_private_dir(self.run.signer)
        self.path = folder / f"{secrets.token_hex(8)}.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            signing.through_folder(self.path, self._listener.bind)
            # The process decides, not the mode: workers may be another user.
            self.path.chmod(0o666)
        except OSError as error:
            self._listener.close()
            raise os_error(error, str(self.path)) from error
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake[0], selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="signer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; what was left out is said."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        os.write(self._wake[1], b"x")
        thread.join()
        self._end_round()
        self._say_left_out()
        for connection in list(self._connections.values()):
            self._drop(connection)
        for peer in self._unknown:
            peer.close()
        self._unknown.clear()
        self._selector.close()
        self._listener.close()
        for end in self._wake:
            os.close(end)
        with suppress(OSError):
            self.path.unlink()

    # Called by the agent's thread.

    def hearing(self, begin: elastic_agent.OnEpoch) -> elastic_agent.OnEpoch:
        """`begin`, and then this service knows of the epoch, too."""

        def hear(membership: Membership, local: Callable[[datetime], datetime]) -> None:
            begin(membership, local)
            with self._lock:
                self.judge.epoch = membership.epoch
                self.nodes = tuple(found.num_workers for found in node_ranks(membership))

        return hear

    @property
    def has_started(self) -> bool:
        """Tell whether workers were ever started."""
        return self._round > 0

    def shutdown_seconds(self) -> float:
        """The time that they want to save and end; see `workerlog`."""
        return workerlog.shutdown_seconds(self.run)

    def report(self, rank: int, attempt: int) -> workerlog.WorkerReport | None:
        """See `WatchesWorkers`."""
        return workerlog.read_report(self.run, rank, attempt)

    def starting(self) -> None:
        """Workers are about to be started."""
        with self._lock:
            self._end_round()
            self._starting = True
            self.judge.begin_round()

    def started(
        self, pids: Mapping[int, int], environments: Mapping[int, Mapping[str, str]]
    ) -> None:
        """They are; see `peers.workers_of`."""
        with self._lock:
            self._round += 1
            found = workers_of(pids, environments, self._round)
            self._workers = {worker.pid: worker for worker in found}
            # Also those that have ended by now: no save is whole without them.
            self.judge.files.begin(frozenset(int(one["RANK"]) for one in environments.values()))
            self._starting = False
        if self._thread is not None:
            os.write(self._wake[1], b"x")

    def _end_round(self) -> None:
        """Nobody is a worker any more."""
        for worker in self._workers.values():
            os.close(worker.handle)
        self._workers, self._inside = {}, {}
        for rank, count in self._refused.items():
            if count > LISTED:
                self._note(
                    events.SigningRefusalsNotListed(subject=_name(rank), count=count - LISTED)
                )
        self._refused.clear()

    def _say_left_out(self) -> None:
        for rank, share in sorted(self._shares.items()):
            if share.left_out:
                self._note(
                    events.WorkerEventsLeftOut(
                        subject=_name(rank), count=share.left_out, bytes=share.bytes_left_out
                    )
                )

    # The thread.

    def _serve(self) -> None:
        while not self._stopping:
            self._listen()
            ready = self._selector.select(self._patience())
            with self._lock:
                for key, _ in ready:
                    if key.fileobj == self._wake[0]:
                        with suppress(BlockingIOError):
                            os.read(self._wake[0], 64)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._receive(key.data)
                for peer, until in list(self._unknown.items()):
                    del self._unknown[peer]
                    self._take(peer, until)
                self._expire()

    def _listen(self) -> None:
        """Take new connections, except while workers are being started: they wait in the queue."""
        is_listening = self._listener in self._selector.get_map()
        if self._starting and is_listening:
            self._selector.unregister(self._listener)
        elif not self._starting and not is_listening:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _patience(self) -> float | None:
        """Seconds until a question must be there."""
        if self._starting or self._unknown:
            return _SHORT
        deadlines = [c.deadline for c in self._connections.values() if c.deadline]
        return max(0.0, min(deadlines) - self.monotonic()) if deadlines else None

    def _accept(self) -> None:
        if self._starting:
            return
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        peer.setblocking(False)
        self._take(peer, self.monotonic() + (PATIENCE_SECONDS if self.stands_in else 0.0))

    def _take(self, peer: socket.socket, until: float) -> None:
        """Find out who a peer is. A sandbox may not have told yet which process it has started."""
        worker = None
        try:
            worker = identify(peer, self._known())
            mine = [c for c in self._connections.values() if c.worker.rank == worker.rank]
            if len(mine) >= MAX_CONNECTIONS:
                raise RuntimeRefusal(
                    "ST-RUNT-034", f"rank {worker.rank} has {len(mine)} connections"
                )
        except RuntimeRefusal as error:
            if worker is None and self.monotonic() < until and len(self._unknown) < MAX_UNKNOWN:
                self._unknown[peer] = until
                return
            self._refuse(peer, error, STRANGER if worker is None else worker.rank)
            peer.close()
            return
        connection = _Connection(peer, worker)
        self._connections[peer] = connection
        self._selector.register(peer, selectors.EVENT_READ, connection)

    def _known(self) -> Mapping[int, Worker]:
        """The workers by process; those of a sandbox too, as soon as it has told."""
        if self.stands_in and len(self._inside) < len(self._workers):
            self._inside = stood_for(self._workers)
        return {**self._inside, **self._workers}

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_PART)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        if not connection.deadline:
            connection.deadline = self.monotonic() + QUESTION_SECONDS
        connection.buffer += data
        try:
            self._advance(connection)
        except RuntimeRefusal as error:
            self._refuse(connection.socket, error, connection.worker.rank)
            self._drop(connection)
        except Exception as error:  # noqa: BLE001 - no question may end the service of the others
            failed = RuntimeRefusal(MALFORMED, f"it could not be judged: {type(error).__name__}")
            self._refuse(connection.socket, failed, connection.worker.rank)
            self._drop(connection)

    def _advance(self, connection: _Connection) -> None:
        """Read on; a question that is whole is answered.

        Raises:
            RuntimeRefusal: The frame cannot be followed any further.
        """
        head = signing.HEADER.size
        if connection.asks is None:
            if len(connection.buffer) < head:
                return
            connection.asks, connection.size = signing.parse_header(bytes(connection.buffer[:head]))
            self._admit(connection)
        whole = head + connection.size
        if len(connection.buffer) < whole:
            return
        if len(connection.buffer) > whole:
            raise RuntimeRefusal(MALFORMED, "a second question before the reply to the first")
        ask, body = connection.asks, bytes(memoryview(connection.buffer)[head:])
        connection.buffer, connection.asks, connection.deadline = bytearray(), None, 0.0
        self._answer(connection, ask, body)

    def _admit(self, connection: _Connection) -> None:
        """Judge a header."""
        worker, ask = connection.worker, connection.asks
        assert ask is not None
        self._check_round(worker)
        self.judge.admit(worker, ask)
        self._share(worker).question(signing.HEADER.size + connection.size, self.monotonic())
        others = [
            c
            for c in self._connections.values()
            if c is not connection and c.worker.rank == worker.rank and c.asks is Ask.CHECKPOINT
        ]
        if ask is Ask.CHECKPOINT and others:
            raise RuntimeRefusal("ST-RUNT-034", f"rank {worker.rank} sends two statements at once")

    def _check_round(self, worker: Worker) -> None:
        if self._workers.get(worker.pid) is not worker or not worker.runs:
            raise RuntimeRefusal("ST-RUNT-033", f"rank {worker.rank} of a round that is over")

    def _share(self, worker: Worker) -> Share:
        return self._shares.setdefault(worker.rank, Share(self.quota, self.monotonic()))

    def _answer(self, connection: _Connection, ask: Ask, body: bytes) -> None:
        """Judge a question and reply; the connection stays."""
        worker = connection.worker
        try:
            self._check_round(worker)
            said = self._judged(worker, ask, body)
        except RuntimeRefusal as error:
            self._refuse(connection.socket, error, worker.rank)
            return
        _send(connection.socket, Reply.DONE, canonical.encode(said))

    def _judged(
        self, worker: Worker, ask: Ask, body: bytes
    ) -> Welcome | Handed | Signed | Written | Given | Bonds:
        match ask:
            case Ask.HELLO:
                self.judge.hello(body)
                return welcome(self.keys, self.judge.here, worker, self.nodes)
            case Ask.RANK | Ask.WORD:
                return self._by_node(worker, ask, body)
            case Ask.CHECKPOINT | Ask.HEAD:
                (self.judge.statement if ask is Ask.CHECKPOINT else self.judge.head)(worker, body)
                return signed(self.keys.checkpoint, body, whole=True)
            case Ask.SAVED:
                said = self.judge.saved(worker, body)
                made = signed(self.keys.checkpoint, body, whole=True)
                self._note_saved(worker, said)
                return made
            case Ask.EVENT:
                return self._write(worker, body)
            case Ask.SECRET:
                return Given(base64.b64encode(self.secret(self.judge.wanted(body))).decode())
            case Ask.DECLARE:
                self.judge.declaration(worker, body)
                return Written(kept=self.judge.here.binder is not None)
            case Ask.BIND:
                return self._bonds(worker, body)
            case _:
                raise ValueError(f"unknown question {ask!r}")

    def _bonds(self, worker: Worker, body: bytes) -> Bonds:
        try:
            return self.judge.bonds(worker, body)
        except IntegrityError as error:  # evidence that cannot be kept: nothing may name it
            self.problem = self.problem or error
            raise RuntimeRefusal(signing.UNREACHABLE, error.what) from error
        except OSError as error:
            raise RuntimeRefusal(signing.UNREACHABLE, str(error)) from error

    def _by_node(self, worker: Worker, ask: Ask, body: bytes) -> Handed | Signed:
        """Judge what the key of the node signs."""
        if self.keys.rank is None:
            raise RuntimeRefusal(MALFORMED, "no key is certified for the ranks of this node")
        if ask is Ask.RANK:
            return handed(self.keys.rank.key, self.judge.rank_file(worker, body))
        self.judge.word(worker, body)
        return signed(self.keys.rank.key, body)

    def _note_saved(self, worker: Worker, said: saved_files.SavedFiles) -> None:
        """Write who has had what signed; above the rank's share it is counted only."""
        if self._share(worker).entry(len(said.place)):
            self._note(saved_event(said, _name(worker.rank)))

    def _write(self, worker: Worker, body: bytes) -> Written:
        """Write a worker's event: the writer, the time and the chain are the launcher's."""
        said, role = self.judge.event(worker, body)
        if not self._share(worker).entry(len(body)):
            return Written(kept=False)
        try:
            self.ledger.by(self.keys.ledgers[role], _name(worker.rank)).write(said)
            self.act(worker, said)
            if isinstance(said, events.RolledBack):
                self.judge.roll_back(said.to)
        except SecureTrainError as error:
            self.problem = self.problem or error
            raise RuntimeRefusal(
                signing.UNREACHABLE, f"the ledger cannot be written: {error.what}"
            ) from error
        return Written(kept=True)

    def _expire(self) -> None:
        """Close connections whose question did not come."""
        now = self.monotonic()
        for connection in list(self._connections.values()):
            if connection.deadline and now >= connection.deadline:
                error = RuntimeRefusal(
                    MALFORMED, f"{QUESTION_SECONDS:.0f} s were not enough for one question"
                )
                self._refuse(connection.socket, error, connection.worker.rank)
                self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.socket, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _refuse(self, peer: socket.socket, error: RuntimeRefusal, rank: int) -> None:
        """Tell the ledger, unless this rank was refused often, and then the peer."""
        self._refused[rank] = self._refused.get(rank, 0) + 1
        if self._refused[rank] <= LISTED:
            self._note(events.SigningRefused.of(error, _name(rank)))
        refusal = Refusal(code=error.code, what=error.what[:1000], fix=error.fix[:1000])
        _send(peer, Reply.REFUSED, canonical.encode(refusal))

    def _note(self, said: LedgerEvent) -> None:
        try:
            self.ledger.write(said)
        except SecureTrainError as error:
            self.problem = self.problem or error


def _send(peer: socket.socket, kind: Reply, body: bytes) -> None:
    """Send a reply; a peer that does not read loses it."""
    with suppress(OSError):
        peer.send(signing.frame(kind, body))


def _name(rank: int) -> str:
    return "a stranger" if rank == STRANGER else f"rank-{rank}"


def start_signing(
    setup: RunSetup,
    ledger: Ledger,
    clock: Callable[[], datetime],
    coordinator: Coordinator | None,
    rank: members.RankSigner | None,
    *,
    binder: Binder | None = None,
) -> SigningService:
    """Start the service; the caller stops it.

    Args:
        setup: The run.
        ledger: The launcher's, for refusals.
        clock: The launcher's.
        coordinator: The launcher's own, which knows what the nodes have proved; None when the
            job has another.
        binder: Says what statements bind.
        rank: Signs the ranks' files, with the certificate of this node.

    Raises:
        IdentityError: ST-IDEN-001, 008 or 010 when a key or the trust root cannot be used.
        UsageError: ST-USAG-002 when the socket cannot be made.
    """

    def admitted() -> Mapping[str, NodeTier] | None:
        if coordinator is None:
            return None
        return {
            str(SpiffeId(domain, setup.job, Role.NODE, found.node)): found.tier
            for found in coordinator.admissions
        }

    run, domain = setup.run, setup.policy.policy.identity.trust_domain
    here = Circumstances(
        run_id=setup.job,
        name=_expected(setup),
        policy=setup.policy.digest,
        response=setup.policy.policy.gradients.response,
        trust=TrustRoot.load(run.trust, clock()),
        clock=clock,
        admitted=admitted,
        binder=binder,
        signs_saves=setup.policy.policy.checkpoint.sign_saves,
    )
    keys = Keys(
        checkpoint=PrivateKey.load(run.key("checkpoint")),
        rank=rank,
        ledgers={role: PrivateKey.load(key_file(run, role)) for role in _WORKERS},
    )
    service = SigningService(run=run, keys=keys, judge=Judge(here=here), ledger=ledger)
    service.start()
    return service


def _expected(setup: RunSetup) -> str:
    """The name under which the run may sign: the one that its policy expects, or the run's own."""
    expected = setup.policy.policy.checkpoint.expect
    return setup.job if expected is None or expected.name is None else expected.name


def saved_event(said: saved_files.SavedFiles, subject: str) -> events.SavedFilesSigned:
    """Say who has had what signed; of a directory's files, how many."""
    return events.SavedFilesSigned(
        subject=subject,
        way=said.way,
        place=said.place,
        file="" if said.form is saved_files.Form.DIRECTORY else said.files[0].name,
        files=len(said.files),
        number=said.number,
        step=said.step,
    )


def signed(key: Signer, message: bytes, *, whole: bool = False) -> Signed:
    """Sign; `whole` with a pair's companion too."""
    made = (
        key.sign_all(message)
        if whole and isinstance(key, PairSigner)
        else ((key.key_id, key.sign(message)),)
    )
    sigs = [base64.b64encode(signature).decode() for _, signature in made]
    return Signed(key.key_id, sigs[0], sigs[1] if len(sigs) > 1 else "")


def handed(key: Signer, whole: Whole | None) -> Handed:
    """The reply to a rank's word on its file: with the node's signature when they are all there."""
    if whole is None:
        return Handed()
    made = signed(key, whole.message)
    return Handed(keyid=made.keyid, ranks=whole.ranks, leaves=whole.leaves, sig=made.sig)


def spki(key: Signer) -> str:
    """A key's public half, in base64."""
    return base64.b64encode(key.public.spki).decode()


def companion_of(key: Signer) -> str:
    """The public half of a pair's other key, in base64; empty without."""
    companion = key.public.companion
    return "" if companion is None else base64.b64encode(companion.spki).decode()


def welcome(keys: Keys, here: Circumstances, worker: Worker, nodes: tuple[int, ...]) -> Welcome:
    """The launcher's word on a worker: who it is, and under which keys will be signed for it."""
    key, rank, saves = keys.checkpoint, keys.rank, here.signs_saves
    return Welcome(
        run_id=here.run_id,
        rank=worker.rank,
        world_size=worker.world_size,
        checkpoint_key=spki(key) if worker.rank == 0 else "",
        checkpoint_companion=companion_of(key) if worker.rank == 0 else "",
        rank_key="" if rank is None else spki(rank.key),
        rank_certificate="" if rank is None else rank.certificate,
        nodes=nodes,
        saved_key=spki(key) if saves else "",
        saved_companion=companion_of(key) if saves else "",
    )
