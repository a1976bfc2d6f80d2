# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A witness: a node that cosigns a log's checkpoint only if it extends what it has seen.

The exchange is that of https://c2sp.org/tlog-witness (``add-checkpoint``), whatever carries it. For
each log that it is configured with, in order:

1. the request is at most 288 KiB: an old size, at most 63 hashes, and a checkpoint that the log's
   key signed;
2. the old size is the one that was cosigned last, or 0 the first time; a witness that is told of
   another one answers with its own (`Witness.seen`) and cosigns nothing;
3. the new tree is not smaller (ST-IDEN-042), and begins with the old one by the proof; equal sizes
   must have equal roots. A checkpoint that the log signed and that breaks this is kept beside what
   was seen: the two are the proof that the log lied (ST-IDEN-043);
4. what was seen is durable before the cosignature leaves this process, under a lock, so that a
   crash or a second process never lets it go back.

A file that is there and cannot be read is a refusal (ST-IDEN-046), never a first time.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.core.errors import IdentityError, SecureTrainError, UsageError
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_private_dir,
    read_file,
    write_atomic,
)
from securetrain.identity.keys import Signer
from securetrain.identity.log import merkle, note
from securetrain.identity.log.checkpoint import (
    Checkpoint,
    LogPolicy,
    open_signed,
    parse_text,
)
from securetrain.identity.log.proof import parse_hashes
from securetrain.identity.log.store import Log

REQUEST_LIMIT: Final = 288 << 10
MAX_HASHES: Final = 63
_MAX_KEPT: Final = 16
_OLD: Final = re.compile(r"old (0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, slots=True)
class Request:
    """A log's request to a witness."""

    old: int
    hashes: tuple[bytes, ...]
    checkpoint: bytes

    def encode(self) -> bytes:
        """Its bytes."""
        hashes = [base64.b64encode(value).decode() for value in self.hashes]
        return "\n".join([f"old {self.old}", *hashes, "", ""]).encode() + self.checkpoint


def parse_request(data: bytes, where: str = "") -> Request:
    """Read a request.

    Raises:
        IdentityError: ST-IDEN-041.
    """
    if len(data) > REQUEST_LIMIT:
        raise _bad(f"{len(data)} bytes, the limit is {REQUEST_LIMIT}", where)
    head, separator, checkpoint = data.partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise _bad("it is not ASCII before the checkpoint", where) from error
    old = _OLD.fullmatch(lines[0])
    if not separator or old is None or int(old[1]) > merkle.MAX_SIZE:
        raise _bad("no old size in its first line", where)
    if len(lines) - 1 > MAX_HASHES:
        raise _bad(f"{len(lines) - 1} hashes", where)
    return Request(int(old[1]), parse_hashes(lines[1:], where), checkpoint)


def request_for(log: Log, old: int) -> bytes:
    """Make the request for a witness that has seen the log at size `old`.

    Raises:
        IdentityError: Those of `Log.prove_consistency`.
    """
    hashes, checkpoint = log.prove_consistency(old)
    return Request(old, tuple(hashes), checkpoint).encode()


class LogMemory:
    """The last seen state of logs, in a folder: a file for each origin that never goes back.

    A verifier can keep one too: ``Seen(folder).advance(...)`` without signing anything.
    """

    def __init__(self, folder: Path) -> None:
        """Name the folder, which is made when it is needed."""
        self.folder = folder

    def last(self, policy: LogPolicy) -> Checkpoint | None:
        """The newest checkpoint that was seen; None before the first.

        Raises:
            IdentityError: ST-IDEN-046 when the file cannot be read or is not what was written.
        """
        path = self._path(policy.origin)
        if not path.exists() and not path.is_symlink():
            return None
        try:
            # Its signatures were checked before it was written; the key may have changed since.
            found = parse_text(note.parse(read_file(path, note.LIMIT), str(path)).text, str(path))
            if found.origin != policy.origin:
                raise note.bad(f"it is of {found.origin}", str(path))
        except SecureTrainError as error:
            raise IdentityError(
                "ST-IDEN-046",
                f"the record of {policy.origin} cannot be read: {error.what}",
                str(path),
                "restore the file; without it, a log could show another history",
            ) from error
        return found

    def advance(
        self, checkpoint: bytes, hashes: Sequence[bytes], old: int, policy: LogPolicy
    ) -> tuple[Checkpoint, note.Note]:
        """Check that a checkpoint extends what was seen, and remember it.

        Raises:
            IdentityError: ST-IDEN-040 to 043, ST-IDEN-046; nothing is remembered then.
        """
        found, signed = open_signed(checkpoint, policy)
        with self._locked():
            last = self.last(policy)
            self._check(found, checkpoint, last, old, hashes)
            if last is None or found.size > last.size:
                try:
                    path = self._path(policy.origin)
                    write_atomic(path, signed.encode(), mode=PRIVATE_FILE)
                except UsageError as error:
                    raise _unwritable(error) from error
        return found, signed

    def _check(
        self,
        found: Checkpoint,
        data: bytes,
        last: Checkpoint | None,
        old: int,
        hashes: Sequence[bytes],
    ) -> None:
        size = 0 if last is None else last.size
        if last is not None and found.size < last.size:
            raise IdentityError(
                "ST-IDEN-042",
                f"it had {last.size} entries, and now it has {found.size}",
                found.origin,
            )
        # A second root for a size that was seen needs no proof to be a lie.
        if last is not None and found.size == last.size and found.root != last.root:
            self._keep(found, data)
            raise IdentityError(
                "ST-IDEN-043",
                f"two trees of size {found.size} have different roots",
                found.origin,
                f"the log signed both; they are kept in {self.folder}",
            )
        if old != size:
            raise _bad(f"it starts from size {old}; size {size} was seen here", found.origin)
        if last is None or last.size == 0:
            if hashes:
                raise _bad("a proof from size 0", found.origin)
            return
        try:
            merkle.check_consistency(
                last.size, found.size, last.root, found.root, hashes, found.origin
            )
        except IdentityError as error:
            if error.code == "ST-IDEN-043":
                self._keep(found, data)
            raise

    def _keep(self, found: Checkpoint, data: bytes) -> None:
        """Keep a signed checkpoint that contradicts what was seen; a few are proof enough."""
        path = self._path(found.origin)
        if len(list(self.folder.glob(f"{path.stem}.*.contradiction"))) >= _MAX_KEPT:
            return
        name = f"{path.stem}.{found.size}.{found.root.hex()[:16]}.contradiction"
        if not path.with_name(name).exists():
            write_atomic(path.with_name(name), data, mode=PRIVATE_FILE)

    def _path(self, origin: str) -> Path:
        return self.folder / f"{hashlib.sha256(origin.encode()).hexdigest()}.checkpoint"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                make_private_dir(self.folder)
                stack.enter_context(locked(self.folder / ".lock"))
            except UsageError as error:
                raise _unwritable(error) from error
            yield


class Witness:
    """Cosigns what extends what it has seen; see the module."""

    def __init__(
        self, name: str, signer: Signer, folder: Path, logs: Mapping[str, LogPolicy]
    ) -> None:
        """A witness of some logs.

        Args:
            name: its name in signature lines, such as ``example.org/node-3``.
            signer: its Ed25519 key, which signs nothing else.
            folder: where it keeps what it has seen; its own, and durable.
            logs: the logs that it watches, by origin.
        """
        self.name = name
        self._signer = signer
        self._seen = LogMemory(folder)
        self._logs = dict(logs)

    def seen(self, origin: str) -> int:
        """The size that was cosigned last: what a request must start from.

        Raises:
            IdentityError: ST-IDEN-040 for a log that is not watched, ST-IDEN-046.
        """
        last = self._seen.last(self._policy(origin))
        return 0 if last is None else last.size

    def cosign(self, request: bytes, now: datetime) -> note.Line:
        """Answer a request with a cosignature.

        Raises:
            IdentityError: ST-IDEN-040 to 043, ST-IDEN-046.
        """
        asked = parse_request(request)
        origin = note.parse(asked.checkpoint).text.split("\n", 1)[0]
        policy = self._policy(origin)
        _, signed = self._seen.advance(asked.checkpoint, asked.hashes, asked.old, policy)
        return note.cosign(signed.text, self.name, self._signer, int(now.timestamp()))

    def _policy(self, origin: str) -> LogPolicy:
        policy = self._logs.get(origin)
        if policy is None:
            raise note.bad(f"this witness does not watch {origin[:80]!r}")
        return policy


def _unwritable(error: SecureTrainError) -> IdentityError:
    return IdentityError("ST-IDEN-046", error.what, error.where, error.fix)


def _bad(what: str, where: str) -> IdentityError:
    return IdentityError(
        "ST-IDEN-041", what, where, "ask the witness which size it has seen, and prove from there"
    )
