# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's measurement list of one node, whole or in parts, as the policy wants it judged."""

import hashlib
from datetime import datetime
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.case import Case
from securetrain.evidence.node_evidence import ImaParts, TpmEvidence
from securetrain.evidence.tpm.ima import ImaState, TemplateCache, appraise_ima
from securetrain.evidence.tpm.ima_parts import Segment, appraise_parts
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.evidence.tpm.quote import Quote
from securetrain.evidence.tpm.runtime_policy import ImaReference, RuntimePolicies, RuntimePolicy
from securetrain.policy.schema import ImaMode, Tpm

IMA_PCR: Final = 10


class ImaAppraiser:
    """Judges lists for as long as one edition of the reference values stands."""

    def __init__(self, policy: Tpm, ima: ImaReference, documents: dict[str, bytes]) -> None:
        """Compile what is pinned.

        Args:
            policy: what is asked of a TPM.
            ima: which files may be measured.
            documents: runtime policies that `ima` names by SHA-256.

        Raises:
            AttestationError: ST-ATTS-320 to 326.
        """
        self._mode = policy.ima
        self._templates = TemplateCache()
        self._violations = Violations(ima.violations, allow=policy.allow_ima_violations)
        self._runtime: RuntimePolicy | None = None
        self._with_former: RuntimePolicy | None = None
        self._former_until = ima.former.until if ima.former is not None else None
        if policy.ima is ImaMode.ENFORCE:
            compiled = RuntimePolicies()
            self._runtime = compiled.get(ima, documents)
            self._with_former = compiled.with_former(ima, documents)

    def appraise(
        self,
        evidence: TpmEvidence,
        case: Case,
        quote: Quote,
        registers: bytes,
        *,
        watch: int = 0,
    ) -> ImaState | None:
        """Judge what the kernel measured; None where the policy does not ask.

        Args:
            evidence: with the list, or its announcement.
            case: the exchange.
            quote: verified.
            registers: PCR 0 to 9, one behind the other.
            watch: the entry after which PCR 10 is told, too.

        Raises:
            AttestationError: ST-ATTS-001 for a list in both forms, 013, 301 to 314; and what the
                exchange's `fetch` raises.
        """
        if self._mode is ImaMode.OFF:
            return None
        boot_aggregate = hashlib.sha256(registers).digest()
        start = case.lease.ima if case.lease is not None else None
        policy = self._runtime_at(case.now)
        if evidence.ima_parts is not None:
            fetch = case.fetch
            if evidence.ima is not None:
                raise AttestationError(
                    "ST-ATTS-001", "a list as a whole and in parts", "node.tpm.ima_parts"
                )
            if fetch is None:
                raise _unasked(evidence.ima_parts)
            return appraise_parts(
                evidence.ima_parts,
                fetch,
                pcr10=quote.pcrs[IMA_PCR],
                boot_aggregate=boot_aggregate,
                policy=policy,
                segment=Segment(start, watch),
                violations=self._violations,
                cache=self._templates,
            )
        if evidence.ima is None:
            raise AttestationError(
                "ST-ATTS-013",
                "the kernel's measurement list is missing",
                "node.tpm.ima",
                "let the node read it (root, securityfs), or do not ask for it in the policy",
            )
        return appraise_ima(
            evidence.ima,
            pcr10=quote.pcrs[IMA_PCR],
            boot_aggregate=boot_aggregate,
            policy=policy,
            start=start,
            violations=self._violations,
            cache=self._templates,
            watch=watch,
        )

    def _runtime_at(self, now: datetime) -> RuntimePolicy | None:
        """The runtime policy, with the one before it until its day."""
        if self._former_until is not None and now < self._former_until:
            return self._with_former
        return self._runtime


def _unasked(announced: ImaParts) -> AttestationError:
    return AttestationError(
        "ST-ATTS-013",
        f"the kernel's measurement list ({announced.size} bytes) was only announced, and nobody"
        " can be asked for it here",
        "node.tpm.ima_parts",
        "let the node join a job, where its list is asked for in parts",
    )
