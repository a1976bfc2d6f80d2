# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Write what a pack proves in a format that others read; the same pack gives the same bytes.

A serial number is drawn from the document itself, and every time is the statement's: nothing is of
the moment or the machine of the export.
"""

import hashlib
import uuid
from enum import StrEnum
from typing import Any

from securetrain.chain.exports import cyclonedx, slsa, spdx
from securetrain.chain.exports.facts import Facts
from securetrain.core import canonical


class ExportFormat(StrEnum):
    """A format of exports, by its name and version."""

    CYCLONEDX_1_6 = "cyclonedx-1.6"
    CYCLONEDX_1_7 = "cyclonedx-1.7"
    SPDX_3_0_1 = "spdx-3.0.1"
    SLSA_PROVENANCE_1 = "slsa-provenance-1"


def export(facts: Facts, kind: ExportFormat) -> bytes:
    """The document in a format: canonical JSON (RFC 8785) and a line's end.

    Raises:
        ValueError: There is no such format.
    """
    match kind:
        case ExportFormat.CYCLONEDX_1_6 | ExportFormat.CYCLONEDX_1_7:
            made = _numbered(cyclonedx.write(facts, kind.removeprefix("cyclonedx-")))
        case ExportFormat.SPDX_3_0_1:
            made = spdx.write(facts)
        case ExportFormat.SLSA_PROVENANCE_1:
            made = slsa.write(facts)
        case _:
            raise ValueError(f"unknown format {kind!r}")
    return canonical.dumps(made) + b"\n"


def _numbered(bom: dict[str, Any]) -> dict[str, Any]:
    """Add the serial number that the content has (RFC 9562, version 8: of our own making)."""
    digest = hashlib.sha256(canonical.dumps(bom)).digest()
    data = bytearray(digest[:16])
    data[6] = data[6] & 0x0F | 0x80
    data[8] = data[8] & 0x3F | 0x80
    return bom | {"serialNumber": f"urn:uuid:{uuid.UUID(bytes=bytes(data))}"}
