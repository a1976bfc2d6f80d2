# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files of keys cut into their keys: one, or a pair's two."""

import base64
import binascii
from contextlib import suppress
from typing import Final

_MAX: Final = 2
_ML_DSA_OIDS: Final = tuple(
    bytes.fromhex(f"060960864801650304031{last}") for last in ("1", "2", "3")
)


def blocks(pem: bytes) -> list[bytes]:
    """The PEM blocks of a file: one, or a pair's two.

    Raises:
        ValueError: More.
    """
    end = b"-----END "
    parts = pem.split(end)
    blocks = []
    for index, part in enumerate(parts[1:]):
        label, newline, rest = part.partition(b"\n")
        blocks.append(parts[index] + end + label + newline)
        parts[index + 1] = rest
    if len(blocks) > _MAX:
        raise ValueError(f"{len(blocks)} keys in one file")
    return blocks or [pem]


def sequences(der: bytes) -> list[bytes]:
    """The DER sequences that stand one after another: one, or a pair's two.

    Raises:
        ValueError: More.
    """
    found = []
    while der:
        size = 2 + der[1] if len(der) > 1 and der[1] < 0x80 else len(der)
        if len(der) > 3 and der[1] == 0x81:
            size = 3 + der[2]
        found.append(der[:size])
        der = der[size:]
    if len(found) > _MAX:
        raise ValueError(f"{len(found)} keys in one file")
    return found or [der]


def names_ml_dsa(data: bytes) -> bool:
    """Return whether a file, PEM or DER, speaks of ML-DSA: of what OpenSSL may not have."""
    text = b"".join(line for line in data.splitlines() if not line.startswith(b"-"))
    with suppress(binascii.Error, ValueError):
        data += base64.b64decode(text)
    return any(oid in data for oid in _ML_DSA_OIDS)
