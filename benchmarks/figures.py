# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Figures of node attestation that are no pairs: how long an agent takes, how large a verifier is.

``python benchmarks/figures.py NODES`` is the verifier whose memory is measured: a process of its
own, because memory that was once used is seldom given back. The forgers of its nodes live in it
too, one after the other, so what it says is rather too much.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import admission, fleet_values
from benchmarks.ab import Figure

ROOT: Final = Path(__file__).resolve().parent.parent
NODES: Final = 10_000
MOST_MEGABYTES: Final = 100.0
EXCHANGES: Final = 200
MOST_MILLISECONDS: Final = 50.0
_TIMEOUT: Final = 1800.0


def memory(nodes: int = NODES) -> Figure:
    """What a verifier needs when so many nodes hold leases."""
    done = subprocess.run(
        [sys.executable, __file__, str(nodes)],
        check=True,
        timeout=_TIMEOUT,
        capture_output=True,
        cwd=ROOT,
    )
    before, after = json.loads(done.stdout)
    return Figure(
        name="attest-memory",
        title=f"resident memory of a verifier while {nodes} nodes hold leases",
        values={
            "MB": after,
            "MB before the first": before,
            "kB a node": (after - before) * 1000 / nodes,
        },
        goal=f"<= {MOST_MEGABYTES:g} MB",
        goal_met=after <= MOST_MEGABYTES,
    )


def agent(exchanges: int = EXCHANGES) -> Figure | None:
    """How long the TPM's part of evidence takes an agent: load, activate, read, quote."""
    from securetrain.testing.swtpm import missing_commands

    if missing := missing_commands():
        print(f"NO AGENT WAS MEASURED: without {', '.join(missing)}", file=sys.stderr)
        return None
    first, joins, renewals = _exchanges(exchanges)
    cuts = quantiles(joins, n=20, method="inclusive")
    return Figure(
        name="attest-agent",
        title="a join's evidence from a software TPM: keys loaded, activation, registers, quote",
        values={
            "p50 ms": cuts[9],
            "p95 ms": cuts[18],
            "first ms": first,
            "renewal p95 ms": quantiles(renewals, n=20, method="inclusive")[18],
        },
        goal=f"p95 <= {MOST_MILLISECONDS:g} ms",
        goal_met=cuts[18] <= MOST_MILLISECONDS,
    )


def _exchanges(count: int) -> tuple[float, list[float], list[float]]:
    """Milliseconds of the first evidence, of later ones with activation, and without."""
    from securetrain.evidence.tpm.credential import make_credential
    from securetrain.evidence.tpm.structures import parse_public
    from securetrain.identity.keys import KeyKind, PrivateKey
    from securetrain.testing.machine import Machine

    with (
        tempfile.TemporaryDirectory(prefix="agent-") as folder,
        Machine(Path(folder), "node-0") as machine,
    ):
        machine.boot()
        tpm = machine.attester(PrivateKey.generate(KeyKind.P256)).tpm
        assert tpm is not None
        keys = tpm.keys()
        ek, ak = parse_public(keys.ek_public), parse_public(keys.ak_public)

        def timed(*, full: bool) -> float:
            made = make_credential(ek, ak.name, os.urandom(32), os.urandom)
            credential = (made.id_object, made.encrypted_secret) if full else None
            started = time.perf_counter()
            tpm.evidence(os.urandom(32), credential=credential, full=full)
            return (time.perf_counter() - started) * 1000

        first = timed(full=True)
        joins = [timed(full=True) for _ in range(count)]
        return first, joins, [timed(full=False) for _ in range(count)]


def grow(nodes: int) -> tuple[float, float]:
    """Megabytes of this process before and after so many nodes have joined it."""
    from benchmarks.attest import P384
    from benchmarks.fleet import Node, exchange, make_fleet
    from securetrain.evidence.inventory import EnrolledNode
    from securetrain.policy.schema import ImaMode

    fleet = make_fleet(1, P384, ima=ImaMode.ENFORCE)
    nodes_of = fleet.values.nodes
    assert isinstance(nodes_of, dict)
    with fleet.verifier() as verifier:
        exchange(verifier, fleet.nodes)
        before = _resident()
        for number in range(1, nodes + 1):
            node = Node(number, P384)
            nodes_of[node.name] = EnrolledNode(ek_names=(node.ek_name,))
            exchange(verifier, [node])
        gc.collect()
        return before, _resident()


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "attest-agent": agent,
    "fleet-admission": admission.admission,
    "attest-memory": memory,
    "attest-values": fleet_values.load,
}

if __name__ == "__main__":
    print(json.dumps(grow(int(sys.argv[1]))))
