# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The records that pass between the verifier and its appraisers: an opening, a case, a lease."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.node_evidence import NodeEvidence
from securetrain.evidence.result import Submodule

if TYPE_CHECKING:
    from securetrain.evidence.tpm.certificates import Endorsement
    from securetrain.evidence.tpm.ima import Progress
    from securetrain.evidence.tpm.late import LateProgress
    from securetrain.evidence.tpm.quote import Clock
    from securetrain.evidence.tpm.structures import PublicArea


Fetch: TypeAlias = Callable[[int, bytes], bytes]
"""Gives a part of a measurement list, by its number (from 0) and SHA-256; what it gives is not
believed. It may raise whatever ends the exchange."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A verifier's request, beside the binding."""

    credential: tuple[bytes, bytes] | None = None
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET: only the TPM that holds both keys of Hello can
    open it."""
    ima_first: int = 0
    """Entries of the measurement list that were attested before: begin after them."""
    full: bool = True
    """False for a renewal, which leaves out the firmware's log."""
    parts: bool = False
    """True where a measurement list may come in parts."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The last accepted quote of one TPM."""

    ek_name: str
    """``ek:`` and the name of the endorsement key, hex: the identity of the TPM."""
    ak_name: str
    node: str
    clock: int
    """Milliseconds that the TPM has been powered, by its own count."""
    reset_count: int
    restart_count: int
    firmware: int
    seen: str
    """When, RFC 3339 UTC, by a clock that people may set."""
    boot: str = ""
    """Of the verifier's machine, by its kernel's id; empty where it is not known."""
    uptime: int = 0
    """Milliseconds from that boot to the quote's arrival, suspends included."""
    entries: int = 0
    """Entries of the measurement list that were attested; 0 where none was asked for."""
    pcr10: str = ""
    """PCR 10 after so many, hex."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed body."""

    manifest: bytes
    """The part that the binding covers."""
    node: NodeEvidence | None = None
    """None for a self-report."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A TPM whose keys may be asked: endorsed, enrolled, and challenged."""

    endorsement: "Endorsement"
    ak: "PublicArea"
    enrolled: bool
    """Whether the inventory names this TPM for this node."""

    @property
    def identity(self) -> str:
        """The TPM, as leases and revocations name it."""
        return f"ek:{self.endorsement.name.hex()}"

    @property
    def ak_name(self) -> bytes:
        """Name of the attestation key."""
        return self.ak.name


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The state that the last appraisal proved: a renewal goes on from here.

    A verifier holds one for each node of a fleet, so it has no more than a renewal needs.
    """

    identities: tuple[str, ...]
    """What nobody else may present meanwhile: ``ek:HEX``, ``chip:HEX``, ``device:SERIAL``."""
    expires: datetime
    ak_name: bytes = b""
    clock: "Clock | None" = None
    """Where the TPM stood in its own time; None without a TPM, as all below."""
    registers: bytes = b""
    """PCR 0 to 9, one behind the other."""
    secure_boot: bool | None = None
    """Whether Secure Boot was on; None where no log was asked for."""
    ima: "Progress | None" = None
    """How far the kernel's measurement list was attested."""
    late: "LateProgress | None" = None
    """PCR 11 to 15; None where they are not judged."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One attesting environment, as far as it has proven itself."""

    name: str
    """Of the submodule in the result: ``tpm``, ``sev-snp``, ``gpu-0``."""
    tier: NodeTier
    submodule: Submodule
    identities: tuple[str, ...] = ()
    """See `Lease`."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, as the appraiser sees it."""

    binding: bytes
    """What the hardware must have signed, 32 bytes."""
    node: str
    now: datetime
    expires: datetime
    """When the lease that this appraisal begins will end."""
    ask: Ask
    secret: bytes
    """What only the TPM that holds both keys can find in the challenge's credential."""
    opening: Opening | None
    lease: Lease | None
    """What a renewal goes on from; None when full evidence was asked for."""
    past: tuple[Remembered, ...] = ()
    """Quotes of the same TPM that were accepted, by whatever verifier, before this one was asked
    for: the last one for each boot of a verifier's machine."""
    boot: str = ""
    """Of the verifier's machine, as in `Remembered`; so is `uptime`."""
    uptime: int = 0
    fetch: Fetch | None = None
    """Asks for the parts of a list; None where nobody can be asked."""
