# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Throughput that others measured, in tokens a second and GPU.

Fitted: torchtitan's tables of December 2024, row for row those of `published`. Their H100 has
2.4 TB/s and 500 W, and a peak "between SXM and NVL": the NVL's 835 TFLOP/s are taken.

Held out: ``asyncTP_llama3_h100_2025-06_torchtitan.md`` without float8 row by row (its authors call
it slow for a known reason), ``llama3-8b_h200_202506_trainy-whitefiber.md``, and some rows of
github.com/mosaicml/llm-foundry, ``scripts/train/benchmarking/README.md``, of H100 and A100 (MPT,
whose two matrices of 4 x dim count as three of 8/3; kernels of 2023). An A100's share of its peak
was chosen with those in sight.
"""

from dataclasses import dataclass, replace

from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import Recompute
from securetrain.train.models.shape import ModelShape
from securetrain.train.planning.devices import DEVICES, Device, Speed
from tests.train.planning.published import B8, B405, EACH, FULL, TABLES, Published


def speed_of(name: str) -> Speed:
    """A speed that the table has."""
    speed = DEVICES[name].speed
    assert speed is not None
    return speed


TITAN = Device("500 W", 96 * 10**9, replace(speed_of("h100"), bf16=835e12, memory=2.4e12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One line of a table."""

    job: Published
    tokens: float
    """A second and GPU."""
    device: Device = TITAN
    compile: bool = True
    float8: bool = True
    async_tp: bool = False

    @property
    def seconds(self) -> float:
        """Of a step."""
        job = self.job
        rows = job.rows * job.microbatches * job.degrees.dp
        return rows * job.length / job.degrees.world / self.tokens


_TOKENS = (
    5762, 6667, 8532, 3890, 2540, 1071, 548, 5605, 6514, 8380, 829, 876, 100, 128, 76, 47, 31, 16
)  # fmt: skip
FITTED = tuple(
    Throughput(
        job=job,
        tokens=tokens,
        compile="eager" not in job.name,
        float8="eager" not in job.name and "compiled" not in job.name,
        async_tp="async" in job.name or job.shape is B405,
    )
    for job, tokens in zip(TABLES, _TOKENS, strict=True)
)
_B70 = next(job for job in TABLES if job.name == "table 4")
_THIN = Published(
    name="8B, tp 8", gib=0, shape=B8, degrees=Degrees(dp_shard=8, tp=8), rows=12, recompute=EACH
)


def _asynchronous(job: Published, *tokens: float) -> tuple[Throughput, ...]:
    """Without and with asynchronous TP, in bfloat16 and in float8."""
    kinds = ((False, False), (False, True), (True, False), (True, True))
    return tuple(
        Throughput(job=job, tokens=n, float8=float8, async_tp=async_tp)
        for n, (float8, async_tp) in zip(tokens, kinds, strict=True)
    )


def _h200(ranks: int, tokens: float) -> Throughput:
    job = Published(
        name=f"H200, {ranks}", gib=0, shape=B8, degrees=Degrees(dp_shard=ranks), rows=2,
        recompute=EACH,
    )  # fmt: skip
    return Throughput(job=job, tokens=tokens, device=DEVICES["h200"])


def _foundry(
    device: str, sizes: tuple[int, int, int], cut: tuple[int, int, int, int], tokens: float,
    recompute: Recompute = Recompute.NONE,
) -> Throughput:  # fmt: skip
    """Rows, positions, ranks and microbatches are one tuple."""
    rows, length, ranks, pieces = cut
    dim, layers, heads = sizes
    shape = ModelShape(
        dim=dim, layers=layers, heads=heads, ffn=dim * 8 // 3, vocab=50432, tied=True
    )
    job = Published(
        name=f"{device}, {dim} x {layers}, {length} on {ranks}", gib=0, shape=shape,
        degrees=Degrees(dp_shard=ranks), rows=rows, length=length, recompute=recompute,
        microbatches=pieces,
    )  # fmt: skip
    return Throughput(job=job, tokens=tokens, device=DEVICES[device], compile=False, float8=False)


B1, B3, B7, MPT70 = (2048, 24, 16), (2560, 32, 20), (4096, 32, 32), (8192, 80, 64)
HELD_OUT = (
    *_asynchronous(_B70, 597.3, 652.4, 809.8, 942.4),
    *_asynchronous(_THIN, 4378, 4809.4, 5078.1, 5570.1),
    _h200(32, 10938),
    _h200(64, 10753),
    _foundry("h100", B1, (14, 2048, 8, 1), 45455),
    _foundry("h100", B3, (3, 8192, 8, 6), 16578),
    _foundry("h100", B7, (6, 2048, 8, 1), 10643),
    _foundry("h100", B7, (6, 2048, 512, 1), 9670),
    _foundry("h100", B7, (8, 8192, 8, 2), 6935, FULL),
    _foundry("h100", MPT70, (8, 2048, 64, 4), 1039, FULL),
    _foundry("h100", MPT70, (8, 2048, 512, 1), 1007, FULL),
    _foundry("a100-80", B1, (14, 2048, 8, 4), 20513),
    _foundry("a100-80", B7, (8, 8192, 8, 2), 3206, FULL),
    _foundry("a100-80", MPT70, (8, 2048, 64, 4), 410, FULL),
    _foundry("a100-80", B7, (1, 65536, 8, 2), 1013, FULL),
)
MISSED = _foundry("h100", B7, (1, 65536, 8, 2), 1956, FULL)
"""Estimated a third too short: 65,536 positions on an H100 with an attention kernel of 2023."""
