# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Write what a pack proves in a format that others read; the same pack gives the same bytes.

A serial number is drawn from the document itself, and every time is the statement's: nothing is of
the moment or the machine of the export.

CycloneDX and SPDX have modules of their own. SLSA provenance 1 in an in-toto statement 1 is here:
which build made these files, and from what. Subjects are files by the SHA-256 of their bytes. A
tree's root is not one: it is an annotation. Facts that are only declared lie under ``declared``.
"""

import hashlib
import uuid
from enum import StrEnum
from typing import Any

from securetrain.chain.exports import cyclonedx, spdx
from securetrain.chain.exports.facts import Fact, Facts, Kind, timestamp
from securetrain.core import canonical

BUILD_TYPE = "https://securetrain.dev/build/train/v1"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
_NEEDED = (Kind.INPUT, Kind.CODE, Kind.SOURCE, Kind.LIBRARY, Kind.POLICY, Kind.DATASET, Kind.PARENT)


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
            made = _provenance(facts)
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


def _provenance(facts: Facts) -> dict[str, Any]:
    """SLSA's statement as plain values."""
    files, declared = facts.files, {"settings": dict(facts.settings)}
    license_ = {"license": facts.license} if facts.license else {}
    needed, said = facts.of(*_NEEDED), facts.said
    statement = {"sha256": facts.opened.statement}
    signer = min(facts.opened.key_ids, default=facts.opened.statement)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(one) for one in files if one.digest],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "declared": declared | license_,
                    **({} if facts.job is None else {"job": facts.job}),
                },
                "internalParameters": {
                    "links": {str(link): str(state) for link, state in facts.links.items()},
                    "properties": [f"{name}={value}" for name, value in facts.properties],
                    "unhashed": [one.name for one in files if not one.digest],
                },
                "resolvedDependencies": [_dependency(one) for one in needed if one.digest],
            },
            "runDetails": {
                # The identity behind the build is the key that signed the checkpoint.
                "builder": {"id": f"urn:sha256:{signer}"},
                "metadata": {"invocationId": said.run_id, "finishedOn": timestamp(said.created)},
                "byproducts": [{"name": "statement of the checkpoint", "digest": statement}],
            },
        },
    }


def _subject(file: Fact) -> dict[str, Any]:
    notes = {"standing": str(file.standing)}
    notes |= {"treeRoot": root} if (root := dict(file.said).get("tree-root")) else {}
    return {"name": file.name, "digest": file.digest, "annotations": notes}


def _dependency(one: Fact) -> dict[str, Any]:
    record = f"{one.name} {one.version} RECORD"
    return {
        "name": record if one.kind is Kind.LIBRARY else one.name or str(one.kind),
        "digest": one.digest,
        "annotations": {"standing": str(one.standing), "kind": one.role or str(one.kind)},
    }
