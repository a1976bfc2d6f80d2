# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whose the time is that nodes take to join with WireGuard (`benchmarks.join`).

The processor time of a node's process, of the system's tools that it runs and of its engine, beside
the seconds that as many engines take to start without anything else of ours.

``python benchmarks/joinparts.py [NODES]`` says it.
"""

import argparse
import os
import resource
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab
from benchmarks.join import (
    LIMIT_SECONDS,
    Call,
    Place,
    coordinator,
    folder_in_memory,
    node_name,
    nothing_left,
    ours,
    together,
)
from securetrain.network.addresses import Names
from securetrain.network.engines import missing_here
from securetrain.network.namespace import Namespace
from securetrain.network.process_identity import running
from securetrain.network.wireguard_go import PROGRAM, WireGuardGo
from securetrain.testing.cluster import NamespaceCluster


def parts(nodes: int) -> ab.Figure | None:
    """Whose the time is that nodes take to join with WireGuard."""
    if missing_here():
        return None
    with ExitStack() as stack:
        folder = folder_in_memory(stack)
        cluster = stack.enter_context(NamespaceCluster.up(nodes, switched=True))
        places = [Place(host.name, str(host.address)) for host in cluster.hosts]
        job = f"join-{secrets.token_hex(4)}"
        with nothing_left(folder), coordinator(folder, job, nodes, "", places[0]) as meeting:
            calls = [
                Call(_timed, (folder, job, n, nodes, meeting, "", place.address), place.namespace)
                for n, place in enumerate(places)
            ]
            whole = together(calls, LIMIT_SECONDS)
        with nothing_left(folder):
            alone = together(
                [Call(_engine_alone, (folder, n), p.namespace) for n, p in enumerate(places)],
                LIMIT_SECONDS,
            )
        found = [msgspec.json.decode(file.read_bytes()) for file in folder.glob("parts-*")]
    mean = [1000 * sum(part) / len(found) for part in zip(*found, strict=True)]
    return ab.Figure(
        name=f"join-parts-{nodes}",
        title=f"{nodes} nodes join with WireGuard: whose the processor time of a node is",
        values={
            "s": whole,
            "s of starting as many engines alone": alone,
            "ms of its process": mean[0],
            "ms of ip, nft and others": mean[1],
            "ms of its engine": mean[2],
            "s of all on all cores": sum(mean) * nodes / 1000 / (os.cpu_count() or 1),
        },
        goal="none: it says whose the time is",
        goal_met=True,
    )


def _timed(folder: Path, job: str, number: int, *arguments: Any) -> Callable[[], None]:
    """`ours`, and what it cost: this process, what it waited for, its engine."""

    def spent(who: int) -> float:
        used = resource.getrusage(who)
        return used.ru_utime + used.ru_stime

    before = [spent(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    leave = ours(folder, job, number, *arguments)
    after = [spent(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    took = [late - early for late, early in zip(after, before, strict=True)]
    took.append(
        sum(
            engine_seconds(pid) for pid in running(PROGRAM, Names.of(job, node_name(number)).device)
        )
    )
    (folder / f"parts-{number}").write_bytes(msgspec.json.encode(took))
    return leave


def engine_seconds(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _engine_alone(folder: Path, number: int) -> Callable[[], None]:
    """An engine that can be configured, and nothing else."""
    place = folder / f"alone-{number}"
    place.mkdir()
    device = WireGuardGo().start(Namespace(), "stalone", place)
    device.wait_ready()
    return device.close


FIGURES: Final[dict[str, Callable[[], ab.Figure | None]]] = {
    f"join-parts-{nodes}": partial(parts, nodes) for nodes in (8, 64)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("nodes", nargs="?", type=int, default=8)
    options = parser.parse_args(argv)
    ab.clean_up_when_terminated()
    print(parts(options.nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
