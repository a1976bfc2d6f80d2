# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collateral: what makers publish about their hardware, by kind and name."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol


class CollateralKind(StrEnum):
    """The kind of a document."""

    RIM = "rim"
    OCSP = "ocsp"
    CRL = "crl"
    TCB_INFO = "tcb-info"
    QE_IDENTITY = "qe-identity"
    AMD_CHAIN = "amd-chain"
    ISSUER_CHAIN = "issuer-chain"
    RUNTIME_POLICY = "runtime-policy"


LIMITS: Final[Mapping[CollateralKind, int]] = {
    CollateralKind.RIM: 1 << 20,
    CollateralKind.OCSP: 64 << 10,
    CollateralKind.CRL: 4 << 20,
    CollateralKind.TCB_INFO: 1 << 20,
    CollateralKind.QE_IDENTITY: 256 << 10,
    CollateralKind.AMD_CHAIN: 256 << 10,
    CollateralKind.ISSUER_CHAIN: 256 << 10,
    CollateralKind.RUNTIME_POLICY: 64 << 20,
}
"""The largest document of each kind."""


class Collateral(Protocol):
    """The signed cache of what makers publish."""

    def get(self, kind: CollateralKind, name: str, now: datetime) -> bytes:
        """One document.

        Raises:
            AttestationError: ST-ATTS-009 without a cache, ST-ATTS-7xx when the document is
                missing, altered or no longer fresh.
        """

    def has(self, kind: CollateralKind, name: str) -> bool:
        """Tell whether there is such a document."""
