# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The record that a machine keeps of the fleet that it was admitted to, beside its keys.

::

    <state>/
      fleet.json        this record
      attester.json     what speaks for the node, for ``run --attester``
      node-key.pem      the key that signed
      tpm/              the attestation key, wrapped by the TPM
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.attest.node import AttesterSettings
from securetrain.core import canonical
from securetrain.core.files import PRIVATE_FILE, write_atomic
from securetrain.identity import Digest

SCHEMA: Final = "securetrain.dev/fleet-membership/v1"
FILE: Final = "fleet.json"
ATTESTER_FILE: Final = "attester.json"


class FleetMembership(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The record."""

    schema: str = SCHEMA
    node: str
    group: str
    ek: str
    """Name of the endorsement key, hex."""
    evidence: Digest
    """SHA-256 of what was said."""
    joined: Annotated[datetime, Meta(tz=True)]
    desk: str
    """HOST:PORT."""
    pin: Digest
    """SHA-256 of the desk's key."""
    signed_by: tuple[str, ...]
    """Keys (SPKI, base64) that sign the fleet's reference values."""
    coordinator: str
    """Where the fleet's jobs meet, HOST:PORT; may be empty."""


def write_membership(
    state: Path, membership: FleetMembership, settings: AttesterSettings
) -> tuple[Path, Path]:
    """Write the record, and the settings that speak for the node; gives both files."""
    record, attester = state / FILE, state / ATTESTER_FILE
    write_atomic(attester, canonical.encode(settings), mode=PRIVATE_FILE)
    write_atomic(record, canonical.encode(membership), mode=PRIVATE_FILE)
    return record, attester
