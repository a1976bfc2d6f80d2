# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read one YAML document of a strict schema: check files here, threat models above."""

from pathlib import Path
from typing import TypeVar

import msgspec

from securetrain.core.errors import AuditError, PolicyError
from securetrain.core.files import read_file
from securetrain.policy.load import parse_yaml

T = TypeVar("T")


def read_document(path: Path, schema: type[T], *, limit: int, code: str, fix: str) -> T:
    """Read a file of at most `limit` bytes into `schema`.

    Raises:
        AuditError: `code`, with the file and the field.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    try:
        document = parse_yaml(read_file(path, limit).decode("utf-8"), str(path))
        return msgspec.convert(document, schema, strict=True)
    except PolicyError as error:
        raise AuditError(code, error.what, error.where, error.fix) from error
    except UnicodeDecodeError as error:
        raise AuditError(code, "not UTF-8", str(path), "save it as UTF-8") from error
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at ")
        raise AuditError(code, text, f"{path}: {at.strip('`') or 'top level'}", fix) from error
