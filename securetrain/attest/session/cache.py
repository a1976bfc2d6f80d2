# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The collateral cache: a signed folder of what a verifier needs from others, used without network.

A folder holds ``index.json`` and one file for each document, named by its SHA-256. The index is a
DSSE envelope around canonical JSON, signed by the operator, and says under which kind and id each
document is known, when it was fetched and until when it may be used.

Rules of reading, in order:

1. the index is a regular file of at most `INDEX_LIMIT` bytes (a link is refused), signed by one of
   the keys that the policy names (``node.reference_values.signed_by``);
2. its version is not below one that was seen before;
3. it is of the schema: bounded, no entry twice, every name a SHA-256;
4. it is not from the future, and has not expired;
5. a document is asked for by kind and id; its entry has not expired;
6. its file is a regular file of exactly the size in the entry, which is bounded by its kind before
   anything is read, and hashes to its name: at every use, not once.

What is stale is refused with codes of its own and never used quietly. Rules of writing: documents
first, then the index, each whole or not at all; versions go up by one; what was there stays, unless
the same kind and id is given anew; one writer at a time. A cache that does not verify is not added
to. Files that neither this nor the last index names are removed.
"""

import dataclasses
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, IdentityError, UsageError, reason
from securetrain.core.files import open_regular, read_file, write_atomic
from securetrain.evidence import LIMITS, CollateralKind
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey

INDEX_NAME: Final = "index.json"
INDEX_TYPE: Final = "application/vnd.securetrain.collateral-index+json"
INDEX_LIMIT: Final = 4 << 20
MAX_ENTRIES: Final = 4096
CLOCK_SKEW: Final = timedelta(minutes=10)

_INDEX: Final = "ST-ATTS-731"
_SIGNED: Final = "ST-ATTS-732"
_EXPIRED: Final = "ST-ATTS-733"
_BACK: Final = "ST-ATTS-734"
_MISSING: Final = "ST-ATTS-735"
_STALE: Final = "ST-ATTS-736"
_CHANGED: Final = "ST-ATTS-737"
_UNSAFE: Final = "ST-ATTS-738"
_WRITE: Final = "ST-ATTS-739"
_ADD: Final = "run securetrain attest cache add"

_NAME: Final = re.compile(r"[0-9a-f]{64}")


Sha256: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
CollateralId: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z._:+-]{0,199}\Z")]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One document."""

    kind: CollateralKind
    id: CollateralId
    sha256: Sha256
    """Of its bytes, and the name of its file."""
    size: Annotated[int, Meta(ge=1, le=64 << 20)]
    fetched: Moment
    expires: Moment | None = None
    """Until when it may be used; None for as long as the index."""


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The index of a cache, which the operator signs."""

    version: Annotated[int, Meta(ge=1, le=1 << 53)]
    created: Moment
    expires: Moment
    entries: Annotated[tuple[Entry, ...], Meta(max_length=MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A document to put into a cache. Whoever puts it there has verified it."""

    kind: CollateralKind
    id: str
    data: bytes
    fetched: datetime
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class CollateralCache:
    """An opened cache. Its index was verified; documents are, each time they are read."""

    folder: Path
    index: Index
    now: datetime
    """The time that entries are compared with: of opening, or of `at`."""
    _entries: Mapping[tuple[str, str], Entry]

    @classmethod
    def open(
        cls, folder: Path, keys: Mapping[str, PublicKey], now: datetime, *, floor: int = 0
    ) -> "CollateralCache":
        """Read and verify the index.

        Args:
            folder: the cache.
            keys: of which one must have signed, by id.
            now: the time of the check, timezone-aware.
            floor: the highest version that was seen before.

        Raises:
            AttestationError: ST-ATTS-731 missing or malformed, 732 not signed by these keys, 733
                expired, 734 older than `floor`.
        """
        index = read_index(folder, keys)
        where = str(folder / INDEX_NAME)
        if index.version < floor:
            raise AttestationError(
                _BACK, f"version {index.version}, but {floor} was seen before", where
            )
        _check_fresh(index, now, where)
        return cls(folder, index, now, {(entry.kind, entry.id): entry for entry in index.entries})

    def at(self, now: datetime) -> "CollateralCache":
        """The same cache at another time, for who keeps it open.

        Raises:
            AttestationError: ST-ATTS-733 expired.
        """
        _check_fresh(self.index, now, str(self.folder / INDEX_NAME))
        return dataclasses.replace(self, now=now)

    @property
    def version(self) -> int:
        """Of the index; what a later `open` is given as its floor."""
        return self.index.version

    def has(self, kind: str, id: str) -> bool:  # noqa: A002 - what the index calls it
        """Tell whether there is an entry, fresh or not."""
        return (kind, id) in self._entries

    def get(self, kind: str, id: str) -> bytes:  # noqa: A002 - what the index calls it
        """A document, verified against the index.

        Raises:
            AttestationError: ST-ATTS-735 there is none, 736 the entry has expired, 737 the file is
                not what was signed, 738 the file is missing or unsafe.
        """
        entry = self._entries.get((kind, id))
        if entry is None:
            what = f"no {kind} {id!r} among {len(self._entries)} entries"
            raise AttestationError(_MISSING, what, str(self.folder), f"{_ADD} {self.folder}")
        if entry.expires is not None and self.now > entry.expires:
            raise AttestationError(
                _STALE,
                f"{kind} {id!r} may be used until {entry.expires.isoformat()}, now"
                f" {self.now.isoformat()}",
                str(self.folder / entry.sha256),
                f"fetch it again and {_ADD} {self.folder}",
            )
        return _read_document(self.folder, entry)


@dataclass(frozen=True, slots=True)
class CachedCollateral:
    """The signed cache as a `Collateral`, or the refusal that there is none."""

    cache: CollateralCache | None

    def get(self, kind: CollateralKind, name: str, now: datetime) -> bytes:
        """See `Collateral`."""
        if self.cache is None:
            raise AttestationError(
                "ST-ATTS-009",
                f"{kind} {name} is needed, and the policy names no cache of collateral",
                "node.reference_values.cache",
                "make one with 'securetrain attest cache add' and name it in the policy",
            )
        return self.cache.at(now).get(kind, name)

    def has(self, kind: CollateralKind, name: str) -> bool:
        """See `Collateral`."""
        return self.cache is not None and self.cache.has(kind, name)


def build_cache(
    folder: Path,
    items: Sequence[Item],
    key: PrivateKey,
    now: datetime,
    expires: datetime,
    *,
    keys: Mapping[str, PublicKey] | None = None,
) -> Index:
    """Make a cache, or add to one that is there.

    Args:
        folder: the cache; made when it is not there.
        items: what is added, or takes the place of what has the same kind and id.
        key: the operator's, which signs the new index.
        now: the time of writing, timezone-aware.
        expires: until when the new index may be used.
        keys: of which one must have signed the index that is there; `key` itself by default.

    Raises:
        AttestationError: ST-ATTS-739 it cannot be written or an item is none; and as `get` when
            what is there does not verify (but for freshness: this is how it is renewed).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_writer(folder):
            trusted = keys or {key.key_id: key.public}
            old = read_index(folder, trusted) if os.path.lexists(folder / INDEX_NAME) else None
            index = _next_index(folder, old, items, now, expires)
            _write(folder, old, index, items, key)
            return index
    except (OSError, UsageError) as error:
        raise _cannot_write(reason(error), folder) from error


def _next_index(
    folder: Path, old: Index | None, items: Sequence[Item], now: datetime, expires: datetime
) -> Index:
    """The old index and the items; what is kept must still be there."""
    given = {(item.kind, item.id): _entry(item, folder) for item in items}
    if len(given) != len(items):
        raise _cannot_write("two items of one kind and id", folder)
    entries = {(entry.kind, entry.id): entry for entry in old.entries} if old else {}
    for name, entry in entries.items():
        if name not in given:
            _read_document(folder, entry)
    entries |= given
    if len(entries) > MAX_ENTRIES or expires <= now:
        raise _cannot_write(f"{len(entries)} entries until {expires.isoformat()}", folder)
    return Index(
        version=old.version + 1 if old else 1,
        created=now,
        expires=expires,
        entries=tuple(entries[name] for name in sorted(entries)),
    )


def _write(
    folder: Path, old: Index | None, index: Index, items: Sequence[Item], key: PrivateKey
) -> None:
    envelope = dsse.sign(canonical.encode(index), INDEX_TYPE, [key])
    if len(envelope) > INDEX_LIMIT:
        raise _cannot_write(f"an index of {len(envelope)} bytes", folder)
    documents = {hashlib.sha256(item.data).hexdigest(): item.data for item in items}
    for name, data in documents.items():
        write_atomic(folder / name, data)
    write_atomic(folder / INDEX_NAME, envelope)
    named = (*index.entries, *(old.entries if old else ()))
    _tidy(folder, {entry.sha256 for entry in named})


def _entry(item: Item, folder: Path) -> Entry:
    if len(item.data) > LIMITS[item.kind]:
        what = f"{item.kind} {item.id!r} has {len(item.data)} bytes, the limit is"
        raise _cannot_write(f"{what} {LIMITS[item.kind]}", folder)
    entry = Entry(
        kind=item.kind,
        id=item.id,
        sha256=hashlib.sha256(item.data).hexdigest(),
        size=len(item.data),
        fetched=item.fetched,
        expires=item.expires,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(entry), Entry, strict=True)
    except msgspec.ValidationError as error:
        raise _cannot_write(f"{item.kind} {item.id!r}: {error}", folder) from error


def read_index(folder: Path, keys: Mapping[str, PublicKey]) -> Index:
    """The signed index, fresh or not.

    Raises:
        AttestationError: ST-ATTS-731 missing or malformed, 732 not signed by these keys.
    """
    path = folder / INDEX_NAME
    fix = f"make it with {_ADD} {folder}"
    try:
        data = read_file(path, INDEX_LIMIT)
        payload = dsse.verify(data, INDEX_TYPE, keys, where=str(path))
        index = canonical.decode(payload.data, Index, where=str(path), canonical=True)
    except UsageError as error:
        raise AttestationError(_INDEX, error.what, str(path), fix) from error
    except IdentityError as error:
        code = _INDEX if error.code == "ST-IDEN-004" else _SIGNED
        raise AttestationError(code, error.what, str(path), fix) from error
    names = {(entry.kind, entry.id) for entry in index.entries}
    if len(names) != len(index.entries):
        raise AttestationError(_INDEX, "two entries of one kind and id", str(path), fix)
    return index


def _check_fresh(index: Index, now: datetime, where: str) -> None:
    if index.created > now + CLOCK_SKEW:
        what = f"signed in the future ({index.created.isoformat()}, now {now.isoformat()})"
        raise AttestationError(_EXPIRED, what, where, "set this machine's clock")
    if now > index.expires:
        what = f"it may be used until {index.expires.isoformat()}, now {now.isoformat()}"
        raise AttestationError(_EXPIRED, what, where, f"renew it: {_ADD}")


def _read_document(folder: Path, entry: Entry) -> bytes:
    path = folder / entry.sha256
    what = f"{entry.kind} {entry.id!r}"
    fix = f"remove the file, then {_ADD} {folder}"
    if entry.size > LIMITS[entry.kind]:
        too_large = f"{what} has {entry.size} bytes, the limit is {LIMITS[entry.kind]}"
        raise AttestationError(_INDEX, too_large, str(path), fix)
    try:
        fd = open_regular(path)
        with os.fdopen(fd, "rb") as file:
            size = os.fstat(fd).st_size
            data = file.read(entry.size + 1) if size == entry.size else b""
    except (OSError, UsageError) as error:
        raise AttestationError(_UNSAFE, f"{what}: {reason(error)}", str(path), fix) from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        changed = f"{what} has {size} bytes that are not the {entry.size} that were signed"
        raise AttestationError(_CHANGED, changed, str(path), fix)
    return data


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder against other writers; the lock goes with the process."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _cannot_write("another process is writing it", folder) from error
        yield
    finally:
        os.close(fd)


def _tidy(folder: Path, names: set[str]) -> None:
    """Remove documents that no index names any more; readers of the last one keep theirs."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and path.name not in names:
            path.unlink()


def _cannot_write(what: str, folder: Path) -> AttestationError:
    return AttestationError(_WRITE, what, str(folder))
