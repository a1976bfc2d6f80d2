# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Statements on files in other people's formats, as a script has saved them.

::

    out/model.pt                          out/step-3/.metadata
    out/model.pt.securetrain.json         out/step-3/__0_0.distcp
                                          out/step-3/.securetrain.json

An in-toto statement in DSSE whose subjects are the files with their SHA-256, so that other in-toto
tools read it, too. Rules:

1. a statement is of one file, and lies beside it, or of the files of one directory, and lies in it;
2. it names the file, or the directory, and the folder around a file: under another name, or in
   another folder, it is no statement on what lies there;
3. an empty one marks a save that has begun: it is no statement;
4. it is signed for the role of checkpoints, and it is none: its predicate type is its own.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.statement.checkpoint_predicate import MAX_WORLD, PolicyRef
from securetrain.artifacts.tree.layout import Count, Hex32, Kind, Problem, Text, Time
from securetrain.core import ExitCode
from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity import dsse, statement
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot

SAVED_TYPE: Final = f"{statement.PREDICATE_BASE}/saved-files/v1"
SUFFIX: Final = ".securetrain.json"
"""Of a file's statement; a directory's has this name."""
MAX_FILES: Final = 20_000
STATEMENT_LIMIT: Final = 8 << 20
ALGORITHM: Final = "sha256"
_STRETCH: Final = 1 << 20
_REFUSED: Final = {ExitCode.BAD_SIGNATURE: 110, ExitCode.POLICY: 120, ExitCode.REVOKED: 161}
"""An envelope's refusal by its exit code, as a checkpoint's."""


class Form(StrEnum):
    """The kind of thing that was saved."""

    FILE = "file"
    DIRECTORY = "directory"


class SavedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file as it was read back when its save had returned."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    """Below the directory of a `Form.DIRECTORY`."""
    size: Count
    sha256: Hex32


class SavedFiles(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    """The predicate."""

    run_id: Text
    name: Text
    """The run's name."""
    policy: PolicyRef
    rank: Count
    """The rank that saved, of which the launcher knows the process."""
    world_size: Annotated[int, Meta(ge=1, le=MAX_WORLD)]
    number: Count
    """Of the save, among those of this rank and start; it grows."""
    step: Count | None
    """The script's own, where what it saved has one."""
    created: Time
    way: Annotated[str, Meta(max_length=64)]
    """The function that was called."""
    form: Form
    place: Annotated[str, Meta(min_length=1, max_length=255)]
    """The name of the directory, or of the folder around the file."""
    files: Annotated[list[SavedFile], Meta(min_length=1, max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSave:
    """A statement whose signature verified and whose parts agree."""

    said: SavedFiles
    key_ids: frozenset[str]
    statement: str
    """SHA-256 of the signed payload."""


def sidecar(path: Path, form: Form) -> Path:
    """The place of a statement."""
    return path / SUFFIX if form is Form.DIRECTORY else path.with_name(path.name + SUFFIX)


def is_sidecar(name: str) -> bool:
    """Tell whether a file of this name can only be a statement, or the mark of a save."""
    return name.endswith(SUFFIX)


def sign_saved(said: SavedFiles, key: Signer) -> bytes:
    """Sign what was saved.

    Raises:
        IdentityError: ST-IDEN-004 when the parts do not agree.
        RuntimeRefusal: ST-RUNT-030 to 035 where a launcher signs.
    """
    if why := _unsound(said):
        raise IdentityError("ST-IDEN-004", why, said.place)
    return statement.sign(_subjects(said), SAVED_TYPE, said, key)


def read_saved_message(message: bytes) -> SavedFiles:
    """Read the message that a signature covers, before it is signed.

    Raises:
        IdentityError: ST-IDEN-004 malformed, of another type, or its parts do not agree.
    """
    return _parsed(dsse.payload_of(message, dsse.IN_TOTO))


def open_saved(data: bytes, trust: TrustRoot, where: str) -> OpenedSave:
    """Verify a statement, and read it.

    Raises:
        IntegrityError: ST-CKPT-100 for the mark of a save that did not end, 101 malformed, 110 a
            signature does not verify, 120 nobody of the trust root has signed, 161 a revoked key.
    """
    if not data:
        what = "its save began and did not end, or could not be signed"
        raise Problem("ST-CKPT-100", what).error(where)
    try:
        payload = trust.verify(data, dsse.IN_TOTO, TrustRole.CHECKPOINT, where)
        said = _parsed(payload.data)
    except IdentityError as error:
        code = Kind.CHECKPOINT.code(_REFUSED.get(error.exit_code, 101))
        raise Problem(code, error.what).error(where) from error
    digest = hashlib.sha256(payload.data).hexdigest()
    return OpenedSave(said=said, key_ids=payload.key_ids, statement=digest)


def read_sidecar(path: Path) -> bytes:
    """Read a statement's bytes, at most `STATEMENT_LIMIT`.

    Raises:
        IntegrityError: ST-CKPT-100 when there is none, 200 when it is unreadable, no regular file
            or too large.
    """
    if not path.is_symlink() and not path.exists():
        what = "there is no statement: nothing says who made this"
        raise Problem("ST-CKPT-100", what).error(str(path))
    try:
        return read_file(path, STATEMENT_LIMIT)
    except UsageError as error:
        raise Problem("ST-CKPT-200", error.what).error(str(path)) from error


def digest_file(file: BinaryIO) -> tuple[int, str]:
    """Read a file from its start to its end: its size, and its SHA-256.

    Raises:
        OSError: it cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_STRETCH))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:count])
        size += count
    return size, digest.hexdigest()


def _parsed(data: bytes) -> SavedFiles:
    parsed = statement.parse_to_sign(data, SAVED_TYPE, SavedFiles)
    said = parsed.predicate
    why = _unsound(said)
    if not why and list(parsed.subjects) != _subjects(said):
        why = "its subjects are not its files"
    if why:
        raise IdentityError("ST-IDEN-004", f"malformed statement: {why}")
    return said


def _subjects(said: SavedFiles) -> list[statement.Subject]:
    return [statement.Subject(file.name, {ALGORITHM: file.sha256}) for file in said.files]


def _unsound(said: SavedFiles) -> str:
    """Say what does not agree; empty for nothing."""
    names = [file.name for file in said.files]
    if said.rank >= said.world_size:
        return "a rank outside of the world"
    if names != sorted(set(names)):
        return "its files are not sorted, or one is there twice"
    if said.form is Form.FILE and (len(names) != 1 or "/" in names[0]):
        return "not one file"
    for name in (*names, said.place):
        parts = name.split("/")
        if any(part in {"", ".", ".."} or "\0" in part for part in parts):
            return f"the name {name[:80]!r}"
        if is_sidecar(parts[-1]) and name != said.place:
            return "a statement on a statement"
    return ""
