# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The inventory from the devices of a node that a person vouches for.

Rules:

1. nothing is learned from a report that is not genuine, or not made for this very bundle;
2. the devices are closed as a fabric, where they are one;
3. the devices of a node are learned all together, with their number. A fleet's nodes have one
   number of GPUs and one of switches;
4. firmware is not learned: RIMs say what it must be, when the node joins.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.evidence import DeviceEvidence, DeviceKind
from securetrain.evidence.gpu import NVIDIA_DEVICE_ROOTS, GpuReference, check_fabric, verify_device


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedDevices:
    """The devices of one node."""

    gpus: tuple[str, ...]
    """PDIs."""
    switches: tuple[str, ...]

    @property
    def pdis(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.gpus, *self.switches)


def learn_devices(
    devices: Sequence[DeviceEvidence],
    *,
    nonce: bytes,
    now: datetime,
    roots: Collection[str] = NVIDIA_DEVICE_ROOTS,
) -> LearnedDevices:
    """Take over the devices of a node.

    Args:
        devices: what the node sent.
        nonce: what they were asked with.
        now: the time of the check, timezone-aware.
        roots: SHA-256 of the SubjectPublicKeyInfo of every accepted root.

    Raises:
        AttestationError: ST-ATTS-601 to 619, 624, 631 to 637.
    """
    states = [
        verify_device(one, nonce=nonce, now=now, roots=roots, where=f"{one.kind} {number}")
        for number, one in enumerate(devices)
    ]
    kinds = [state.kind for state in states]
    fabric = check_fabric(
        states, gpus=kinds.count(DeviceKind.GPU), switches=kinds.count(DeviceKind.SWITCH)
    )
    return LearnedDevices(gpus=fabric.gpus, switches=fabric.switches)


def merge_devices(old: GpuReference, learned: LearnedDevices) -> GpuReference:
    """Reference values that accept these devices too.

    Raises:
        AttestationError: ST-ATTS-632 when the fleet's nodes have another number of devices.
    """
    numbers = len(learned.gpus), len(learned.switches)
    known = old.gpus, old.switches
    if old.devices and numbers != known:
        raise AttestationError(
            "ST-ATTS-632",
            f"it has {numbers[0]} GPUs and {numbers[1]} switches, the fleet's nodes have"
            f" {known[0]} and {known[1]}",
            "gpu.gpus, gpu.switches",
            "keep reference values of their own for nodes of another kind",
        )
    return msgspec.structs.replace(
        old,
        devices=tuple(dict.fromkeys((*old.devices, *learned.pdis))),
        gpus=numbers[0],
        switches=numbers[1],
    )
