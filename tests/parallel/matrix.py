# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parity matrix: every form of parallelism, alone and composed. Each row must give the loss and
the gradient norm of one process.
"""

from securetrain.parallel.plan import ContextKind
from securetrain.parallel.schedule import Schedule
from tests.parallel.curves import Case

BY_DATA = (
    Case("ddp", 2, "{dp_replicate: 2}"),
    Case("ddp, accumulated", 2, "{dp_replicate: 2, microbatches: 2}"),
    Case("fsdp", 2, "{dp_shard: 2}"),
    Case("zero-1", 2, "{zero: 1, microbatches: 2}"),
    Case("zero-2", 2, "{zero: 2, microbatches: 2}"),
    Case("zero-3, accumulated", 2, "{zero: 3, microbatches: 2}"),
    Case("fsdp, offloaded", 2, "{cpu_offload: true}"),
    Case("hsdp 2x2", 4, "{dp_replicate: 2, dp_shard: 2}"),
)
BY_TENSOR = (
    Case("tp", 2, "{tp: 2}"),
    Case("fsdp x tp", 4, "{dp_shard: 2, tp: 2}"),
    Case("replicas x tp", 4, "{dp_replicate: 2, tp: 2}"),
    Case("hsdp x tp", 8, "{dp_replicate: 2, dp_shard: 2, tp: 2}"),
)
BY_STAGE = (
    *(Case(f"pp, {s}", 2, f"{{pp: 2, schedule: {s}}}") for s in Schedule),
    Case("pp 4", 4, "{pp: 4, microbatches: 4}"),
    Case("pp x tp", 4, "{pp: 2, tp: 2}"),
    Case("pp x fsdp", 4, "{pp: 2, dp_shard: 2}"),
    Case(
        "pp x fsdp, reduced each", 4, "{pp: 2, dp_shard: 2, reduce_each_microbatch: true}"
    ),
    Case("pp x replicas", 4, "{pp: 2, dp_replicate: 2, schedule: LoopedBFS, microbatches: 2}"),
    Case("pp x fsdp x tp", 8, "{pp: 2, dp_shard: 2, tp: 2}"),
    Case(
        "pp x fsdp x tp, ZBV", 8, "{pp: 2, dp_shard: 2, tp: 2, schedule: ZBVZeroBubble}"
    ),
)  # fmt: skip
BY_CONTEXT = (
    *(Case(f"cp, {kind}", 2, f"{{cp: 2, context: {kind}}}") for kind in ContextKind),
    Case("cp 4, ring", 4, "{cp: 4, context: ring}"),
    Case("cp x tp, ring", 4, "{cp: 2, tp: 2, context: ring}"),
    Case("fsdp x cp", 4, "{dp_shard: 2, cp: 2}"),
    Case("replicas x cp, ulysses", 4, "{dp_replicate: 2, cp: 2, context: ulysses}"),
    Case("pp x cp, ring", 4, "{pp: 2, cp: 2, context: ring}"),
    Case("fsdp x cp x tp", 8, "{dp_shard: 2, cp: 2, tp: 2}"),
    Case("pp x cp x tp, ring", 8, "{pp: 2, cp: 2, tp: 2, context: ring}"),
)
SPARSE = (
    "{dim: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 32, experts: 4, experts_per_token: 2,"
    " expert_balance: 0.05}"
)
"""The bias moves fast enough to change choices within the steps of a curve."""
BY_EXPERT = tuple(
    Case(name, ranks, parallel, SPARSE)
    for name, ranks, parallel in (
        ("moe x replicas", 2, "{dp_replicate: 2}"),
        ("moe x tp", 2, "{tp: 2}"),
        ("moe x pp", 2, "{pp: 2}"),
        ("ep", 2, "{dp_shard: 2, ep: 2}"),
        ("ep x tp, one mesh", 2, "{tp: 2, ep: 2}"),
        ("ep 2 x fsdp", 4, "{dp_shard: 4, ep: 2}"),
        ("ep x hsdp", 4, "{dp_replicate: 2, dp_shard: 2, ep: 2}"),
        ("ep 4 over fsdp x cp", 4, "{dp_shard: 2, cp: 2, ep: 4}"),
        ("pp x fsdp x ep", 4, "{pp: 2, dp_shard: 2, ep: 2}"),
        ("ep over fsdp, x tp", 4, "{dp_shard: 2, tp: 2, ep: 2}"),
        ("ep 4 over fsdp x tp", 8, "{dp_shard: 4, tp: 2, ep: 4}"),
        ("pp x ep 4 over fsdp x tp", 8, "{pp: 2, dp_shard: 2, tp: 2, ep: 4, microbatches: 2}"),
    )
)
FULL, SELECTIVE = "compute: {recompute: full}", "compute: {recompute: selective}"
BY_COMPUTE = (
    Case("ddp, float16 messages", 2, "{dp_replicate: 2, compression: fp16}"),
    Case("fsdp, recompute", 2, "{dp_shard: 2}", extra=FULL),
    Case("tp, recompute", 2, "{tp: 2}", extra=SELECTIVE),
    Case("pp, recompute", 2, "{pp: 2, schedule: ZBVZeroBubble}", extra=FULL),
    Case("ep x tp, recompute", 2, "{tp: 2, ep: 2}", SPARSE, SELECTIVE),
    Case("pp x fsdp x cp, recompute", 8, "{pp: 2, dp_shard: 2, cp: 2}", extra=SELECTIVE),
)
COMPILED = "compute: {compile: true}"
MANY = (
    Case("four dimensions", 16, "{pp: 2, dp_shard: 2, cp: 2, tp: 2}"),
    Case("four dimensions, ring", 16, "{pp: 2, dp_shard: 2, cp: 2, tp: 2, context: ring}"),
    Case("and experts", 16, "{pp: 2, dp_shard: 2, cp: 2, tp: 2, ep: 4}", SPARSE),
    Case("cp, compiled", 2, "{cp: 2, context: ring}", extra=COMPILED),
    Case("ep, compiled", 2, "{dp_shard: 2, ep: 2}", SPARSE, COMPILED),
    Case("ep x tp, compiled", 2, "{tp: 2, ep: 2}", SPARSE, COMPILED),
    Case("fsdp 4", 4, "{dp_shard: 4}"),
    Case("cp 4, all-gather", 4, "{cp: 4}"),
    Case("ddp, recompute", 2, "{dp_replicate: 2, microbatches: 2}", extra=SELECTIVE),
    Case("cp, recompute", 2, "{cp: 2, context: ring}", extra=FULL),
    Case("pp x tp, recompute", 4, "{pp: 2, tp: 2}", extra=FULL),
    Case("hsdp, recompute", 4, "{dp_replicate: 2, dp_shard: 2}", extra=SELECTIVE),
    Case("ep, recompute", 2, "{dp_shard: 2, ep: 2}", SPARSE, FULL),
)
"""Too many processes, too long, or wider and paired kin of a row above, for every day."""
EVERY_DAY = frozenset(
    (
        *("ddp, accumulated", "fsdp", "zero-2", "fsdp, offloaded", "hsdp 2x2", "tp", "fsdp x tp"),
        *("pp, Interleaved1F1B", "pp, ZBVZeroBubble", "pp x fsdp", "cp, ring", "pp x cp, ring"),
        *("fsdp x cp", "moe x pp", "ep", "ep x tp, one mesh", "ep x hsdp", "fsdp, recompute"),
    )
)
"""What `make test` runs: each axis alone and each pair of axes that share code; `make test-slow`
runs every row."""
MATRIX = (*BY_DATA, *BY_TENSOR, *BY_STAGE, *BY_CONTEXT, *BY_EXPERT, *BY_COMPUTE)
