# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The key with which a job opens encrypted checkpoints: a file, or a named secret of the policy."""

from pathlib import Path
from typing import Final

from securetrain.artifacts import encryption
from securetrain.core import secret

SECRET: Final = "secret:"  # noqa: S105 - the beginning of a place


def decryption_keys(place: str) -> list[encryption.DecryptionKey]:
    """The key that a job names, if it names one.

    Args:
        place: A file, ``secret:NAME``, or empty.

    Raises:
        IdentityError: ST-IDEN-001, ST-IDEN-010.
        RuntimeRefusal: ST-RUNT-036 when this worker was not given the secret.
        UsageError: ST-USAG-002.
    """
    if not place:
        return []
    if place.startswith(SECRET):
        return [encryption.DecryptionKey.parse(secret(place.removeprefix(SECRET)), place)]
    return [encryption.DecryptionKey.load(Path(place))]
