# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rules of reference values that a person sets, endorsement keys that are revoked.

Rules:

1. a field is named as the reference pages name it, and its value is JSON: what is not in the schema
   is refused with the name of the field, and so is a value that no appraiser could be made of;
2. who is enrolled, since when and until when is not set here: the commands for that check it.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from securetrain.attest.session.cache import CachedCollateral
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, SecureTrainError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.evidence import (
    ImageGroup,
    NodeAppraiser,
    ReferenceValues,
    SignedReferenceValues,
    with_nodes,
)
from securetrain.policy.schema import Node

S = TypeVar("S", bound=msgspec.Struct)

SECTIONS: Final = ("tpm", "boot", "tdx_boot", "ima", "snp", "tdx", "gpu", "tokens")
_GROUP_FIELDS: Final = ("boot", "tdx_boot")
_NODE_FIELDS: Final = ("chips", "devices", "group", "own")
VALUE_LIMIT: Final = 16 << 20
"""Of one value, or the file that holds it."""
_ASSIGNMENT: Final = re.compile(r"(\w+(?:\.\w+(?:-+\w+)*)*)([+-]?)=(.*)", re.DOTALL | re.ASCII)
_EK: Final = re.compile(r"(?:ek:)?(000[bcd](?:[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}))")


def set_fields(
    values: ReferenceValues,
    assignments: Sequence[str],
    now: datetime,
    *,
    group: str = "",
    node: str = "",
) -> ReferenceValues:
    """The values with fields set.

    Args:
        values: the last edition.
        assignments: ``FIELD=VALUE``; ``+=`` adds to a list or an object, ``-=`` takes out of it.
        now: the time, timezone-aware.
        group: the image group whose fields they are.
        node: the node whose fields they are.

    Raises:
        UsageError: ST-USAG-001 for a field or value that is not in the schema, an image group or a
            node that is not there; ST-USAG-002 or 008 for a file with a value.
        AttestationError: ST-ATTS-018 for values that no appraiser can be made of.
    """
    if node:
        if node not in values.nodes:
            raise _bad(f"{node} is not enrolled", "--node", "name nodes as they are enrolled")
        changed = _assigned(values.nodes[node], assignments, _NODE_FIELDS)
        made = msgspec.structs.replace(values, nodes=with_nodes(values.nodes, {node: changed}))
        if changed.group not in ("", *values.groups):
            fix = "learn a boot for it, or name one of 'securetrain attest values show'"
            raise _bad(f"there is no image group {changed.group!r}", "group", fix)
    elif group:
        if group not in values.groups:
            fix = "name one of 'securetrain attest values show'"
            raise _bad(f"there is no image group {group!r}", "--group", fix)
        boots: ImageGroup = _assigned(values.groups[group], assignments, _GROUP_FIELDS)
        made = msgspec.structs.replace(values, groups={**values.groups, group: boots})
    else:
        bare = msgspec.structs.replace(values, nodes={})
        made = msgspec.structs.replace(
            _assigned(bare, assignments, SECTIONS), nodes=values.nodes, pages=values.pages
        )
    _check_usable(made, now)
    return made


def revoke_eks(values: ReferenceValues, given: Sequence[str]) -> ReferenceValues:
    """The values with endorsement keys that are refused, whoever presents them.

    Raises:
        UsageError: ST-USAG-001 for what is no name of one, or is revoked already.
    """
    names = []
    for text in given:
        found = _EK.fullmatch(text)
        if found is None:
            fix = "write ek:HEX, as 'securetrain attest values show' and refusals do"
            raise _bad(f"{text[:80]!r} names no endorsement key", "EK", fix)
        if found[1] in values.tpm.revoked:
            raise _bad(f"{text} is revoked", "EK", "name those that are not")
        names.append(found[1])
    tpm = msgspec.structs.replace(
        values.tpm,
        revoked=tuple(dict.fromkeys((*values.tpm.revoked, *names))),
        allow_uncertified=tuple(ek for ek in values.tpm.allow_uncertified if ek not in names),
    )
    return msgspec.structs.replace(values, tpm=tpm)


def _assigned(struct: S, assignments: Sequence[str], fields: Sequence[str]) -> S:
    document: dict[str, Any] = msgspec.to_builtins(struct)
    for text in assignments:
        path, how, value = _parsed(text)
        if path[0] not in fields:
            raise _bad(
                f"there is no field {path[0]!r} to set",
                text[:80],
                f"set one of {', '.join(fields)}",
            )
        _assign(document, path, how, value, text)
    try:
        return msgspec.convert(document, type(struct), strict=True)
    except msgspec.ValidationError as error:
        fix = "name fields and values as docs/how-to/manage-reference-values.md does"
        raise _bad(str(error), ", ".join(text[:80] for text in assignments), fix) from error


def _parsed(text: str) -> tuple[list[str], str, Any]:
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        raise _bad(
            "it is no FIELD=VALUE", text[:80], "write FIELD=VALUE, FIELD+=VALUE, FIELD-=VALUE"
        )
    path, how, value = found.groups()
    if value.startswith("@"):
        data = read_file(Path(value[1:]), VALUE_LIMIT)
        return path.split("."), how, canonical.loads(data, limit=VALUE_LIMIT, where=value[1:])
    try:
        return path.split("."), how, canonical.loads(value.encode(), limit=VALUE_LIMIT)
    except SecureTrainError as error:
        if value[:1] in {"{", "[", '"'}:
            raise _bad(reason(error), text[:80], "write the value as JSON") from error
        return path.split("."), how, value


def _assign(document: dict[str, Any], path: list[str], how: str, value: Any, text: str) -> None:
    *parents, last = path
    place = document
    for name in parents:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise _bad(f"{name!r} has no fields", text[:80], "set the field itself")
    old = place.get(last)
    if not how:
        place[last] = value
    elif isinstance(old, dict) and how == "+" and isinstance(value, dict):
        place[last] = {**old, **value}
    elif isinstance(old, list | tuple | dict):
        given = value if isinstance(value, list) else [value]
        if how == "+" and not isinstance(old, dict):
            place[last] = [*old, *(one for one in given if one not in old)]
        elif how == "-" and all(one in old for one in given):
            place[last] = _less(old, given)
        else:
            raise _bad("not all of it is there", text[:80], "look: securetrain attest values show")
    else:
        raise _bad("it is neither a list nor an object", text[:80], "set it with =")


def _less(old: Any, given: Sequence[Any]) -> Any:
    if isinstance(old, dict):
        return {name: one for name, one in old.items() if name not in given}
    return [one for one in old if one not in given]


def _check_usable(values: ReferenceValues, now: datetime) -> None:
    """Make an appraiser of them; a runtime policy in a cache is not looked for."""
    ima = msgspec.structs.replace(values.ima, policy_sha256="")
    bare = msgspec.structs.replace(values, ima=ima)
    signed = SignedReferenceValues(values=bare, digest="", where="VALUE", signed_by={})
    try:
        NodeAppraiser(Node(), signed, CachedCollateral(None), now)
    except AttestationError as error:
        raise AttestationError("ST-ATTS-018", error.what, error.where) from error


def _bad(what: str, where: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-001", what, where, fix)
