# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The appraiser of one media type, and the one for evidence that nothing stands behind."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Protocol

import msgspec

from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Case, Claims, Lease, Opening
from securetrain.evidence.node_evidence import AttestationKeys
from securetrain.evidence.result import Submodule, trust_vector
from securetrain.evidence.selfreport import SELF_ASSERTED_TYPE, parse_software


class Appraisal(msgspec.Struct, frozen=True, kw_only=True):
    """An appraiser's verdict on a body."""

    tier: NodeTier
    submods: dict[str, Submodule]
    lease: Lease | None = None
    """What a renewal will be compared with; None where nothing can be renewed."""


class Appraiser(Protocol):
    """Judges the bodies of one media type."""

    def open(self, keys: AttestationKeys, node: str, now: datetime) -> Opening | None:
        """Look at the keys of Hello before anything is asked.

        Raises:
            AttestationError: the keys are not of a TPM that may join as this node.
        """

    def credential(
        self, opening: Opening, secret: bytes, random: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        """`secret` for the TPM alone: TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET."""

    def read(self, body: bytes) -> Claims:
        """Parse a body; nothing is judged yet.

        Raises:
            AttestationError: ST-ATTS-001.
        """

    def appraise(self, claims: Claims, case: Case) -> Appraisal:
        """The tier that the roots behind this evidence prove; the binding was compared before.

        Raises:
            AttestationError: naming the register, log entry or field that was refused.
        """

    @property
    def reference_values(self) -> str:
        """SHA-256 (hex) of the reference values that it judges by; empty without."""

    @property
    def documents(self) -> tuple[bytes, ...]:
        """The signed reference values, and the documents that they name; empty without."""


class SoftwareAppraiser:
    """Software evidence proves nothing: the lowest tier of a real node, every claim 'none'."""

    reference_values = ""
    documents: tuple[bytes, ...] = ()

    def open(self, keys: AttestationKeys, node: str, now: datetime) -> None:
        """There is nothing to look at."""

    def credential(
        self, opening: Opening, secret: bytes, random: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        """Never asked for: nothing was opened."""
        raise NotImplementedError

    def read(self, body: bytes) -> Claims:
        """Parse a self-report."""
        parse_software(body)
        return Claims(manifest=body)

    def appraise(self, claims: Claims, case: Case) -> Appraisal:  # noqa: ARG002 - an Appraiser
        """The lowest tier."""
        return Appraisal(
            tier=NodeTier.SELF_ASSERTED,
            submods={"self-report": Submodule(trust_vector=trust_vector())},
        )


APPRAISERS: Final[Mapping[str, Appraiser]] = {SELF_ASSERTED_TYPE: SoftwareAppraiser()}
"""What a verifier without reference values can judge."""
