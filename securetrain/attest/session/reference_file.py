# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The file of a fleet's reference values: read and verified, signed and written whole."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from securetrain.core.errors import SecureTrainError, reason
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
    """Sign and write atomically."""
    write_atomic(path, sign_reference_values(values, key))


def load_reference_values(
    path: Path, signed_by: Sequence[str], now: datetime
) -> SignedReferenceValues:
    """Read a file and check signature and time.

    Args:
        path: the file.
        signed_by: public keys (SPKI, base64) of which one must have signed, from the policy.
        now: the time, timezone-aware.

    Raises:
        AttestationError: ST-ATTS-009.
    """
    found = read_reference_values(path, signed_by)
    found.check_time(now)
    return found


def read_reference_values(path: Path, signed_by: Sequence[str]) -> SignedReferenceValues:
    """Read a file and check its signature; it may be over, for the next edition is made from it.

    Raises:
        AttestationError: ST-ATTS-009.
    """
    where = str(path)
    keys = trusted_keys(signed_by, where)
    try:
        envelope = read_file(path, FILE_LIMIT)
    except SecureTrainError as error:
        fix = "name the key that signed it, or sign it again"
        raise unusable(reason(error), where, fix) from error
    return open_reference_values(envelope, keys, where)
