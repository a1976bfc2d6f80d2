# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The file of a fleet's reference values: read and verified, signed and written whole."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from securetrain.attest.session.floors import require_newest_values
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import AttestationError, SecureTrainError, reason
from securetrain.core.files import read_file, write_atomic
from securetrain.evidence import (
    FILE_LIMIT,
    ReferenceValues,
    SignedReferenceValues,
    open_reference_values,
    sign_reference_values,
    trusted_keys,
    unusable,
)
from securetrain.identity.keys import PrivateKey


def write_reference_values(path: Path, values: ReferenceValues, key: PrivateKey) -> None:
    """Sign and write atomically, if a verifier will be able to read it.

    Raises:
        AttestationError: ST-ATTS-018; the edition that is there stands.
        UsageError: ST-USAG-002 or ST-USAG-006 when it cannot be written.
    """
    envelope = sign_reference_values(values, key)
    try:
        if len(envelope) > FILE_LIMIT:
            raise unusable(f"{len(envelope)} bytes, the limit is {FILE_LIMIT}", str(path), "")
        read = open_reference_values(envelope, {key.key_id: key.public}, str(path))
    except AttestationError as error:
        raise AttestationError("ST-ATTS-018", error.what, str(path)) from error
    if read.values != values:
        raise AttestationError("ST-ATTS-018", "it would be read as something else", str(path))
    write_atomic(path, envelope)


def load_reference_values(
    path: Path, signed_by: Sequence[str], now: datetime, state: StateStore
) -> SignedReferenceValues:
    """Read a file and check signature, time, and that it did not go back.

    Args:
        path: the file.
        signed_by: public keys (SPKI, base64) of which one must have signed, from the policy.
        now: the time, timezone-aware.
        state: knows the editions that were accepted before.

    Raises:
        AttestationError: ST-ATTS-009; ST-ATTS-015 or 017 about the state.
    """
    found = read_reference_values(path, signed_by, state)
    found.check_time(now)
    return found


def read_reference_values(
    path: Path, signed_by: Sequence[str], state: StateStore
) -> SignedReferenceValues:
    """Read a file as `load_reference_values` does; it may be over: the next edition comes from it.

    Raises:
        AttestationError: ST-ATTS-009; ST-ATTS-015 or 017 about the state.
    """
    where = str(path)
    keys = trusted_keys(signed_by, where)
    try:
        envelope = read_file(path, FILE_LIMIT)
    except SecureTrainError as error:
        fix = "name the key that signed it, or sign it again"
        raise unusable(reason(error), where, fix) from error
    found = open_reference_values(envelope, keys, where)
    require_newest_values(state, found)
    return found
