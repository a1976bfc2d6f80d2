# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The interface to whoever keeps what the coordinator signs and judges (`chain.keeper`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cryptography import x509

from securetrain.evidence import AttestationKeys, AttestationResult, Binding, Evidence
from securetrain.rendezvous.wire.membership import Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything that a node showed, and that it was judged on."""

    evidence: Evidence
    binding: Binding
    keys: AttestationKeys | None
    secret: bytes
    """Of the credential that its TPM opened; empty without one, and on a renewal."""
    documents: tuple[bytes, ...] = ()
    """The signed reference values that were in force, and the documents that they name."""


class Keep(Protocol):
    """Keeps evidence. What cannot be kept is refused: every call may raise a refusal."""

    def credential(self, job: str, certificates: Sequence[x509.Certificate]) -> None:
        """The coordinator has a certificate: its own, and the job CA's."""

    def result(self, token: str, result: AttestationResult, shown: Shown) -> None:
        """A result was signed, and nobody has heard of it."""

    def membership(self, signed: str, membership: Membership) -> None:
        """A membership was signed, and nobody has heard of it."""


class KeepNothing:
    """Keeps nothing, for programs that keep no run."""

    def credential(self, job: str, certificates: Sequence[x509.Certificate]) -> None:
        """See `Keep`."""

    def result(self, token: str, result: AttestationResult, shown: Shown) -> None:
        """See `Keep`."""

    def membership(self, signed: str, membership: Membership) -> None:
        """See `Keep`."""
