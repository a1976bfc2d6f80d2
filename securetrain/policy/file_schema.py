# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a policy file, which may be a layer over another one."""

from typing import Any, Final

import msgspec
from msgspec.inspect import Field, Metadata

from securetrain.core import file_schema
from securetrain.policy.load import KIND, SHIPPED
from securetrain.policy.schema import API_VERSION, Policy

_EXTENDS: Final = (
    f"the policy that this one changes: {', '.join(SHIPPED)}, or a file beside it; what is left out"
    " here is as it is there"
)


def policy_schema() -> dict[str, Any]:
    """The schema, with each field's meaning and who enforces it."""
    constants = {"apiVersion": API_VERSION, "kind": KIND}
    found = file_schema(Policy, name="policy/v1", constants=constants, note=_note, is_layer=True)
    found["description"] = "A policy file: what run enforces, audit checks and verify proves."
    found["properties"]["extends"] = {"type": "string", "description": _EXTENDS}
    return found


def _note(_cls: type[msgspec.Struct], field: Field) -> str:
    found = field.type
    if not isinstance(found, Metadata) or not found.extra:
        return ""
    described = (found.extra_json_schema or {}).get("description", "")
    return f"{described} (enforced by {', '.join(found.extra['enforced_by'])})"
