# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-RDZ-PICKLE.

Plain: a stock ``torchrun`` with the c10d backend; the attack succeeds when the marker holds the
agent's process id. Hardened: the same attacker, with the same bytes, goes for every port that
``securetrain run`` and its workers listen on. It is refused when the coordinator closed the
connection and wrote ST-ADMN-002 into the run's ledger, no marker exists, and the job ended well.
"""

import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from securetrain.core import RunDir
from securetrain.core.vocabulary import Boundary
from securetrain.drills import jobs
from securetrain.drills.ledgers import refusals
from securetrain.drills.pickles import marked_by
from securetrain.drills.process_tree import (
    Listener,
    descendants,
    end_of,
    listeners,
    wait_until,
)
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.tcpstore_client import Attack, attack_store

CODE: Final = DRILLS["D-RDZ-PICKLE"].expected_code
_START: Final = 60.0
_REACT: Final = 10.0

# The job: it needs no torch, says that it runs, and ends well once it is told to.
_SLEEPER: Final = """\
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
parent = os.getppid()
(here / "running").touch()
for _ in range(1200):
    if (here / "release").exists():
        (here / "done").touch()
        sys.exit(0)
    if os.getppid() != parent:
        sys.exit(1)
    time.sleep(0.05)
sys.exit(1)
"""


def plain(workdir: Path) -> Outcome:
    """Attack a stock torchrun."""
    job, port = jobs.Script(workdir, _SLEEPER), _free_port()
    marker = job.folder / "marker"
    command = job.plain(
        *("torch.distributed.run", "--nnodes", "1:2"),
        *("--rdzv-backend", "c10d", "--rdzv-id", uuid.uuid4().hex),
        *("--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "last_call_timeout=1"),
    )
    with jobs.launch(*command) as agent:
        attack = Attack(port=port)

        def overwritten() -> bool:
            # Only when the state exists: an attacker polls, as one would from outside.
            nonlocal attack
            if agent.poll() is None:
                attack = attack_store(port, marker)
            return bool(attack.overwritten)

        wait_until(overwritten, _START)
        wait_until(lambda: agent.pid in marked_by(marker), _REACT)
    hit = agent.pid in marked_by(marker)
    evidence = (
        f"One unauthenticated connection to port {port} listed the store's keys"
        f" ({', '.join(attack.keys) or 'none'}) and overwrote"
        f" {', '.join(attack.overwritten) or 'nothing'}."
    )
    if hit:
        evidence += f" The torchrun agent (pid {agent.pid}) unpickled it and ran the payload."
    else:
        evidence += f" The agent ran nothing. Last answer: {attack.error or attack.answer!r}."
    return Outcome.of_plain(hit, evidence)


def hardened(workdir: Path) -> Outcome:
    """Attack the same job under `securetrain run`."""
    job = jobs.Script(workdir, _SLEEPER)
    work, run_dir, marker = job.folder, job.run_dir, job.folder / "marker"
    with jobs.launch(*job.hardened()) as launcher:
        running = wait_until(
            lambda: (work / "running").exists() or launcher.poll() is not None, _START
        )
        exposed_listeners = listeners(descendants(launcher.pid)) if running else []
        attacks = [
            attack_store(listener.port, marker, run_id=run_dir.root.name)
            for listener in exposed_listeners
        ]

        def recorded() -> bool:
            return any(e.code == CODE for e in refusals(run_dir, Boundary.RENDEZVOUS))

        wait_until(recorded, _REACT)
        (work / "release").touch()
        code = end_of(launcher, _START)
    ended_well = code == 0 and (work / "done").exists()
    return _judge(run_dir, exposed_listeners, attacks, marked_by(marker), ended_well=ended_well)


def _judge(
    run_dir: RunDir,
    exposed_listeners: list[Listener],
    attacks: list[Attack],
    marked: list[int],
    *,
    ended_well: bool,
) -> Outcome:
    refused_there = refusals(run_dir, Boundary.RENDEZVOUS)
    codes = Counter(event.code for event in refused_there)
    closed = [a.port for a in attacks if a.connected and not a.spoke_store]
    stores = [a.port for a in attacks if a.spoke_store]
    exposed = [listener.port for listener in exposed_listeners if not listener.loopback]
    refused = bool(closed) and codes[CODE] > 0 and not (marked or exposed) and ended_well
    said = ", ".join(f"{code} x{count}" for code, count in codes.items()) or "nothing"
    store = (
        f"The workers' store (port {_ports(stores)}) took the value as any store does, but no"
        " rendezvous state lives there and nobody unpickles it."
        if stores
        else "No port of the job answered as an open store."
    )
    evidence = (
        f"The same bytes went to every port that the job listens on ({len(attacks)}; reachable from"
        f" other machines: {_ports(exposed)})."
        f" The coordinator (port {_ports(closed)}) speaks only TLS 1.3 with certificates of the"
        f" job: it closed the connection, and the run's ledger says {said}."
        f" {store} Processes that ran the payload: {marked or 'none'}."
        f" The job {'ended well' if ended_well else 'did not end well'}."
    )
    code = CODE if codes[CODE] else next(iter(codes), "")
    return Outcome.of_hardened(bool(marked), refused, code, evidence)


def _ports(ports: list[int]) -> str:
    return ", ".join(map(str, ports)) or "none"


def _free_port() -> int:
    """A port that nobody has, and that the kernel gives to nobody while torchrun starts."""
    import random  # noqa: PLC0415 - one use, as the next
    import socket  # noqa: PLC0415

    for port in random.SystemRandom().sample(
        range(20_000, 32_000), 100
    ):  # below Linux's ephemeral ports
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("100 ports were tried, and all are in use")
