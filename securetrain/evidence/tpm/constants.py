# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers of the TPM 2.0 specification: algorithms, curves, attributes, handles, tags.

Source: TCG Algorithm Registry; TCG TPM 2.0 Library, Part 2; handles: TCG EK Credential Profile.
"""

import hashlib
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

GENERATED: Final = 0xFF544347
"""TPM_GENERATED_VALUE: what everything that a TPM made itself begins with."""


class Algorithm(IntEnum):
    """TPM_ALG_ID, but for hashes."""

    RSA = 0x0001
    AES = 0x0006
    NULL = 0x0010
    RSASSA = 0x0014
    RSAES = 0x0015
    RSAPSS = 0x0016
    OAEP = 0x0017
    ECDSA = 0x0018
    ECDH = 0x0019
    KDF1_SP800_56A = 0x0020
    KDF1_SP800_108 = 0x0022
    ECC = 0x0023
    CTR = 0x0040
    OFB = 0x0041
    CBC = 0x0042
    CFB = 0x0043
    ECB = 0x0044


class Hash(IntEnum):
    """TPM_ALG_ID of the hashes; also the names of PCR banks."""

    SHA1 = 0x0004
    SHA256 = 0x000B
    SHA384 = 0x000C
    SHA512 = 0x000D

    @property
    def spelling(self) -> str:
        """The name that hashlib and people use."""
        return self.name.lower()

    @property
    def size(self) -> int:
        """Bytes of a digest."""
        return _SIZES[self]

    def digest(self, data: bytes) -> bytes:
        """The digest of `data`."""
        return _FUNCTIONS[self](data).digest()

    def primitive(self) -> hashes.HashAlgorithm:
        """The same hash for `cryptography`."""
        return _PRIMITIVES[self]


_FUNCTIONS: Final[dict[Hash, Callable[[bytes], "hashlib._Hash"]]] = {
    Hash.SHA1: hashlib.sha1,
    Hash.SHA256: hashlib.sha256,
    Hash.SHA384: hashlib.sha384,
    Hash.SHA512: hashlib.sha512,
}
_SIZES: Final = {Hash.SHA1: 20, Hash.SHA256: 32, Hash.SHA384: 48, Hash.SHA512: 64}
_PRIMITIVES: Final[dict[Hash, hashes.HashAlgorithm]] = {
    Hash.SHA1: hashes.SHA1(),  # noqa: S303 - so that its use can be named when it is refused
    Hash.SHA256: hashes.SHA256(),
    Hash.SHA384: hashes.SHA384(),
    Hash.SHA512: hashes.SHA512(),
}


class Curve(IntEnum):
    """TPM_ECC_CURVE."""

    P256 = 0x0003
    P384 = 0x0004
    P521 = 0x0005

    @property
    def size(self) -> int:
        """Bytes of a coordinate."""
        return (self.primitive().key_size + 7) // 8

    def primitive(self) -> ec.EllipticCurve:
        """The same curve for `cryptography`."""
        return _CURVES[self]


_CURVES: Final[dict[Curve, ec.EllipticCurve]] = {
    Curve.P256: ec.SECP256R1(),
    Curve.P384: ec.SECP384R1(),
    Curve.P521: ec.SECP521R1(),
}


class Attributes(IntFlag):
    """TPMA_OBJECT."""

    FIXED_TPM = 1 << 1
    ST_CLEAR = 1 << 2
    FIXED_PARENT = 1 << 4
    SENSITIVE_DATA_ORIGIN = 1 << 5
    USER_WITH_AUTH = 1 << 6
    ADMIN_WITH_POLICY = 1 << 7
    FIRMWARE_LIMITED = 1 << 8
    SVN_LIMITED = 1 << 9
    NO_DA = 1 << 10
    ENCRYPTED_DUPLICATION = 1 << 11
    RESTRICTED = 1 << 16
    DECRYPT = 1 << 17
    SIGN = 1 << 18
    X509_SIGN = 1 << 19


DEFINED: Final = sum(Attributes)
"""Every attribute that is not reserved."""


class Handle(IntEnum):
    """TPM_RH and the persistent handles of the TCG PC Client profile."""

    OWNER = 0x40000001
    NULL = 0x40000007
    PASSWORD = 0x40000009
    ENDORSEMENT = 0x4000000B
    PLATFORM = 0x4000000C
    EK_RSA = 0x81010001
    """Persistent RSA-2048 endorsement key (template L-1)."""
    EK_ECC_P384 = 0x81010016
    """Persistent P-384 endorsement key (template H-3)."""


class Tag(IntEnum):
    """TPM_ST."""

    NO_SESSIONS = 0x8001
    SESSIONS = 0x8002
    ATTEST_CERTIFY = 0x8017
    ATTEST_QUOTE = 0x8018
