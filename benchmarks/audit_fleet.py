# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit of many nodes: its processor seconds and its memory, whole.

The facts are this machine's own, under as many names; the catalogue is repeated under other ids up
to the number of checks. Judging runs in a process of its own, so that its memory can be measured.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ab import Figure
from securetrain.audit.documents.stored import read_facts
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.catalogue import load_checks
from securetrain.audit.engine.check import Check
from securetrain.audit.subjects.node.collect.node import collect_node
from securetrain.policy.load import load_policy

NODES: Final = 1000
CHECKS: Final = 200
SECONDS: Final = 15
MEGABYTES: Final = 200


def fleet() -> Figure:
    """Facts of a thousand nodes, judged from their files."""
    with tempfile.TemporaryDirectory(prefix="audit-fleet-") as folder:
        facts = collect_node(os.environ, now=datetime.now(UTC))
        for number in range(NODES):
            about = msgspec.structs.replace(facts.collected, hostname=f"node-{number:04}")
            data = msgspec.structs.replace(facts, collected=about).to_json()
            (Path(folder) / f"{number:04}.json").write_bytes(data)
        command = [sys.executable, __file__, folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return Figure(
        name="audit-fleet",
        title=f"{NODES} nodes by {CHECKS} checks, facts of {len(data) >> 10} KB each",
        values=found,
        goal=f"<= {SECONDS} s of CPU, <= {MEGABYTES} MB",
        goal_met=found["CPU s"] <= SECONDS and found["MB"] <= MEGABYTES,
    )


def repeated(checks: list[Check], number: int) -> list[Check]:
    """As many checks, under ids of their own."""
    found = []
    for at in range(number):
        check = checks[at % len(checks)]
        name = f"ST-X{at // len(checks):02}-{at % len(checks):03}"
        found.append(replace(check, spec=msgspec.structs.replace(check.spec, id=name)))
    return found


def _judge(folder: Path) -> None:
    checks = repeated([check for check in load_checks() if check.kind == "node"], CHECKS)
    facts = read_facts(folder, unsigned=True)
    result = audit(facts, checks, load_policy("baseline").policy, datetime.now(UTC))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "CPU s": used.ru_utime + used.ru_stime,
                "MB": _peak(),
                "findings": len(result.findings),
            }
        )
    )


def _peak() -> float:
    """The most memory of this process; rusage would also count what its parent had before exec."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {"audit-fleet": fleet}

if __name__ == "__main__":
    _judge(Path(sys.argv[1]))
