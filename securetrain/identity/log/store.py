# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The log's folder: append, read, prove.

Rules of writing:

1. one writer at a time, by a lock on the folder; readers need none;
2. before anything is appended, the stored tiles must give the root that the log signed last: a
   folder that was damaged, or put back to an older state in part, is not built upon (ST-IDEN-045);
3. entries and tiles are written first, each whole or not at all and durable; the new checkpoint
   comes last, by one rename, and is the commit. Killed at any moment, the log is what the last
   checkpoint says, and what was left behind is written over by the next append;
4. a partial tile is removed only when the full one is committed.

The log cannot stop its owner from signing two histories: witnesses do (`log.witness`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from securetrain.core.errors import IdentityError, SecureTrainError, UsageError, os_error
from securetrain.core.files import PUBLIC_FILE, locked, read_file, sync_dir, write_atomic
from securetrain.identity.keys import PublicKey, Signer
from securetrain.identity.log import merkle, note, tiles
from securetrain.identity.log.checkpoint import Checkpoint, LogPolicy, open_signed, sign
from securetrain.identity.log.entry import LIMIT as ENTRY_LIMIT
from securetrain.identity.log.entry import entry_of
from securetrain.identity.log.proof import Proof

CHECKPOINT_FILE: Final = "checkpoint"
_LOCK_FILE: Final = ".lock"


class Log:
    """A log's folder. What it reads is checked against the log's keys; nothing is kept open."""

    def __init__(self, folder: Path, policy: LogPolicy) -> None:
        """Name the folder, and the log that must be in it; nothing is read yet."""
        self.folder = folder
        self.policy = policy

    @classmethod
    def create(cls, folder: Path, origin: str, signer: Signer) -> "Log":
        """Begin an empty log.

        Raises:
            UsageError: ST-USAG-005 when there is one, ST-USAG-002.
            IdentityError: ST-IDEN-040 for a bad origin, or a key that is not Ed25519.
        """
        empty = sign(Checkpoint(origin, 0, merkle.EMPTY_ROOT), signer)
        log = cls(folder, LogPolicy(origin=origin, keys={signer.key_id: signer.public}))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_error(error, str(folder)) from error
        write_atomic(folder / CHECKPOINT_FILE, empty.encode(), replace=False)
        return log

    def state(self) -> tuple[Checkpoint, note.Note]:
        """The state that the log signed last, with the tiles that belong to it checked.

        Raises:
            IdentityError: ST-IDEN-040, ST-IDEN-045.
        """
        found, signed = self._signed()
        self._reader(found)
        return found, signed

    def append(self, envelope: bytes, verifiers: Mapping[str, PublicKey], signer: Signer) -> int:
        """Log an envelope; returns its index.

        Raises:
            IdentityError: Those of `entry_of`, `state`, and ST-IDEN-046.
        """
        return self.append_entries([entry_of(envelope, verifiers)], signer)

    def append_once(self, entry: bytes, signer: Signer) -> int:
        """Log an entry unless it is there already, whoever else may try to; returns its index.

        Raises:
            IdentityError: Those of `append_entries`.
        """
        with self._writing([entry], signer):
            index = self.find(entry)
            return self._append([entry], signer) if index is None else index

    def append_entries(self, entries: Sequence[bytes], signer: Signer) -> int:
        """Log entries in one step; returns the index of the first.

        Raises:
            IdentityError: ST-IDEN-040, ST-IDEN-045, ST-IDEN-046.
        """
        with self._writing(entries, signer):
            return self._append(list(entries), signer)

    @contextmanager
    def _writing(self, entries: Sequence[bytes], signer: Signer) -> Iterator[None]:
        """The lock, for somebody who may append these."""
        if any(len(entry) > ENTRY_LIMIT for entry in entries):
            raise IdentityError(
                "ST-IDEN-004",
                f"an entry of more than {ENTRY_LIMIT} bytes",
                fix="log a smaller statement",
            )
        if signer.key_id not in self.policy.keys:
            raise note.bad(f"key {signer.key_id[:16]} is not of the log {self.policy.origin}")
        with self._locked():
            try:
                yield
            except UsageError as error:
                raise _unwritable(error, self.folder) from error

    def _append(self, entries: list[bytes], signer: Signer) -> int:
        old, _ = self._signed()
        reader = self._reader(old)
        if not entries:
            return old.size
        size = old.size + len(entries)
        if size > merkle.MAX_SIZE:
            raise tiles.damaged(f"a tree of {size}", str(self.folder))
        bundles = _bundles(reader, old.size, entries)
        hashes = _grown_tiles(reader, old.size, [merkle.leaf_hash(e) for e in entries])
        for index, bundle in bundles.items():
            self._write_tile(None, index, len(bundle), tiles.pack_bundle(bundle))
        for (level, index), tile in hashes.items():
            self._write_tile(level, index, len(tile) // merkle.HASH_SIZE, tile)
        grown = tiles.TileReader(self.folder, size)
        grown.preload(hashes)
        root = merkle.root_hash(size, grown.hash)
        signed = sign(Checkpoint(old.origin, size, root), signer)
        write_atomic(self.folder / CHECKPOINT_FILE, signed.encode())
        self._sweep(hashes, bundles)
        return old.size

    def add_cosignatures(self, text: str, lines: Sequence[note.Line]) -> int:
        """Keep what witnesses answered for the checkpoint `text`; returns how many count.

        Only lines that verify under a witness's key of the policy are kept, the newest of each
        key: nobody can make the checkpoint longer than it may be.

        Raises:
            IdentityError: ST-IDEN-040, ST-IDEN-046.
            UsageError: ST-USAG-001 when the log has a newer checkpoint by now.
        """
        with self._locked():
            _, signed = self._signed()
            if signed.text != text:
                raise UsageError(
                    "ST-USAG-001",
                    "the log has another checkpoint than the one that was cosigned",
                    str(self.folder),
                    "cosign the newest checkpoint",
                )
            ours = [line for line in signed.lines if self._is_ours(text, line)]
            newest = self._newest(text, [*signed.lines, *lines])
            merged = note.Note(text, (*ours, *newest))
            try:
                if merged != signed:
                    write_atomic(self.folder / CHECKPOINT_FILE, merged.encode())
            except UsageError as error:
                raise _unwritable(error, self.folder) from error
            return sum(line in newest for line in lines)

    def _is_ours(self, text: str, line: note.Line) -> bool:
        alone, origin = note.Note(text, (line,)), self.policy.origin
        with suppress(IdentityError):
            return any(note.signed_by(alone, key, origin) for key in self.policy.keys.values())
        return False

    def _newest(self, text: str, lines: Sequence[note.Line]) -> list[note.Line]:
        """The newest good line of each witness."""
        found: dict[str, tuple[int, note.Line]] = {}
        for line in lines:
            for key_id, key in self.policy.witnesses.items():
                with suppress(IdentityError):
                    time = note.cosigned_by(note.Note(text, (line,)), key)
                    if time is not None and time > found.get(key_id, (0, line))[0]:
                        found[key_id] = (time, line)
        return [line for _, line in found.values()]

    def entry(self, index: int) -> bytes:
        """An entry.

        Raises:
            IdentityError: ST-IDEN-041 when there is none, ST-IDEN-045.
        """
        found, _ = self._signed()
        reader = self._reader(found)
        self._check_index(index, found)
        entry = reader.entries(index // tiles.WIDTH)[index % tiles.WIDTH]
        if merkle.leaf_hash(entry) != reader.hash(0, index):
            raise tiles.damaged(f"entry {index} is not what was logged", str(self.folder))
        return entry

    def find(self, entry: bytes) -> int | None:
        """The first index of an entry, or None."""
        found, _ = self._signed()
        reader = self._reader(found)
        wanted = merkle.leaf_hash(entry)
        for index in range(-(-found.size // tiles.WIDTH)):
            tile = reader.tile(0, index)
            for offset in range(0, len(tile), merkle.HASH_SIZE):
                if tile[offset : offset + merkle.HASH_SIZE] == wanted:
                    return index * tiles.WIDTH + offset // merkle.HASH_SIZE
        return None

    def prove(self, index: int) -> bytes:
        """The proof that entry `index` is in the log, for the newest checkpoint.

        Raises:
            IdentityError: ST-IDEN-041 when there is none, ST-IDEN-040, ST-IDEN-045.
        """
        found, signed = self._signed()
        reader = self._reader(found)
        self._check_index(index, found)
        hashes = merkle.inclusion_proof(index, found.size, reader.hash)
        return Proof(index, tuple(hashes), signed.encode()).encode()

    def prove_consistency(self, old: int) -> tuple[list[bytes], bytes]:
        """The proof that the log of size `old` is the beginning of this one, and the checkpoint.

        Empty from size 0, which everything begins with.

        Raises:
            IdentityError: ST-IDEN-042 when the log is smaller, ST-IDEN-040, ST-IDEN-045.
        """
        found, signed = self._signed()
        reader = self._reader(found)
        if old > found.size:
            raise IdentityError(
                "ST-IDEN-042",
                f"it had {old} entries, and now it has {found.size}",
                str(self.folder),
            )
        hashes = merkle.consistency_proof(old, found.size, reader.hash) if old else []
        return hashes, signed.encode()

    def verify_all(self) -> Checkpoint:
        """Read every entry and tile, and compare them with the signed root.

        Raises:
            IdentityError: ST-IDEN-040, ST-IDEN-045.
        """
        found, _ = self._signed()
        reader = self._reader(found)
        for index in range(-(-found.size // tiles.WIDTH)):
            leaves = b"".join(merkle.leaf_hash(entry) for entry in reader.entries(index))
            if leaves != reader.tile(0, index):
                raise tiles.damaged(f"entries of bundle {index} were changed", str(self.folder))
        level = 1
        while found.size >> (tiles.HEIGHT * level):
            self._verify_level(reader, level, found.size >> (tiles.HEIGHT * level))
            level += 1
        return found

    def _verify_level(self, reader: tiles.TileReader, level: int, count: int) -> None:
        for index in range(count):
            row = reader.tile(level, index // tiles.WIDTH)
            start = index % tiles.WIDTH * merkle.HASH_SIZE
            below = tiles.row_root(reader.tile(level - 1, index))
            if row[start : start + merkle.HASH_SIZE] != below:
                raise tiles.damaged(f"tile {level}/{index} was changed", str(self.folder))

    def _signed(self) -> tuple[Checkpoint, note.Note]:
        path = self.folder / CHECKPOINT_FILE
        try:
            data = read_file(path, note.LIMIT)
        except UsageError as error:
            raise note.bad(error.what, str(path)) from error
        return open_signed(data, self.policy, str(path))

    def _reader(self, found: Checkpoint) -> tiles.TileReader:
        """A reader whose tiles give the root that was signed."""
        reader = tiles.TileReader(self.folder, found.size)
        if merkle.root_hash(found.size, reader.hash) != found.root:
            raise tiles.damaged(
                "the tiles do not give the root that the log signed", str(self.folder)
            )
        return reader

    def _check_index(self, index: int, found: Checkpoint) -> None:
        if not 0 <= index < found.size:
            raise IdentityError(
                "ST-IDEN-041",
                f"there is no entry {index}: the log has {found.size}",
                str(self.folder),
                "count entries from 0",
            )

    def _write_tile(self, level: int | None, index: int, width: int, data: bytes) -> None:
        path = self.folder / tiles.tile_path(level, index, width)
        missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync_dir(folder.parent)
        except OSError as error:
            raise os_error(error, str(path)) from error
        write_atomic(path, data)

    def _sweep(
        self, hashes: Mapping[tuple[int, int], bytes], bundles: Mapping[int, list[bytes]]
    ) -> None:
        """Remove the partial tiles of tiles that are full and committed."""
        full: list[tuple[int | None, int]] = [
            at for at, tile in hashes.items() if len(tile) == tiles.WIDTH * merkle.HASH_SIZE
        ]
        full += [(None, at) for at, entries in bundles.items() if len(entries) == tiles.WIDTH]
        for level, index in full:
            folder = (self.folder / tiles.tile_path(level, index, 1)).parent
            with suppress(OSError):
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder / _LOCK_FILE, mode=PUBLIC_FILE))
            except UsageError as error:
                raise _unwritable(error, self.folder) from error
            yield


def _bundles(reader: tiles.TileReader, old: int, entries: list[bytes]) -> dict[int, list[bytes]]:
    """The bundles that new entries change, whole."""
    first, rest = divmod(old, tiles.WIDTH)
    waiting = (reader.entries(first) if rest else []) + entries
    return {
        first + number: waiting[start : start + tiles.WIDTH]
        for number, start in enumerate(range(0, len(waiting), tiles.WIDTH))
    }


def _grown_tiles(
    reader: tiles.TileReader, old: int, leaves: list[bytes]
) -> dict[tuple[int, int], bytes]:
    """The tiles that new leaves change, whole, by (level, index)."""
    changed: dict[tuple[int, int], bytes] = {}
    level, count, new = 0, old, leaves
    while new:
        first, rest = divmod(count, tiles.WIDTH)
        row = (reader.tile(level, first) if rest else b"") + b"".join(new)
        step = tiles.WIDTH * merkle.HASH_SIZE
        rows = [row[start : start + step] for start in range(0, len(row), step)]
        changed.update({(level, first + number): data for number, data in enumerate(rows)})
        # A full tile becomes one hash of the level above; those below `first` are there already.
        new = [tiles.row_root(data) for data in rows if len(data) == step]
        level, count = level + 1, count >> tiles.HEIGHT
    return changed


def _unwritable(error: SecureTrainError, folder: Path) -> IdentityError:
    return IdentityError("ST-IDEN-046", error.what, error.where or str(folder), error.fix)
