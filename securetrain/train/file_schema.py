# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a job file."""

from typing import Any

import msgspec
from msgspec.inspect import Field

from securetrain.core import field_notes, file_schema
from securetrain.train.config import API_VERSION, KIND, JobConfig


def job_schema() -> dict[str, Any]:
    """The schema, with each field's meaning."""
    constants = {"apiVersion": API_VERSION, "kind": KIND}
    return file_schema(JobConfig, name="job/v1", constants=constants, note=_note)


def _note(cls: type[msgspec.Struct], field: Field) -> str:
    """The text below the field, in the struct that declares it."""
    declaring = (one for one in cls.__mro__ if field.name in vars(one).get("__annotations__", {}))
    return next((field_notes(one).get(field.name, "") for one in declaring), "")
