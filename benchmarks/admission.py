# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A fleet that comes in an afternoon: from nothing to a thousand machines that are signed for.

One command of the operator's, ``securetrain fleet admit --csv``, with a rule that signs; the
machines are simulated, each with a TPM of its own that is forged in software, and come over TLS to
the real listener, some at a time. ``python -m benchmarks.admission NODES`` prints the figure.
"""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.ab import Figure
from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.token import FleetToken, parse_fleet_token
from securetrain.attest.session.reference_file import read_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.member.fleet_entry import prove_to_fleet
from tests.attest.worlds import MAKER_CA, Collector, Machine
from tests.evidence.tpm.forge import Tpm

NODES: Final = 1000
MOST_SECONDS: Final = 300.0
AT_ONCE: Final = 16
_TIMEOUT: Final = 3600.0
_P256, _P384 = "H-2", "H-3"


def admission(nodes: int = NODES) -> Figure:
    """Admit so many machines with one command; what is timed begins with it."""
    with tempfile.TemporaryDirectory(prefix="admission-") as folder:
        seconds, desk, enrolled = _admitted(Path(folder), nodes)
    return Figure(
        name="fleet-admission",
        title=f"one command until {nodes} machines have proven themselves and are signed for",
        values={
            "s": seconds,
            "CPU s of the desk": desk,
            "enrolled": enrolled,
            "machines a CPU s of the desk": enrolled / desk,
        },
        goal=f"<= {MOST_SECONDS:g} s for {NODES}, all enrolled",
        goal_met=seconds <= MOST_SECONDS and enrolled == nodes,
    )


def _admitted(folder: Path, nodes: int) -> tuple[float, float, int]:
    """Seconds, the desk's processor seconds, and how many were enrolled."""
    machines = [Machine(f"node-{n}", tpm=Tpm(_P384 if n % 3 == 0 else _P256)) for n in range(nodes)]
    (folder / "maker.pem").write_text(MAKER_CA.pem)
    lines = (f"{machine.name},image-{n % 2}" for n, machine in enumerate(machines))
    (folder / "nodes.csv").write_text("\n".join(("node,group", *lines)) + "\n")
    command = (
        *(sys.executable, "-m", "securetrain", "fleet", "admit", "--csv", "nodes.csv"),
        *("--out", "tokens.csv", "--root", "maker.pem", "--listen", "127.0.0.1:0"),
        *("--reference-values", "fleet.json", "--key", "operator.pem", "--auto-sign", "first"),
    )
    started = time.monotonic()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "SECURETRAIN_STATE": str(folder / "state")},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            tokens = _tokens(folder / "tokens.csv", process)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(_come, tokens, machines))
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
    seconds = time.monotonic() - started
    if process.returncode:
        raise RuntimeError((folder / "said").read_text()[-2000:])
    signed_by = key_text(PrivateKey.load(folder / "operator.pem").public)
    found = read_reference_values(folder / "fleet.json", [signed_by], MemoryState())
    return seconds, usage.ru_utime + usage.ru_stime, len(found.values.nodes)


def _tokens(path: Path, process: "subprocess.Popen[bytes]") -> list[FleetToken]:
    deadline = time.monotonic() + _TIMEOUT
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the command made no tokens")
        time.sleep(0.05)
    rows = path.read_text().splitlines()[1:]
    return [parse_fleet_token(row.split(",")[-1]) for row in rows]


def _come(token: FleetToken, machine: Machine) -> None:
    prove_to_fleet(token, Collector(machine), machine.key, clock=lambda: datetime.now(UTC))


if __name__ == "__main__":
    print(admission(int(sys.argv[1]) if len(sys.argv) > 1 else NODES))
