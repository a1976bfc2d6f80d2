# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signing through a launcher's socket: the protocol ``securetrain-signer/2`` and its client.

A worker of a run has no key. It says what it has to say, and its launcher signs that, if this
worker may say it (`launch.signing.service`). Rules of the frames, both ways:

1. a frame is one letter (`Ask` or `Reply`), a length of four bytes, big-endian, and so many bytes;
2. the length is checked against the limit of the letter before anything is allocated;
3. a body is canonical JSON of a closed schema, except that of `RANK`, `WORD`, `CHECKPOINT`,
   `HEAD` and `SAVED`: the message that a key would sign, which the launcher reads as strictly as a
   verifier does;
4. nobody waits for another rank: the reply to the last word on a node's files has its signature;
5. one question at a time on a connection, one reply to each. A refusal leaves the connection open
   unless the frame itself was malformed.

A process that was forked makes a connection of its own: the launcher knows its peers by process.
"""

import base64
import binascii
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import CODES, canonical
from securetrain.core.errors import RuntimeRefusal, SecureTrainError, reason
from securetrain.identity.keys import PublicKey

VERSION: Final = 2
HEADER: Final = struct.Struct(">cI")
REPLY_LIMIT: Final = 8 << 20
"""Bytes; what a statement binds names every node of the run."""
TIMEOUT_SECONDS: Final = 60.0
UNREACHABLE: Final = "ST-RUNT-035"
_AGAIN_SECONDS: Final = 0.01
_FAMILY: Final = "ST-RUNT-"

Hex32: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

T = TypeVar("T")


class Ask(StrEnum):
    """The questions of a worker."""

    HELLO = "H"
    """Which worker am I, and under which keys will be signed?"""
    RANK = "R"
    """Take this rank's word on its own file of a checkpoint; with the last of a node, sign."""
    CHECKPOINT = "C"
    """Sign a checkpoint's statement; rank 0 only."""
    WORD = "W"
    """Sign this rank's word in a dispute about a reduction."""
    HEAD = "D"
    """Sign the head of the run; rank 0 only."""
    EVENT = "E"
    """Write an event into the ledger."""
    SECRET = "S"  # noqa: S105 - the letter of a question
    """Give this worker a named secret of the job."""
    DECLARE = "K"
    """Keep what only a worker can know of the run, as its own word; rank 0 only."""
    BIND = "B"
    """Say what the next statement has to bind; rank 0 only."""
    SAVED = "F"
    """Sign the files that this rank's script has saved, where the policy has them signed."""


LIMITS: Final = {
    Ask.HELLO: 256,
    Ask.RANK: 16 << 10,
    Ask.CHECKPOINT: 48 << 20,
    Ask.WORD: 2 << 10,
    Ask.HEAD: 16 << 10,
    Ask.EVENT: 32 << 10,
    Ask.SECRET: 256,
    Ask.DECLARE: 16 << 20,
    Ask.BIND: 128 << 10,
    Ask.SAVED: 8 << 20,
}
"""Bytes of a body."""


class Reply(StrEnum):
    """The two kinds of replies."""

    DONE = "+"
    REFUSED = "-"


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `Ask.HELLO`."""

    version: int


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The launcher's word on the worker that asks."""

    run_id: str
    rank: int
    world_size: int
    checkpoint_key: str = ""
    """SPKI in base64 of the key that signs statements and heads; empty when this is not rank 0."""
    checkpoint_companion: str = ""
    """The same of its ML-DSA companion; empty when it has none."""
    rank_key: str = ""
    """The same of the key for this rank's files; empty when nobody has certified one."""
    rank_certificate: str = ""
    """Its certificate (`artifacts.statement.members`)."""
    nodes: tuple[int, ...] = ()
    """The number of workers of each node, in order of rank; empty before an epoch is known."""
    saved_key: str = ""
    """The same as `checkpoint_key`, for what scripts save; empty where nobody signs that."""
    saved_companion: str = ""


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signature in base64, and the id of its key."""

    keyid: str
    sig: str
    companion: str = ""
    """The signature of the key's companion."""


class Handed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rank's word was taken; with the last of its node the hashes of all, and a signature."""

    keyid: str = ""
    ranks: tuple[int, ...] = ()
    leaves: tuple[str, ...] = ()
    sig: str = ""


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event was taken."""

    kept: bool
    """Whether it is in the ledger; one above the rank's share is counted only."""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `Ask.SECRET`."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret, in base64."""

    value: str

    def __repr__(self) -> str:
        """Without it."""
        return "Given(...)"


class Topic(StrEnum):
    """The things that a worker declares."""

    CODE = "code"
    """The files of code that it has imported: `ImportedFile`s."""
    ENVIRONMENT = "environment"
    """Settings of the arithmetic: names and values."""
    JOB = "job"
    """The program's own resolved settings."""
    STATEMENT = "statement"
    """A signed statement that it has read: of its dataset, or of what it starts from (base64)."""
    RECORDS = "records"
    """A page of step records, or the document that names the pages (base64)."""


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `Ask.DECLARE`."""

    topic: Topic
    said: Any


class ImportedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of code that was imported, for `Topic.CODE`."""

    module: Annotated[str, Meta(min_length=1, max_length=255)]
    file: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Where it is on this machine; it is not kept."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class Bind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `Ask.BIND`: the statement that is about to be made."""

    step: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
    parents: Annotated[tuple[Hex32, ...], Meta(max_length=1024)] = ()
    """By tree digest, in their order."""
    dataset: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    records: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """The document of the step records, which was declared before; empty without any."""


class Bonds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The launcher's part of the next statement; empty where it keeps nothing."""

    keeps: bool
    bound: dict[str, Any] = {}
    """`Bound` of the statement."""
    nodes: tuple[dict[str, Any], ...] = ()
    """Its `NodeRef`s."""
    policy: dict[str, Any] = {}
    """Its `PolicyRef`."""
    epoch: int | None = None


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A question that was refused, and why."""

    code: Annotated[str, Meta(max_length=32)]
    what: Annotated[str, Meta(max_length=1000)]
    fix: Annotated[str, Meta(max_length=1000)] = ""


def nodes_of(said: Welcome) -> tuple[int, ...]:
    """The node of each rank, counted from 0; empty unless it is said of all of them."""
    if sum(said.nodes) != said.world_size:
        return ()
    return tuple(node for node, workers in enumerate(said.nodes) for _ in range(workers))


def frame(kind: Ask | Reply, body: bytes) -> bytes:
    """One frame."""
    return HEADER.pack(kind.encode("ascii"), len(body)) + body


def parse_header(data: bytes) -> tuple[Ask, int]:
    """Read the header of a question, before its body is taken (rule 2).

    Raises:
        RuntimeRefusal: ST-RUNT-032 for an unknown letter, or a body above its limit.
    """
    letter, size = HEADER.unpack(data)
    try:
        ask = Ask(letter.decode("ascii"))
    except ValueError as error:
        raise RuntimeRefusal("ST-RUNT-032", f"no question begins with {letter!r}") from error
    if size > LIMITS[ask]:
        raise RuntimeRefusal(
            "ST-RUNT-032", f"{size} bytes of {ask.name.lower()}, the limit is {LIMITS[ask]}"
        )
    return ask, size


@dataclass(slots=True, kw_only=True)
class SigningSocket:
    """A worker's way to its launcher's keys. Safe to use from several threads, and after a fork."""

    path: Path
    timeout: float = TIMEOUT_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connection: socket.socket | None = None
    _owner: int = 0
    """The process that made the connection."""
    _welcome: Welcome | None = None

    def welcome(self) -> Welcome:
        """The launcher's word on this worker; asked once.

        Raises:
            RuntimeRefusal: ST-RUNT-030 when this is no worker of the launcher, ST-RUNT-035 when
                the launcher does not answer.
        """
        if self._welcome is None or self._owner != os.getpid():
            said = canonical.encode(Hello(VERSION))
            self._welcome = self._reply(Ask.HELLO, said, Welcome)
        return self._welcome

    def sign(self, ask: Ask, message: bytes, public: PublicKey) -> tuple[tuple[str, bytes], ...]:
        """Have a message signed, by the key and its companion where it has one.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        said = self._reply(ask, message, Signed)
        made = []
        try:
            for key, text in ((public, said.sig), (public.companion, said.companion)):
                if key is not None:
                    signature = base64.b64decode(text, validate=True)
                    key.verify(signature, message)
                    made.append((key.key_id, signature))
        except (binascii.Error, SecureTrainError) as error:
            raise self._unreachable(f"its signature does not verify: {error}") from error
        return tuple(made)

    def hand_in(self, message: bytes) -> Handed:
        """Hand in this rank's word on its file.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        return self._reply(Ask.RANK, message, Handed)

    def write(self, event: bytes) -> None:
        """Have an event written (canonical JSON of `ledger.wire.Event`).

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        self._reply(Ask.EVENT, event, Written)

    def secret(self, name: str) -> bytes:
        """Have a named secret given to this worker.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 036.
        """
        said = self._reply(Ask.SECRET, canonical.encode(Wanted(name)), Given)
        try:
            return base64.b64decode(said.value, validate=True)
        except binascii.Error as error:
            raise self._unreachable("its secret is not base64") from error

    def declare(self, topic: Topic, said: Any) -> None:
        """Declare what only this worker knows.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        self._reply(Ask.DECLARE, canonical.encode(Declaration(topic=topic, said=said)), Written)

    def bind(self, about: Bind) -> Bonds:
        """Ask what a statement has to bind.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        return self._reply(Ask.BIND, canonical.encode(about), Bonds)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _reply(self, ask: Ask, body: bytes, kind: type[T]) -> T:
        if len(body) > LIMITS[ask]:
            raise RuntimeRefusal(
                "ST-RUNT-032", f"{len(body)} bytes of {ask.name.lower()}, at most {LIMITS[ask]}"
            )
        if self._owner != os.getpid():
            self._lock = threading.Lock()  # a thread of the parent may have held it in the fork
        with self._lock:
            letter, data = self._exchange(frame(ask, body))
        try:
            if letter == Reply.DONE:
                return canonical.decode(data, kind, limit=REPLY_LIMIT)
            refusal = canonical.decode(data, Refusal, limit=REPLY_LIMIT)
        except SecureTrainError as error:
            raise self._unreachable(f"its reply is malformed: {reason(error)}") from error
        if not refusal.code.startswith(_FAMILY) or refusal.code not in CODES:
            raise self._unreachable(f"it refused with {refusal.code[:32]!r}")
        raise RuntimeRefusal(refusal.code, refusal.what, str(self.path), refusal.fix)

    def _exchange(self, question: bytes) -> tuple[str, bytes]:
        """Ask once more over a new connection when the old one is gone: it may have been idle."""
        is_old = self._connection is not None and self._owner == os.getpid()
        try:
            return self._ask(question)
        except (EOFError, ConnectionError, TimeoutError, OSError) as error:
            self._drop()
            if not is_old or isinstance(error, TimeoutError):
                raise self._unreachable(str(error)) from error
        try:
            return self._ask(question)
        except (EOFError, OSError) as error:
            self._drop()
            raise self._unreachable(str(error)) from error

    def _ask(self, question: bytes) -> tuple[str, bytes]:
        if self._connection is None or self._owner != os.getpid():
            self._drop()
            self._connection = connect(self.path, self.timeout)
            self._owner = os.getpid()
        with suppress(BrokenPipeError, ConnectionResetError):
            # A launcher that refuses the frame closes before it has read it; its reply is there.
            self._connection.sendall(question)
        letter, size = HEADER.unpack(_read(self._connection, HEADER.size))
        if size > REPLY_LIMIT:
            raise OSError(f"a reply of {size} bytes")
        return letter.decode("ascii", "replace"), _read(self._connection, size)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _unreachable(self, what: str) -> RuntimeRefusal:
        return RuntimeRefusal(UNREACHABLE, f"the launcher does not sign: {what}", str(self.path))


@cache
def shared_socket(path: Path) -> SigningSocket:
    """The one way of this process to a launcher."""
    return SigningSocket(path=path)


@dataclass(frozen=True, slots=True)
class LauncherKey:
    """A `Signer` whose key is the launcher's."""

    socket: SigningSocket
    ask: Ask
    public: PublicKey

    @classmethod
    def of(cls, to: SigningSocket, ask: Ask, spki: str, companion: str = "") -> "LauncherKey":
        """The key of which the launcher has told.

        Raises:
            IdentityError: ST-IDEN-001, ST-IDEN-025.
        """
        key = PublicKey.from_spki(base64.b64decode(spki))
        if companion:
            key = key.with_companion(PublicKey.from_spki(base64.b64decode(companion)))
        return cls(to, ask, key)

    @property
    def key_id(self) -> str:
        """The id of the public key."""
        return self.public.key_id

    def sign(self, data: bytes) -> bytes:
        """Have the launcher sign `data`.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        return self.sign_all(data)[0][1]

    def sign_all(self, data: bytes) -> tuple[tuple[str, bytes], ...]:
        """See `keys.PairSigner`.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        return self.socket.sign(self.ask, data, self.public)


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to a socket, however long its path is."""
    return through_folder(path, lambda place: _connected(place, timeout))


def through_folder(path: Path, use: Callable[[str], T]) -> T:
    """Call `use` with a short name of `path`: a socket's address holds 107 bytes."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return use(f"/proc/self/fd/{fd}/{path.name}")
    finally:
        os.close(fd)


def _connected(place: str, timeout: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    deadline = time.monotonic() + timeout
    try:
        made.settimeout(timeout)
        while True:
            try:
                made.connect(place)
                break
            except BlockingIOError:  # the launcher's queue is full: somebody floods it
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_AGAIN_SECONDS)
    except BaseException:
        made.close()
        raise
    return made


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)
