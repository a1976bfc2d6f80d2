# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What passes between the verifier and its appraisers: an opening, a case, a lease."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from securetrain.attest.attester import Ask
from securetrain.attest.evidence import NodeEvidence

if TYPE_CHECKING:
    from securetrain.attest.tpm.boot import BootState
    from securetrain.attest.tpm.certificates import Endorsement
    from securetrain.attest.tpm.ima import Progress
    from securetrain.attest.tpm.quote import Quote
    from securetrain.attest.tpm.structures import PublicArea


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A parsed body."""

    manifest: bytes
    """The part that the binding covers."""
    node: NodeEvidence | None = None
    """None for a self-report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A TPM whose keys may be asked: endorsed, enrolled, and challenged."""

    endorsement: "Endorsement"
    ak: "PublicArea"
    secret: bytes
    """What only the TPM that holds both keys can find in the credential."""
    credential: tuple[bytes, bytes]
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET."""

    @property
    def identity(self) -> str:
        """The TPM, as leases and revocations name it."""
        return f"ek:{self.endorsement.name.hex()}"

    @property
    def ak_name(self) -> bytes:
        """Name of the attestation key."""
        return self.ak.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What was proven at the last appraisal: a renewal goes on from here."""

    identities: tuple[str, ...]
    """What nobody else may present meanwhile: ``ek:HEX``, ``chip:HEX``, ``device:SERIAL``."""
    expires: datetime
    ak_name: bytes = b""
    quote: "Quote | None" = None
    boot: "BootState | None" = None
    ima: "Progress | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One exchange, as the appraiser sees it."""

    binding: bytes
    """What the hardware must have signed, 32 bytes."""
    node: str
    now: datetime
    expires: datetime
    """When the lease that this appraisal begins will end."""
    ask: Ask
    opening: Opening | None
    lease: Lease | None
    """What a renewal goes on from; None when full evidence was asked for."""
