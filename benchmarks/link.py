# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the tunnel costs a collective: all-reduce by Gloo on a link of 1 Gb/s, overlay and plain.

Two hosts, and on each host two processes: one in the host's network, one in the job network that
goes over the same link. A sample is a block of all-reduces by one pair of processes, while the
other pair waits. Both ranks, both WireGuard engines and the bridge share this machine's cores.

`rates` tells what of the difference is the tunnel's and what is these cores': on a slower link they
are not what is waited for.

``python benchmarks/link.py [--pairs N] [--calls N]`` runs both sizes, and that.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab, nodes
from benchmarks.joinparts import engine_seconds
from securetrain.network.addresses import DEVICE as TUNNEL_DEVICE
from securetrain.network.process_identity import running
from securetrain.network.wireguard_go import PROGRAM
from securetrain.testing.cluster import DEVICE

RENDEZVOUS_PORT: Final = 29500
RATES: Final = ("100mbit", "300mbit", "1gbit")
TIMES: Final = 5
CALLS: Final = 2
LEAST: Final = 0.85


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
        with _connected(self.size) as (_, pairs):
            return [_seconds(pairs[side].do(self.calls)) for side in order]


@contextmanager
def _connected(
    size: int,
) -> Iterator[tuple[list[nodes.Node], dict[ab.Side, nodes.Ranks]]]:
    """Two hosts, and a pair of ranks on each side that have talked to each other."""
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
                    [(place, (n, device, host, size)) for n, place in enumerate(places)],
                )
            )
            for side, (device, host, places) in meetings.items()
        }
        for side in ab.Side:
            pairs[side].do(1)  # connections, handshakes
        yield network, pairs


def _seconds(answers: Sequence[Any]) -> float:
    return float(max(seconds for seconds, _ in answers))


def rates(
    tried: Sequence[str] = RATES, size: int = 16 << 20, times: int = TIMES
) -> ab.Figure | None:
    """What a tunnel costs on links of several speeds, and the processor time of a gigabyte."""
    if nodes.lacking():
        return None
    values: dict[str, float] = {}
    spent = {"plain": 0.0, "overlay": 0.0, "overlay's engines": 0.0}
    with _connected(size) as (network, pairs):
        for rate in tried:
            for node in network:
                nodes.shape(node.host, rate)
            ratios = []
            for _ in range(times):
                plain = pairs[ab.Side.PLAIN].do(CALLS)
                engines = _engines(network)
                ours = pairs[ab.Side.OURS].do(CALLS)
                spent["overlay's engines"] += _engines(network) - engines
                spent["plain"] += sum(cpu for _, cpu in plain)
                spent["overlay"] += sum(cpu for _, cpu in ours)
                ratios.append(_seconds(plain) / _seconds(ours))
            values[f"{rate}: plain/overlay"] = median(ratios)
    # Each rank of two sends as many bytes as the tensor has.
    carried = 2 * size * CALLS * times * len(tried) / 1e9
    values |= {f"cpu s a GB, {what}": cpu / carried for what, cpu in spent.items()}
    return ab.Figure(
        name="link-rates",
        title=f"all-reduces of {_text(size)}, plain and overlay, {os.cpu_count()} cores for all",
        values=values,
        goal=f"plain/overlay >= {LEAST} where the link is slower than the cores",
        goal_met=max(values[f"{rate}: plain/overlay"] for rate in tried) >= LEAST,
    )


def _engines(network: Sequence[nodes.Node]) -> float:
    """Processor seconds of the engines so far."""
    found = 0.0
    for node in network:
        for pid in running(PROGRAM, node.overlay.names.device):
            found += engine_seconds(pid)
    return found


def _text(size: int) -> str:
    return f"{size >> 20}MB" if size >= 1 << 20 else f"{size >> 10}KB"


def _serve(pipe: Any, rank: int, device: str, host: str, size: int) -> None:
    """A rank: every order is a number of all-reduces, every answer the seconds they took."""
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
        started, spent = time.perf_counter(), time.process_time()
        for _ in range(calls):
            dist.all_reduce(tensor)
        pipe.send((time.perf_counter() - started, time.process_time() - spent))


def _benchmarks(large: int = 3, small: int = 200) -> tuple[ab.Benchmark, ...]:
    if why := nodes.lacking():
        print(f"THE JOB NETWORK IS NOT MEASURED: {'; '.join(why)}", file=sys.stderr)
        return ()
    return (
        AllReduce(size=4 << 10, calls=small, goal=ab.Goal(ratio=1.5)),
        AllReduce(size=16 << 20, calls=large, goal=ab.Goal(ratio=1 / 0.85)),
    )


BENCHMARKS: Final[tuple[ab.Benchmark, ...]] = _benchmarks()
FIGURES: Final[dict[str, Callable[[], ab.Figure | None]]] = {"link-rates": rates}


def main(argv: Sequence[str] | None = None) -> int:
    """Run both sizes and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3, help="of 16 MB; of 4 KB a hundred times")
    options = parser.parse_args(argv)
    ab.clean_up_when_terminated()
    rng = random.Random(0)  # noqa: S311 - the order of samples is no secret
    chosen = _benchmarks(options.calls, 100 * options.calls)
    print(ab.table([ab.measure(benchmark, options.pairs, rng) for benchmark in chosen]))
    print(rates() if chosen else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
