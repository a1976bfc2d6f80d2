# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The statement of a Model Signing bundle: every file of a model and its SHA-256.

Rules, in order, all of them on bytes whose signature has verified:

1. the statement's and the predicate's types are the one that the specification names;
2. one method (``files``) and one algorithm (``sha256``) are read, because the reference verifier
   reads no other; the predicate is a closed schema, a resource's further fields are ignored, as
   the specification asks;
3. a model of no files is refused; names are safe relative paths, unique (case ignored) and sorted;
4. the subject's digest is the SHA-256 of the resources' digests in their order.

Whatever the bundle says should be ignored is not: every file below the model must be signed, but
the bundle itself.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError, reason
from securetrain.core.files import unsafe_name

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"
PAYLOAD_LIMIT: Final = 64 << 20
MAX_FILES: Final = 1_000_000

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Resource(msgspec.Struct, frozen=True):
    """One file of the model. Further fields may be there and mean nothing."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: Digest
    algorithm: Literal["sha256"] = "sha256"


class Serialization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way in which the model was turned into resources."""

    method: Literal["files"] = "files"
    hash_type: Literal["sha256"] = "sha256"
    allow_symlinks: bool = False
    ignore_paths: list[str] = []


class Predicate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the signature."""

    serialization: Serialization
    resources: list[Resource]


class _Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: dict[str, str]


class _Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: list[_Subject]
    predicateType: str  # noqa: N815 - the name in the specification
    predicate: Predicate


def root_of(resources: Sequence[Resource]) -> str:
    """The subject's digest: SHA-256 over the raw digests in order, hex."""
    state = hashlib.sha256()
    for resource in resources:
        state.update(bytes.fromhex(resource.digest))
    return state.hexdigest()


def write(name: str, resources: Sequence[Resource], ignored: Sequence[str]) -> bytes:
    """The statement's bytes for a model called `name`.

    Raises:
        IntegrityError: ST-OMSB-101 when it breaks its own rules.
    """
    predicate = Predicate(
        serialization=Serialization(ignore_paths=list(ignored)), resources=list(resources)
    )
    _check(predicate, "")
    statement: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": root_of(resources)}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": msgspec.to_builtins(predicate),
    }
    return canonical.dumps(statement)


def read(payload: bytes, where: str) -> Predicate:
    """Read a payload whose signature has verified.

    Raises:
        IntegrityError: ST-OMSB-101.
    """
    try:
        value = canonical.loads(payload, limit=PAYLOAD_LIMIT, where=where)
        statement = msgspec.convert(value, _Statement, strict=True)
    except (UsageError, msgspec.ValidationError) as error:
        raise malformed(reason(error), where) from error
    if statement.type != STATEMENT_TYPE or statement.predicateType != PREDICATE_TYPE:
        raise malformed(f"a statement of type {statement.predicateType!r}", where)
    predicate = statement.predicate
    _check(predicate, where)
    if [one.digest for one in statement.subject] != [{"sha256": root_of(predicate.resources)}]:
        raise malformed("the subject's digest is not that of the listed files", where)
    return predicate


def _check(predicate: Predicate, where: str) -> None:
    """Rule 3."""
    names = [resource.name for resource in predicate.resources]
    if not names or len(names) > MAX_FILES:
        raise malformed(f"{len(names)} files", where)
    if names != sorted(names) or len({name.casefold() for name in names}) != len(names):
        raise malformed("the files are not sorted, or two have one name", where)
    for name in names:
        for part in name.split("/"):
            if problem := unsafe_name(part):
                raise malformed(f"file {name!r}: {problem}", where)


def malformed(what: str, where: str) -> IntegrityError:
    """The refusal of a bundle that is not one."""
    return IntegrityError("ST-OMSB-101", f"malformed bundle: {what}", where)
