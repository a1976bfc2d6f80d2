# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""in-toto statements (https://github.com/in-toto/attestation/tree/main/spec/v1).

A statement says something (the predicate) about things (the subjects). The predicate is typed by
the room that it belongs to; here is only the frame.
"""

from typing import Final, Generic, TypeVar

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError, reason
from securetrain.identity import dsse
from securetrain.identity.keys import Signer

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_BASE: Final = "https://securetrain.dev/attestation"

P = TypeVar("P", bound=msgspec.Struct)


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The subject of a statement: a name and its digests (algorithm to hex)."""

    name: str
    digest: dict[str, str]


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: list[Subject]
    predicateType: str  # noqa: N815 - the name in the specification
    predicate: dict[str, object]


class _FrameOf(msgspec.Struct, Generic[P], frozen=True, forbid_unknown_fields=True):
    """A `_Frame` whose predicate is read at once."""

    type: str = msgspec.field(name="_type")
    subject: list[Subject]
    predicateType: str  # noqa: N815 - the name in the specification
    predicate: P


class Statement(msgspec.Struct, Generic[P], frozen=True):
    """A statement whose predicate has been checked against its type."""

    subjects: tuple[Subject, ...]
    predicate: P


def sign(
    subjects: list[Subject], predicate_type: str, predicate: msgspec.Struct, key: Signer
) -> bytes:
    """A DSSE envelope (canonical bytes) around a statement."""
    frame = {
        "_type": STATEMENT_TYPE,
        "subject": msgspec.to_builtins(subjects),
        "predicateType": predicate_type,
        "predicate": msgspec.to_builtins(predicate),
    }
    return dsse.sign(canonical.dumps(frame), dsse.IN_TOTO, [key], keyless=True)


def parse(
    payload: dsse.VerifiedPayload, predicate_type: str, predicate: type[P], where: str = ""
) -> Statement[P]:
    """Read a verified payload as a statement of one predicate type.

    Raises:
        IdentityError: ST-IDEN-004 when it is another type or malformed.
    """
    return parse_to_sign(payload.data, predicate_type, predicate, where)


def parse_to_sign(
    data: bytes, predicate_type: str, predicate: type[P], where: str = ""
) -> Statement[P]:
    """Read a payload that nobody has signed yet, as `parse` would afterwards.

    Raises:
        IdentityError: ST-IDEN-004 when it is another type or malformed.
    """
    if len(data) <= dsse.ENVELOPE_LIMIT:
        known = canonical.decode_plain(data, _FrameOf[predicate])  # type: ignore[valid-type]
        if known is not None and (known.type, known.predicateType) == (
            STATEMENT_TYPE,
            predicate_type,
        ):
            return Statement(tuple(known.subject), known.predicate)
    try:
        frame = canonical.decode(
            data, _Frame, limit=dsse.ENVELOPE_LIMIT, where=where, canonical=True
        )
        if frame.type != STATEMENT_TYPE or frame.predicateType != predicate_type:
            raise IdentityError(
                "ST-IDEN-004",
                f"a statement of type {frame.predicateType!r}, not {predicate_type!r}",
                where,
            )
        return Statement(
            tuple(frame.subject), msgspec.convert(frame.predicate, predicate, strict=True)
        )
    except (UsageError, msgspec.ValidationError) as error:
        raise IdentityError(
            "ST-IDEN-004", f"malformed statement: {reason(error)}", where
        ) from error
