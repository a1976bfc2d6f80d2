# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The statements that get signed: what a checkpoint and a dataset say about themselves.

Rules, in order:

1. a statement is opened only through the trust root's role of its kind; the kind that a file claims
   decides which role is asked, and the signed predicate type must then agree;
2. the predicate is a closed schema; file names are safe, unique (case ignored) and sorted, and a
   statement that names nothing is refused;
3. the one subject's digest is the digest of the tree of files, and must be what the predicate's
   own list gives.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from securetrain.artifacts.statement import checkpoint_predicate, dataset_predicate
from securetrain.artifacts.statement.checkpoint_predicate import (
    MAX_WORLD,
    Bound,
    CheckpointPredicate,
    CheckpointPredicateV1,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    IndexFile,
    NodeRef,
    NodeSignature,
    Parent,
    ParentRole,
    PolicyRef,
    RankFile,
    RankSignature,
)
from securetrain.artifacts.statement.dataset_predicate import (
    DataFile,
    DatasetPredicate,
    Removed,
    Split,
)
from securetrain.artifacts.tree.layout import (
    INDEX,
    STATEMENT,
    Count,
    Hex32,
    Kind,
    Problem,
    Text,
    Time,
    TreeInfo,
    bad_name,
)
from securetrain.core import ExitCode, canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse, envelope_unverified, statement
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole

__all__ = [
    "CHECKPOINT_TYPE",
    "CHECKPOINT_TYPE_V1",
    "DATASET_TYPE",
    "DIGEST_NAME",
    "MAX_DOCUMENT",
    "MAX_FILES",
    "MAX_WORLD",
    "Bound",
    "CheckpointPredicate",
    "Count",
    "DataFile",
    "DatasetPredicate",
    "DatasetRef",
    "GradientRecord",
    "GradientVerdict",
    "Hex32",
    "IndexFile",
    "NodeRef",
    "NodeSignature",
    "Opened",
    "Parent",
    "ParentRole",
    "PolicyRef",
    "Predicate",
    "RankFile",
    "RankSignature",
    "Split",
    "Text",
    "Time",
    "TreeInfo",
    "claimed_kind",
    "digest_of",
    "kind_of",
    "open_statement",
    "sign",
    "tree_digest",
]

CHECKPOINT_TYPE: Final = f"{statement.PREDICATE_BASE}/checkpoint/v2"
CHECKPOINT_TYPE_V1: Final = f"{statement.PREDICATE_BASE}/checkpoint/v1"
"""Read, and written no more."""
DATASET_TYPE: Final = f"{statement.PREDICATE_BASE}/dataset/v1"
DIGEST_NAME: Final = "securetrainTree1"
"""The subject's digest algorithm: SHA-256 over the canonical list of files, sizes and roots."""

MAX_FILES: Final = 1_000_000
MAX_DOCUMENT: Final = 64 << 20


Predicate: TypeAlias = CheckpointPredicate | DatasetPredicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A statement whose signatures verified and whose lists are sound."""

    kind: Kind
    predicate: Predicate
    digest: str
    key_ids: frozenset[str]
    identities: frozenset[str] = frozenset()
    """Names of those of them who signed without a key."""
    statement: str = ""
    """SHA-256 of the in-toto statement (hex), whoever signed it; empty where it was not read."""
    statement_size: int = 0

    @property
    def checkpoint(self) -> CheckpointPredicate:
        """The predicate of what is known to be a checkpoint."""
        assert isinstance(self.predicate, CheckpointPredicate)
        return self.predicate

    @property
    def dataset(self) -> DatasetPredicate:
        """The predicate of what is known to be a dataset."""
        assert isinstance(self.predicate, DatasetPredicate)
        return self.predicate


def tree_digest(
    tree: TreeInfo,
    files: Sequence[RankFile | DataFile],
    index: IndexFile | None = None,
    documents: Sequence[IndexFile] = (),
    removed: Sequence[Removed] = (),
) -> str:
    """The digest (hex) that identifies a directory: everything in it but the statement, and what of
    it must not be read.
    """
    value = {
        "tree": msgspec.to_builtins(tree),
        "files": msgspec.to_builtins(files),
        "index": msgspec.to_builtins(index),
    }
    if documents:
        value["documents"] = msgspec.to_builtins(documents)
    if removed:
        value["removed"] = msgspec.to_builtins(removed)
    return hashlib.sha256(b"securetrain/artifact/1\n" + canonical.dumps(value)).hexdigest()


def digest_of(predicate: Predicate) -> str:
    """The digest of the directory that a predicate describes."""
    if isinstance(predicate, CheckpointPredicate):
        return tree_digest(predicate.tree, predicate.files, predicate.index, predicate.documents)
    return tree_digest(predicate.tree, predicate.files, removed=predicate.removed)


def kind_of(predicate: Predicate) -> Kind:
    """The kind of directory that a predicate describes."""
    return Kind.CHECKPOINT if isinstance(predicate, CheckpointPredicate) else Kind.DATASET


def sign(predicate: Predicate, name: str, key: Signer) -> bytes:
    """The signed statement's bytes (a DSSE envelope in canonical JSON).

    Raises:
        UsageError: ST-USAG-001 when a field has a value that its type does not allow.
        IntegrityError: ST-CKPT-101 or ST-DATA-101 when the predicate breaks its own rules.
    """
    kind = kind_of(predicate)
    try:
        predicate = msgspec.convert(msgspec.to_builtins(predicate), type(predicate), strict=True)
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(
            "ST-USAG-001", f"cannot be signed: {error}", name, "correct what is said about it"
        ) from error
    if problem := _unsound(kind, predicate):
        raise problem.error(name)
    subject = statement.Subject(name, {DIGEST_NAME: digest_of(predicate)})
    return statement.sign([subject], _type_of(kind), predicate, key)


def read_message(message: bytes) -> CheckpointPredicate:
    """Read the message that a checkpoint's signature covers, before it is signed: as strictly as
    `open_statement` reads it afterwards.

    Raises:
        IdentityError: ST-IDEN-004 malformed or of another type.
        IntegrityError: ST-CKPT-101 when the predicate breaks its own rules.
    """
    payload = dsse.payload_of(message, dsse.IN_TOTO)
    parsed = statement.parse_to_sign(payload, CHECKPOINT_TYPE, CheckpointPredicate)
    predicate = parsed.predicate
    problem = _unsound(Kind.CHECKPOINT, predicate) or _other_subject(
        Kind.CHECKPOINT, parsed.subjects, digest_of(predicate)
    )
    if problem is not None:
        raise problem.error(STATEMENT)
    return predicate


class _Claim(msgspec.Struct, frozen=True):
    """A payload of which only the type is looked at: whoever opens it reads all of it, strictly."""

    type: str = msgspec.field(name="predicateType", default="")


class _Enveloped(msgspec.Struct, frozen=True):
    """An envelope of which only the payload is looked at, likewise."""

    payload: str


_CLAIM: Final = msgspec.json.Decoder(_Claim)
_ENVELOPED: Final = msgspec.json.Decoder(_Enveloped)


def _claimed_type(payload: bytes) -> str:
    """The type that a payload claims; empty where it claims none."""
    try:
        return _CLAIM.decode(payload).type
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ""


def _payload_of(data: bytes) -> str:
    """The payload in an envelope, or in a bundle with one, in base64."""
    try:
        return _ENVELOPED.decode(data).payload
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return envelope_unverified(data).payload


def claimed_kind(data: bytes) -> Kind | None:
    """The kind that an envelope claims before it is verified; decides which role is asked."""
    if len(data) > dsse.ENVELOPE_LIMIT:
        return None
    try:
        payload = base64.b64decode(_payload_of(data), validate=True)
    except (UsageError, binascii.Error, ValueError):
        return None
    match _claimed_type(payload):
        case claimed if claimed in {CHECKPOINT_TYPE, CHECKPOINT_TYPE_V1}:
            return Kind.CHECKPOINT
        case claimed if claimed == DATASET_TYPE:
            return Kind.DATASET
        case _:
            return None


class Verifies(Protocol):
    """Something that says which envelopes count: a trust root, as a rule."""

    def verify(
        self,
        envelope: bytes,
        payload_type: str,
        role: TrustRole,
        where: str = "",
        logged: int | None = None,
    ) -> dsse.VerifiedPayload:
        """Verify an envelope for a role; IdentityError when it does not count."""


def open_statement(
    data: bytes, kind: Kind, trust: Verifies, where: str = "", logged: int | None = None
) -> Opened:
    """Verify a statement and check that it is sound.

    Args:
        data: the statement's bytes.
        kind: what it must be about.
        trust: the keys that may sign it.
        where: for the refusal.
        logged: the index at which it is proven to be logged; keys revoked later still count.

    Raises:
        IntegrityError: 101 malformed or of another type, 110 a signature does not verify, 120 not
            signed (or not often enough) by keys of the trust root, 161 by a revoked one.
    """
    try:
        payload = trust.verify(data, dsse.IN_TOTO, kind.role, STATEMENT, logged)
        predicate: Predicate
        match kind:
            case Kind.CHECKPOINT:
                parsed: Any = _parse_checkpoint(payload)
            case Kind.DATASET:
                parsed = statement.parse(payload, DATASET_TYPE, DatasetPredicate)
            case _:
                raise ValueError(f"unknown kind {kind!r}")
        predicate = parsed.predicate
    except IdentityError as error:
        code = _code(kind, error.exit_code)
        raise Problem(code, error.what, STATEMENT).error(where) from error
    problem = _unsound(kind, predicate)
    digest = "" if problem else digest_of(predicate)
    if problem is None:
        problem = _other_subject(kind, parsed.subjects, digest)
    if problem is not None:
        raise problem.error(where)
    return Opened(
        kind=kind,
        predicate=predicate,
        digest=digest,
        key_ids=payload.key_ids,
        identities=payload.identities,
        statement=hashlib.sha256(payload.data).hexdigest(),
        statement_size=len(payload.data),
    )


def _parse_checkpoint(payload: dsse.VerifiedPayload) -> statement.Statement[CheckpointPredicate]:
    """Read version 2, or version 1 as a statement that has no name and binds nothing more."""
    # What is read is canonical: one that claims version 1 spells it so.
    first = CHECKPOINT_TYPE_V1.encode() in payload.data
    if not first or _claimed_type(payload.data) != CHECKPOINT_TYPE_V1:
        return statement.parse(payload, CHECKPOINT_TYPE, CheckpointPredicate)
    old = statement.parse(payload, CHECKPOINT_TYPE_V1, CheckpointPredicateV1)
    said = {field: getattr(old.predicate, field) for field in old.predicate.__struct_fields__}
    return statement.Statement(old.subjects, CheckpointPredicate(**said))


def _code(kind: Kind, refused: ExitCode) -> str:
    """Translate an envelope's refusal to the directory's: the refusal with the same exit code."""
    match refused:
        case ExitCode.BAD_SIGNATURE:
            return kind.code(110)
        case ExitCode.POLICY:
            return kind.code(120)
        case ExitCode.REVOKED:
            return kind.code(161)
        case _:
            return kind.code(101)


def _other_subject(
    kind: Kind, subjects: Sequence[statement.Subject], digest: str
) -> Problem | None:
    """Rule 3."""
    if [subject.digest for subject in subjects] == [{DIGEST_NAME: digest}]:
        return None
    return _malformed(kind, "the subject's digest is not that of the listed files")


def _type_of(kind: Kind) -> str:
    match kind:
        case Kind.CHECKPOINT:
            return CHECKPOINT_TYPE
        case Kind.DATASET:
            return DATASET_TYPE
        case _:
            raise ValueError(f"unknown kind {kind!r}")


def _malformed(kind: Kind, what: str) -> Problem:
    return Problem(kind.code(101), f"malformed statement: {what}", STATEMENT)


def _unsound(kind: Kind, predicate: Predicate) -> Problem | None:
    """The faults of the lists in a predicate that the schema cannot find."""
    names = [file.name for file in predicate.files]
    if isinstance(predicate, CheckpointPredicate):
        names += [document.name for document in predicate.documents]
    try:
        _ = predicate.tree.params
    except ValueError as error:
        return _malformed(kind, str(error))
    if len(names) > MAX_FILES:
        return _malformed(kind, f"{len(names)} files, the limit is {MAX_FILES}")
    if [file.name for file in predicate.files] != sorted(file.name for file in predicate.files):
        return _malformed(kind, "the files are not sorted")
    if len({name.casefold() for name in names}) != len(names):
        return _malformed(kind, "two files of one name")
    for name in names:
        if reason := bad_name(kind, name):
            return _malformed(kind, f"file {name!r}: {reason}")
    match predicate:
        case CheckpointPredicate():
            return _unsound_checkpoint(predicate)
        case DatasetPredicate():
            return _unsound_dataset(predicate, set(names))
        case _:
            raise ValueError(f"unknown predicate {type(predicate).__name__}")


def _unsound_checkpoint(predicate: CheckpointPredicate) -> Problem | None:
    kind = Kind.CHECKPOINT
    if predicate.index.name != INDEX or predicate.index.size == 0:
        return _malformed(kind, "no index")
    ranks = [file.rank for file in predicate.files]
    if len(set(ranks)) != len(ranks) or any(rank >= predicate.world_size for rank in ranks):
        return _malformed(kind, "the ranks of the files are not distinct ranks of the world")
    if predicate.gradients.refused > predicate.gradients.judged:
        return _malformed(kind, "more steps refused than judged")
    if any(not 0 < document.size <= MAX_DOCUMENT for document in predicate.documents):
        return _malformed(kind, f"a document that is empty or larger than {MAX_DOCUMENT} bytes")
    if predicate.bound.parents and len(predicate.bound.parents) != len(predicate.parents):
        return _malformed(kind, "the statements of some parents are bound, and of others not")
    what = checkpoint_predicate.unsound(predicate)
    return _malformed(kind, what) if what else None


def _unsound_dataset(predicate: DatasetPredicate, names: set[str]) -> Problem | None:
    what = dataset_predicate.unsound(predicate, names)
    return _malformed(Kind.DATASET, what) if what else None
