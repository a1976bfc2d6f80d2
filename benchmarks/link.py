# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the tunnel costs a collective: all-reduce by Gloo on a link of 1 Gb/s, overlay and plain.

Two hosts, and on each host two processes: one in the host's network, one in the job network that
goes over the same link. A sample is a block of all-reduces by one pair of processes, while the
other pair waits. Both ranks, both WireGuard engines and the bridge share this machine's cores.

``python benchmarks/link.py [--pairs N] [--calls N]`` runs both sizes.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab, nodes
from securetrain.network.addresses import DEVICE as TUNNEL_DEVICE
from securetrain.testing.cluster import DEVICE

RENDEZVOUS_PORT: Final = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Seconds for a block of all-reduces."""

    size: int
    """Bytes."""
    calls: int
    goal: ab.Goal
    pairs: int = 9

    @property
    def name(self) -> str:
        """Short name."""
        return f"all-reduce-{_text(self.size)}"

    @property
    def title(self) -> str:
        """What is compared."""
        return (
            f"{self.calls} all-reduces of {_text(self.size)} over the job network against the"
            f" plain link, two nodes, {nodes.RATE}"
        )

    def run(self, order: Sequence[ab.Side]) -> list[float]:
        """Take one block for each entry."""
        with ExitStack() as stack:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="link-")))
            hosts = stack.enter_context(nodes.two_hosts())
            network = stack.enter_context(nodes.job_network(hosts, state))
            meetings = {
                ab.Side.PLAIN: (DEVICE, str(hosts[0].address), [h.name for h in hosts]),
                ab.Side.OURS: (
                    TUNNEL_DEVICE,
                    network[0].address,
                    [node.overlay.namespace.name for node in network],
                ),
            }
            pairs = {
                side: stack.enter_context(
                    nodes.ranks(
                        _serve,
                        [(place, (n, device, host, self.size)) for n, place in enumerate(places)],
                    )
                )
                for side, (device, host, places) in meetings.items()
            }
            for side in ab.Side:
                pairs[side].do(1)  # connections, handshakes
            return [max(pairs[side].do(self.calls)) for side in order]


def _text(size: int) -> str:
    return f"{size >> 20}MB" if size >= 1 << 20 else f"{size >> 10}KB"


def _serve(pipe: Any, rank: int, device: str, host: str, size: int) -> None:
    """A rank: every order is a number of all-reduces, every answer the seconds they took."""
    import os

    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = device
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{host}:{RENDEZVOUS_PORT}", rank=rank, world_size=2
    )
    tensor = torch.ones(size // 4)
    while True:
        calls = pipe.recv()
        dist.barrier()
        started = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(tensor)
        pipe.send(time.perf_counter() - started)


def _benchmarks(large: int = 3, small: int = 200) -> tuple[ab.Benchmark, ...]:
    if why := nodes.lacking():
        print(f"THE JOB NETWORK IS NOT MEASURED: {'; '.join(why)}", file=sys.stderr)
        return ()
    return (
        AllReduce(size=4 << 10, calls=small, goal=ab.Goal(ratio=1.5)),
        AllReduce(size=16 << 20, calls=large, goal=ab.Goal(ratio=1 / 0.85)),
    )


BENCHMARKS: Final[tuple[ab.Benchmark, ...]] = _benchmarks()


def main(argv: Sequence[str] | None = None) -> int:
    """Run both sizes and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3, help="of 16 MB; of 4 KB a hundred times")
    options = parser.parse_args(argv)
    rng = random.Random(0)  # noqa: S311 - the order of samples is no secret
    chosen = _benchmarks(options.calls, 100 * options.calls)
    print(ab.table([ab.measure(benchmark, options.pairs, rng) for benchmark in chosen]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
