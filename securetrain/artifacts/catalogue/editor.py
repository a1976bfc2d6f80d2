# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make a catalogue and change it: entries are drafted, signed by several, and then published.

Rules:

1. the roles of a catalogue: ``root`` (all of its keys must sign), ``targets`` (the signers, of whom
   `threshold` must sign), ``snapshot`` and ``timestamp`` (a publisher, one of several); no key is
   twice in a role;
2. what is published is read through its first root, verified, before anything is added to it;
3. a draft is the next version of the entries. Whoever changes it takes all signatures from it;
4. publishing writes new files beside the old ones and the timestamp last: a reader sees the old
   catalogue or the new one, whatever happens in between.

Whatever is a `Signer` signs a catalogue (`KeySigner`), a token too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from securesystemslib.signer import Key, Signature, SSlibKey
from securesystemslib.signer import Signer as TufSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization import DeserializationError
from tuf.api.serialization.json import JSONSerializer

from securetrain.artifacts.catalogue.client import Catalogue
from securetrain.artifacts.catalogue.entry import (
    FOLDER,
    LIMIT,
    Entry,
    check_location,
    check_name,
    write_layout,
)
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import make_missing_dir, read_file, write_atomic
from securetrain.identity.keys import PublicKey, Signer

T = TypeVar("T", Root, Timestamp, Snapshot, Targets)
DRAFT: Final = "draft.json"
TIMESTAMP: Final = "timestamp.json"
ROOT_YEARS: Final = 5


def tuf_key(key: PublicKey) -> SSlibKey:
    """A key under its own id, so that one key cannot have two."""
    return SSlibKey.from_crypto(key.native, keyid=key.key_id)


@dataclass(slots=True)
class KeySigner(TufSigner):
    """A signer of ours."""

    signer: Signer

    @property
    def public_key(self) -> Key:
        """The key that verifies."""
        return tuf_key(self.signer.public)

    def sign(self, payload: bytes) -> Signature:
        """Sign the canonical bytes."""
        return Signature(self.signer.key_id, self.signer.sign(payload).hex())

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: Any = None
    ) -> "KeySigner":
        """Never used: signers are opened by `identity.open_signer`."""
        del priv_key_uri, public_key, secrets_handler
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The time for which a signature counts."""

    now: datetime
    days: int = 90

    @property
    def end(self) -> datetime:
        """The time of it, as TUF writes it."""
        return (self.now + timedelta(days=self.days)).astimezone(UTC).replace(microsecond=0)


def create(
    store: Path,
    *,
    roots: Sequence[Signer],
    signers: Sequence[PublicKey],
    threshold: int,
    publishers: Sequence[PublicKey],
    now: datetime,
) -> bytes:
    """Make an empty catalogue in `store`; returns its first root, which readers must be given.

    Raises:
        UsageError: ST-USAG-001 roles that cannot be (rule 1); ST-USAG-005 when there is one.
    """
    named = {
        Root.type: [key.public for key in roots],
        Targets.type: list(signers),
        Snapshot.type: list(publishers),
        Timestamp.type: list(publishers),
    }
    for role, keys in named.items():
        if not keys or len({key.key_id for key in keys}) != len(keys):
            raise UsageError(
                "ST-USAG-001", f"role {role} has no key, or one twice", str(store), "name each once"
            )
    if not 1 <= threshold <= len(signers):
        raise UsageError(
            "ST-USAG-001",
            f"a threshold of {threshold} of {len(signers)} signers",
            str(store),
            "give as many signers as must sign, or more",
        )
    root = Root(expires=Term(now=now, days=365 * ROOT_YEARS).end, consistent_snapshot=True)
    for role, keys in named.items():
        for key in keys:
            root.add_key(tuf_key(key), role)
    root.roles[Root.type].threshold = len(roots)
    root.roles[Targets.type].threshold = threshold
    signed = Metadata(root)
    for signer in roots:
        signed.sign(KeySigner(signer), append=True)
    data = _bytes(signed)
    folder = make_missing_dir(store / FOLDER)
    write_atomic(folder / "1.root.json", data, replace=False)
    return data


@dataclass(slots=True)
class Editor:
    """A catalogue that is being changed, in a folder of this machine."""

    store: Path
    catalogue: Catalogue
    _root: Metadata[Root] = field(init=False, repr=False)
    _published: Metadata[Targets] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._root = self._newest_root()
        if (self._folder / TIMESTAMP).exists():
            self._published = self._verified_targets()

    @property
    def threshold(self) -> int:
        """The number of signers who must sign."""
        return self._root.signed.roles[Targets.type].threshold

    @property
    def entries(self) -> dict[str, Entry]:
        """The published entries."""
        return _entries(self._published)

    @property
    def drafted(self) -> dict[str, Entry] | None:
        """The entries of the draft; None without one."""
        draft = self._draft()
        return None if draft is None else _entries(draft)

    @property
    def signed_by(self) -> list[str]:
        """The key ids that have signed the draft well."""
        draft = self._draft()
        if draft is None:
            return []
        found = self._root.signed.get_verification_result(
            Targets.type, draft.signed_bytes, draft.signatures
        )
        return sorted(found.signed)

    def put(self, name: str, entry: Entry, length: int) -> None:
        """Draft an entry, in place of one of its name.

        Raises:
            UsageError: ST-USAG-001.
            IntegrityError: ST-CTLG-142.
        """
        check_name(name)
        check_location(entry.location, name)
        custom = {"digest": entry.digest, "location": entry.location, "kind": entry.kind}
        target = TargetFile(length, {"sha256": entry.statement}, name, {"custom": custom})
        self._change({name: target}, ())

    def drop(self, name: str) -> None:
        """Draft that a name means nothing any more.

        Raises:
            IntegrityError: ST-CTLG-121.
        """
        if name not in (self.drafted if self.drafted is not None else self.entries):
            raise IntegrityError("ST-CTLG-121", f"it has no {name}", str(self.store))
        self._change({}, (name,))

    def sign(self, keys: Sequence[Signer], term: Term) -> bool:
        """Sign the draft, and publish it once enough have; without a draft, sign what is published
        for another term.

        Returns:
            Whether it is published.

        Raises:
            UsageError: ST-USAG-001 when none of the keys is of this catalogue.
        """
        roles = self._root.signed.roles
        signing = [key for key in keys if key.key_id in roles[Targets.type].keyids]
        publishing = [key for key in keys if key.key_id in roles[Timestamp.type].keyids]
        if not signing and not publishing:
            raise UsageError(
                "ST-USAG-001",
                "none of these keys signs or publishes this catalogue",
                str(self.store),
                "give a key that 'catalogue init' named",
            )
        draft = self._draft()
        if draft is None and signing:
            draft = self._next()
        if draft is not None and signing:
            if not self.signed_by:
                draft.signed.expires = term.end
                draft.signatures.clear()
            for key in signing:
                draft.sign(KeySigner(key), append=True)
            self._write(DRAFT, draft)
        if not publishing or (draft is not None and len(self.signed_by) < self.threshold):
            return False
        if draft is None and self._published is None:
            return False
        self._publish(draft, publishing[0], term)
        return True

    def export(self, target: Path) -> None:
        """Write what is published as a new OCI layout.

        Raises:
            UsageError: ST-USAG-005.
        """
        files = {
            path.name: read_file(path, LIMIT)
            for path in sorted(self._folder.iterdir())
            if path.suffix == ".json" and path.name != DRAFT
        }
        write_layout(files, target)

    @property
    def _folder(self) -> Path:
        return self.store / FOLDER

    def _publish(self, draft: Metadata[Targets] | None, publisher: Signer, term: Term) -> None:
        """Rule 4."""
        targets = draft or self._published
        assert targets is not None
        data = _bytes(targets)
        version = self._timestamp_version() + 1
        meta = {"targets.json": MetaFile.from_data(targets.signed.version, data, ["sha256"])}
        snapshot = Metadata(Snapshot(version=version, expires=term.end, meta=meta))
        snapshot.sign(KeySigner(publisher))
        named = MetaFile.from_data(version, _bytes(snapshot), ["sha256"])
        timestamp = Metadata(Timestamp(version=version, expires=term.end, snapshot_meta=named))
        timestamp.sign(KeySigner(publisher))
        write_atomic(self._folder / f"{targets.signed.version}.targets.json", data)
        self._write(f"{version}.snapshot.json", snapshot)
        self._write(TIMESTAMP, timestamp)
        with suppress(FileNotFoundError):
            (self._folder / DRAFT).unlink()
        self._published = targets

    def _timestamp_version(self) -> int:
        if self._published is None:
            return 0
        stamp: Metadata[Timestamp] = self._read(TIMESTAMP, Timestamp)
        self._root.signed.verify_delegate(Timestamp.type, stamp.signed_bytes, stamp.signatures)
        return stamp.signed.version

    def _change(self, put: Mapping[str, TargetFile], drop: Sequence[str]) -> None:
        """Rule 3."""
        draft = self._draft() or self._next()
        draft.signatures.clear()
        draft.signed.targets |= put
        for name in drop:
            del draft.signed.targets[name]
        self._write(DRAFT, draft)

    def _next(self) -> Metadata[Targets]:
        """The published entries, as the next version that nobody has signed."""
        if self._published is None:
            return Metadata(Targets(version=1))
        signed = self._published.signed
        return Metadata(Targets(version=signed.version + 1, targets=dict(signed.targets)))

    def _draft(self) -> Metadata[Targets] | None:
        if not (self._folder / DRAFT).exists():
            return None
        draft: Metadata[Targets] = self._read(DRAFT, Targets)
        if draft.signed.version != self._next().signed.version:
            raise UsageError(
                "ST-USAG-008",
                f"the draft is version {draft.signed.version}, not the next one",
                str(self._folder / DRAFT),
                "remove it and draft again what should change",
            )
        return draft

    def _newest_root(self) -> Metadata[Root]:
        """Rule 2: by the pinned root, and those that follow from it."""
        root: Metadata[Root] = _parse(read_file(self.catalogue.root, LIMIT), Root)
        try:
            root.signed.verify_delegate(Root.type, root.signed_bytes, root.signatures)
            for data in self._later_roots(root.signed.version):
                new: Metadata[Root] = _parse(data, Root)
                root.signed.verify_delegate(Root.type, new.signed_bytes, new.signatures)
                new.signed.verify_delegate(Root.type, new.signed_bytes, new.signatures)
                root = new
        except RepositoryError as error:
            raise IntegrityError("ST-CTLG-110", str(error), str(self.store)) from error
        return root

    def _later_roots(self, version: int) -> Iterator[bytes]:
        while (path := self._folder / f"{version + 1}.root.json").exists():
            version += 1
            yield read_file(path, LIMIT)

    def _verified_targets(self) -> Metadata[Targets]:
        """Rule 2. One that has only expired may be signed for another term."""
        try:
            self.catalogue.entries()
        except IntegrityError as error:
            if error.code != "ST-CTLG-150":
                raise
        # Newer files may lie there: of a publisher who was killed before the timestamp was written.
        stamp: Metadata[Timestamp] = self._read(TIMESTAMP, Timestamp)
        version = stamp.signed.snapshot_meta.version
        snapshot: Metadata[Snapshot] = self._read(f"{version}.snapshot.json", Snapshot)
        newest = snapshot.signed.meta["targets.json"].version
        targets: Metadata[Targets] = self._read(f"{newest}.targets.json", Targets)
        try:
            self._root.signed.verify_delegate(
                Targets.type, targets.signed_bytes, targets.signatures
            )
        except RepositoryError as error:
            raise IntegrityError("ST-CTLG-110", str(error), str(self.store)) from error
        return targets

    def _read(self, name: str, kind: type[T]) -> Metadata[T]:
        return _parse(read_file(self._folder / name, LIMIT), kind)

    def _write(self, name: str, metadata: Metadata[Any]) -> None:
        write_atomic(self._folder / name, _bytes(metadata))


def _entries(targets: Metadata[Targets] | None) -> dict[str, Entry]:
    found = {} if targets is None else targets.signed.targets
    return {
        name: Entry.of(name, target.hashes, target.unrecognized_fields.get("custom", {}))
        for name, target in found.items()
    }


def _parse(data: bytes, kind: type[T]) -> Metadata[T]:
    try:
        found: Metadata[T] = Metadata.from_bytes(data)
    except DeserializationError as error:
        raise IntegrityError("ST-CTLG-101", f"malformed metadata: {error}") from error
    if not isinstance(found.signed, kind):
        raise IntegrityError("ST-CTLG-101", f"metadata of {found.signed.type}, not {kind.type}")
    return found


def _bytes(metadata: Metadata[Any]) -> bytes:
    return metadata.to_bytes(JSONSerializer(compact=True))
