# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""JSON Schema of a file that people write, made from the struct that reads it.

Rules:

1. the dialect is 2020-12 (json-schema.org), which editors know; msgspec writes types and bounds;
2. a pattern means the same there: Python's end of a text, ``\Z``, becomes ``$``;
3. what a struct checks beyond types and bounds is not in it. A file that the schema accepts may be
   refused when it is read; a file that it refuses is refused then, too.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.inspect import Field, StructType, Type, type_info

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def file_schema(
    struct: type[msgspec.Struct],
    *,
    name: str,
    constants: Mapping[str, str],
    note: Callable[[type[msgspec.Struct], Field], str],
    is_layer: bool = False,
) -> dict[str, Any]:
    """Describe the files that a struct reads.

    Args:
        struct: The struct of the whole document.
        name: Of the schema, as in ``policy/v1``.
        constants: Fields with one value, and it.
        note: The text for a field.
        is_layer: Whether another file may give what is required below the top level.
    """
    (root,), parts = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    for cls, info in _structs(type_info(struct)):
        part = parts[cls.__name__]
        for field in info.fields:
            if text := note(cls, field):
                part["properties"][field.encode_name]["description"] = text
        if is_layer and cls is not struct:
            part.pop("required", None)
    whole = parts.pop(root["$ref"].rpartition("/")[2])
    for field_name, value in constants.items():
        whole["properties"][field_name] = {"const": value}
    head = {"$schema": DIALECT, "$id": f"urn:securetrain:schema:{name}"}
    found: dict[str, Any] = _portable({**head, **whole, "$defs": parts})
    return found


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as it stands in a file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _structs(info: Type) -> Iterator[tuple[type[msgspec.Struct], StructType]]:
    """Every struct below a type, itself included, once."""
    seen: set[type] = set()
    waiting: list[Any] = [info]
    while waiting:
        one = waiting.pop()
        if isinstance(one, StructType):
            if one.cls in seen:
                continue
            seen.add(one.cls)
            yield one.cls, one
            waiting += [field.type for field in one.fields]
        else:
            waiting += [
                inner
                for name in ("type", "types", "item_type", "item_types", "key_type", "value_type")
                for inner in _listed(getattr(one, name, ()))
            ]


def _listed(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _portable(node: Any) -> Any:
    """Apply rule 2, at any depth."""
    if isinstance(node, list | tuple):
        return [_portable(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {name: _portable(value) for name, value in node.items()}
    if isinstance(pattern := made.get("pattern"), str) and pattern.endswith(r"\Z"):
        made["pattern"] = pattern.removesuffix(r"\Z") + "$"
    return made
