# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Accelerators by name, with the memory that their vendors state."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from securetrain.core.errors import UsageError

GIB: Final = 1 << 30
RESERVED: Final = 3 * GIB // 2
"""CUDA context, NCCL's buffers, cuBLAS's workspace."""
USABLE: Final = 0.95
"""The rest is lost to fragments of the caching allocator."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    memory: int
    """Bytes."""

    @property
    def budget(self) -> int:
        """Bytes that tensors may take."""
        return int((self.memory - RESERVED) * USABLE)


DEVICES: Final = MappingProxyType(
    {
        name: Device(name, gigabytes * 10**9)
        for name, gigabytes in (
            ("l4", 24),
            ("a10", 24),
            ("rtx-4090", 24),
            ("a100-40", 40),
            ("l40s", 48),
            ("a100-80", 80),
            ("h100", 80),
            ("h200", 141),
            ("b200", 180),
        )
    }
)
"""NVIDIA's data sheets, in 10^9 bytes."""


def device_named(name: str, where: str) -> Device:
    """A device of the table.

    Raises:
        UsageError: ST-USAG-001 with the names that there are.
    """
    if name not in DEVICES:
        fix = f"name one of {', '.join(DEVICES)}; or give --memory in GB"
        raise UsageError("ST-USAG-001", f"unknown device {name!r}", where, fix)
    return DEVICES[name]
