# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""All GPUs and switches of one node: each for itself, then as the one fabric that they must be.

Rules, in order:

1. every device answers this exchange's nonce with a signed report (`report`);
2. it is one of the fleet's, in an accepted mode (`reference`), and of this node where the inventory
   says so;
3. its measurements are the golden ones of its driver and firmware (`firmware`); RIMs come from the
   signed cache;
4. no certificate is revoked, by the answers that the cache holds (`revocation`);
5. together they are all of the node's devices, and name exactly each other (`topology`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Case, Part
from securetrain.evidence.collateral import Collateral, CollateralKind
from securetrain.evidence.gpu.certificates import StatusLookup
from securetrain.evidence.gpu.firmware import Firmware, check_firmware
from securetrain.evidence.gpu.reference import GpuReference, check_reference
from securetrain.evidence.gpu.report import DeviceState, verify_device
from securetrain.evidence.gpu.revocation import CachedStatus
from securetrain.evidence.gpu.rim import RimCache
from securetrain.evidence.gpu.topology import FabricState, check_fabric
from securetrain.evidence.node_evidence import DeviceEvidence, DeviceKind, device_nonce
from securetrain.evidence.result import Submodule, trust_vector
from securetrain.identity import paths
from securetrain.policy.schema import Gpu

ANSWERS_KEPT: Final = timedelta(minutes=1)


@dataclass(slots=True, kw_only=True)
class GpuAppraiser:
    """Judges devices for as long as one edition of the reference values stands."""

    policy: Gpu
    reference: GpuReference
    collateral: Collateral
    certificates: paths.Links = field(default_factory=paths.Links)
    rims: RimCache = field(default_factory=RimCache)
    _status: CachedStatus | None = None

    def appraise(
        self, devices: Sequence[DeviceEvidence], case: Case, enrolled: tuple[str, ...]
    ) -> tuple[Part, ...]:
        """Judge all devices of a node.

        Args:
            devices: what the node sent.
            case: this exchange.
            enrolled: PDIs of the node's devices; empty leaves them open.

        Raises:
            AttestationError: ST-ATTS-012, ST-ATTS-6xx and 7xx.
        """
        nonce = device_nonce(case.binding)
        roots = self.reference.all_roots()
        status = self._status_at(case.now)
        states, parts = [], []
        for number, evidence in enumerate(devices):
            state = verify_device(
                evidence,
                nonce=nonce,
                now=case.now,
                roots=roots,
                status=status,
                cache=self.certificates,
                where=f"{evidence.kind} {number}",
            )
            check_reference(state, self.reference)
            firmware = check_firmware(
                state,
                lambda name: self.collateral.get(CollateralKind.RIM, name, case.now),
                self.rims,
                now=case.now,
                allow_expired=self.policy.allow_expired_rims,
                status=status,
            )
            states.append(state)
            parts.append(_part(number, state, firmware))
        fabric = check_fabric(states, gpus=self.reference.gpus, switches=self.reference.switches)
        self._check_node(states, fabric, case, enrolled)
        return tuple(parts)

    def _status_at(self, now: datetime) -> StatusLookup | None:
        """The source of revocation answers, which are kept for a minute at most."""
        if not self.policy.revocation:
            return None
        held = self._status
        if held is None or not timedelta() <= now - held.now < ANSWERS_KEPT:
            held = self._status = CachedStatus(self.collateral, now)
        return held

    def _check_node(
        self,
        states: Sequence[DeviceState],
        fabric: FabricState,
        case: Case,
        enrolled: tuple[str, ...],
    ) -> None:
        if self.policy.fabric and not fabric.closed:
            raise AttestationError(
                "ST-ATTS-013",
                "the GPUs do not name the switches that they sit behind",
                "node.gpu.fabric",
                "run the node in protected PCIe mode and send its switches' reports too",
            )
        found = {state.pdi for state in states}
        if enrolled and found != set(enrolled):
            raise AttestationError(
                "ST-ATTS-012",
                f"the devices are {', '.join(sorted(found))}, the node has"
                f" {', '.join(sorted(enrolled))}",
                f"node {case.node}: devices",
                "make sure whose devices they are, then run 'securetrain attest enroll'",
            )


def _part(number: int, state: DeviceState, firmware: Firmware) -> Part:
    affirmed = ["hardware", "instance-identity", "executables"]
    if state.kind is DeviceKind.GPU:
        affirmed.append("runtime-opaque")
    return Part(
        name=f"{state.kind}-{number}",
        tier=NodeTier.SELF_ASSERTED,  # a device lifts the tier of the CPU that it belongs to
        submodule=Submodule(
            trust_vector=trust_vector(*affirmed),
            claims={
                "pdi": state.pdi,
                "ueid": state.ueid,
                "chip": state.chip,
                "driver": state.driver,
                "vbios": state.vbios,
                "mode": str(state.mode or ""),
                "measurements": len(firmware.comparison.matched),
                "expired_rims": " ".join(firmware.expired),
                "revocation_checked": state.status_checked,
            },
        ),
        identities=(f"device:{state.pdi}",),
    )
