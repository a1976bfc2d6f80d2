# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Accelerators by name, with the memory and the speeds that their vendors state."""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from securetrain.core.errors import UsageError

GIB: Final = 1 << 30
RESERVED: Final = 3 * GIB // 2
"""CUDA context, NCCL's buffers, cuBLAS's workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Peaks of an accelerator and the machine around it, a second, as vendors state them."""

    bf16: float
    """FLOPs in bfloat16 with sums in float32, without sparsity."""
    fp32: float
    """FLOPs in float32, without tensor cores: torch's default."""
    float8: float | None
    """FLOPs in float8; None where it has none."""
    memory: float
    """Bytes to and from its memory."""
    link: float
    """Bytes to another one of its node, in one direction."""
    network: float
    """Bytes to another node, for each accelerator."""
    kept: float
    """The part of the peak that matrix products keep. Measured, not stated by vendors."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    memory: int
    """Bytes."""
    speed: Speed | None = None
    """None where nothing is known of it."""

    @property
    def budget(self) -> int:
        """Bytes that the allocator may take."""
        return self.memory - RESERVED

    def with_network(self, gigabits: float) -> "Device":
        """The same accelerator behind another network, in 10^9 bits a second."""
        if self.speed is None:
            return self
        return replace(self, speed=replace(self.speed, network=gigabits * 1e9 / 8))


def _device(
    name: str, gigabytes: int, peaks: tuple[float, float, float | None], moves: tuple[int, int, int]
) -> Device:
    """A row of the table: 10^12 FLOPs (bf16, fp32, float8), GB of memory and link, Gb of net."""
    bf16, fp32, float8 = peaks
    memory, link, network = moves
    speed = Speed(
        bf16=bf16 * 1e12,
        fp32=fp32 * 1e12,
        float8=None if float8 is None else float8 * 1e12,
        memory=memory * 1e9,
        link=link * 1e9,
        network=network * 1e9 / 8,
        kept=AMPERE if name.startswith("a100") else HOPPER,
    )
    return Device(name, gigabytes * 10**9, speed)


HOPPER: Final = 0.58
"""Of an H100, fitted to torchtitan's tables of December 2024; assumed of what nobody compared."""
AMPERE: Final = 0.78
"""Of an A100, fitted to one row of llm-foundry's tables (7B, 2,048 positions)."""
DEVICES: Final = MappingProxyType(
    {
        device.name: device
        for device in (
            _device("l4", 24, (121, 30.3, 242), (300, 32, 25)),
            _device("a10", 24, (125, 31.2, None), (600, 32, 25)),
            _device("rtx-4090", 24, (165, 82.6, 330), (1008, 32, 25)),
            _device("a100-40", 40, (312, 19.5, None), (1555, 300, 200)),
            _device("l40s", 48, (362, 91.6, 733), (864, 32, 100)),
            _device("a100-80", 80, (312, 19.5, None), (2039, 300, 200)),
            _device("h100", 80, (989, 67, 1979), (3350, 450, 400)),
            _device("h200", 141, (989, 67, 1979), (4800, 450, 400)),
            _device("b200", 180, (2250, 75, 4500), (8000, 900, 400)),
        )
    }
)
"""NVIDIA's data sheets: memory in 10^9 bytes, FLOPs without sparsity (where a sheet states them
with it, half), a link in one direction (a sheet states both). The SXM variant where there is one.
The network is that of NVIDIA's DGX systems, one adapter a GPU; sheets of PCIe cards state none, and
25 or 100 Gb/s are assumed: `--network` says another.
"""


def device_named(name: str, where: str) -> Device:
    """A device of the table.

    Raises:
        UsageError: ST-USAG-001 with the names that there are.
    """
    if name not in DEVICES:
        fix = f"name one of {', '.join(DEVICES)}; or give --memory in GB"
        raise UsageError("ST-USAG-001", f"unknown device {name!r}", where, fix)
    return DEVICES[name]
