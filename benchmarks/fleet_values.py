# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values of a large fleet: how long they take to load, and what a node costs.

The file of before has every node in it, as small fleets' still do; of 25,000 nodes with eight
values of their own it has about as many bytes as a file may.
``python benchmarks/fleet_values.py FILE KEY NODES`` is the process whose memory is measured.
"""

import gc
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ab import Figure
from securetrain.evidence.inventory import EnrolledNode

ROOT: Final = Path(__file__).resolve().parent.parent
NODES: Final = 100_000
BEFORE: Final = 25_000
SEEN: Final = 5_000
MOST_SECONDS: Final = 3.0
MOST_KILOBYTES: Final = 10.0
_TIMEOUT: Final = 600.0


def load(nodes: int = NODES, before: int = BEFORE) -> Figure:
    """Load a fleet in pages, and one in the file itself; look nodes up."""
    paged, inline = _measured(nodes, inline=False), _measured(before, inline=True)
    return Figure(
        name="attest-values",
        title=f"reference values of {nodes} nodes with 8 own each; before: {before} in one file",
        values={
            "load s": paged["seconds"],
            "load MB": paged["megabytes"],
            "kB a node that joins": paged["kilobytes"],
            "ms a first look-up": paged["look-up"],
            "before: load s": inline["seconds"],
            "before: load MB": inline["megabytes"],
        },
        goal=f"<= {MOST_SECONDS:g} s, <= {MOST_KILOBYTES:g} kB a node",
        goal_met=paged["seconds"] <= MOST_SECONDS and paged["kilobytes"] <= MOST_KILOBYTES,
    )


def _measured(nodes: int, *, inline: bool) -> dict[str, float]:
    from securetrain.attest.fleet.bundle import key_text
    from securetrain.attest.session.reference_file import write_reference_values
    from securetrain.evidence.reference import ReferenceValues, sign_reference_values
    from securetrain.identity.keys import PrivateKey

    key, now = PrivateKey.generate(), datetime.now(UTC)
    values = ReferenceValues(
        version=1,
        issued=now,
        expires=now + timedelta(days=30),
        nodes={_name(number): _node(number) for number in range(nodes)},
    )
    with tempfile.TemporaryDirectory(prefix="values-") as folder:
        path = Path(folder) / "fleet.json"
        if inline:
            path.write_bytes(sign_reference_values(values, key))
        else:
            write_reference_values(path, values, key)
        done = subprocess.run(
            [sys.executable, __file__, str(path), key_text(key.public), str(nodes)],
            check=True,
            timeout=_TIMEOUT,
            capture_output=True,
            cwd=ROOT,
        )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _name(number: int) -> str:
    return f"node-{number:06}"


def _node(number: int) -> EnrolledNode:
    own = [hashlib.sha256(b"%d/%d" % (number, place)).hexdigest() for place in range(9)]
    return EnrolledNode(
        ek_names=(f"000b{own[8]}",), own={"1": tuple(own[:5]), "5": tuple(own[5:8])}
    )


def _loaded(path: Path, key: str, nodes: int) -> dict[str, float]:
    from securetrain.attest.session.reference_file import load_reference_values
    from securetrain.attest.session.state import MemoryState

    gc.collect()
    first, started = _resident(), time.perf_counter()
    found = load_reference_values(path, [key], datetime.now(UTC), MemoryState())
    seconds = time.perf_counter() - started
    gc.collect()
    names = [_name(number) for number in random.Random(18).sample(range(nodes), SEEN)]  # noqa: S311
    second, started = _resident(), time.perf_counter()
    for name in names:
        assert found.values.nodes[name].ek_names
    looked = time.perf_counter() - started
    gc.collect()
    return {
        "seconds": seconds,
        "megabytes": second - first,
        "look-up": looked * 1000 / SEEN,
        "kilobytes": (_resident() - second) * 1000 / SEEN,
    }


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    print(json.dumps(_loaded(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
