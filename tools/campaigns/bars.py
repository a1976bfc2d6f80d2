# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Coordinators of one machine that are killed at a random moment while they bar nodes.

One to three write into the fleet's folder at once: bars, clocks of TPMs, accepted editions. All are
killed (SIGKILL), up to three times in a row. Rules: the folder opens; whoever was told to be barred
is; no clock that was told, and no edition, has gone back; the next coordinator can bar somebody;
the database alone, put back to what it was before, is refused.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.state import Revocation, Seen
from securetrain.core.errors import AttestationError
from securetrain.evidence import Remembered
from tools.campaigns import Campaign, Missed

DOMAIN: Final = "securetrain.local"
_LONGEST: Final = 0.25
_PATIENCE: Final = 60.0


@dataclass(slots=True)
class Told:
    """What the coordinators had been answered before they were killed."""

    barred: set[str] = field(default_factory=set)
    clocks: dict[str, int] = field(default_factory=dict)
    editions: dict[str, int] = field(default_factory=dict)

    def hear(self, line: str) -> None:
        """Take one line."""
        kind, name, number = line.split()
        match kind:
            case "bar":
                self.barred.add(name)
            case "clock":
                self.clocks[name] = max(int(number), self.clocks.get(name, 0))
            case _:
                self.editions[name] = max(int(number), self.editions.get(name, 0))


def _work(folder: Path, name: str, seed: int, out: int) -> None:
    """Be a coordinator, for as long as it is let; a line follows each answer."""
    rng = random.Random(seed)  # noqa: S311 - the cases of a test are no secret
    state = FleetState(folder, DOMAIN)
    os.write(out, f"edition reference-values:{name} {_accept(state, name, 1)}\n".encode())
    for number in range(1, 10_000):
        match rng.randrange(4):
            case 0:
                said = f"clock {name} {_remember(state, name, number)}"
            case 1:
                said = f"edition reference-values:{name} {_accept(state, name, number)}"
            case _:
                subject = rng.choice([f"node:{DOMAIN}/{name}-{number}", f"ek:{number:064x}"])
                state.revoke(Revocation(subject=subject, reason="it lied", since="then"))
                said = f"bar {subject} 0"
        os.write(out, f"{said}\n".encode())


def _accept(state: FleetState, name: str, version: int) -> int:
    seen = Seen(document=f"reference-values:{name}", version=version, digest=f"{version:064x}")
    return state.accept(seen).version


def _remember(state: FleetState, name: str, clock: int) -> int:
    state.remember(
        Remembered(
            ek_name=name,
            ak_name="",
            node=name,
            clock=clock,
            reset_count=1,
            restart_count=0,
            firmware=1,
            seen="then",
        )
    )
    return clock


def _start(folder: Path, name: str, seed: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _work(folder, name, seed, writer)
        finally:
            os._exit(1)
    os.close(writer)
    return pid, reader


def _lines(reader: int) -> Iterator[str]:
    """The whole lines of a coordinator that has ended; a pipe holds more than it writes by then."""
    data = b""
    while piece := os.read(reader, 1 << 16):
        data += piece
    os.close(reader)
    yield from data[: data.rfind(b"\n") + 1].decode().splitlines()


def case(rng: random.Random, folder: Path) -> str:
    """Kill up to three coordinators at once, up to three times."""
    place, told, most = folder / "fleet", Told(), 0
    times = rng.randrange(1, 4)
    for turn in range(times):
        before = folder / f"before-{turn}"
        if place.exists():
            shutil.copytree(place, before)
        count = rng.randrange(1, 4)
        most = max(most, count)
        started = [
            _start(place, f"c{turn}-{number}", rng.randrange(1 << 30)) for number in range(count)
        ]
        time.sleep(rng.uniform(0, _LONGEST))
        for pid, _ in started:
            os.kill(pid, signal.SIGKILL)
        for pid, reader in started:
            ended = os.waitpid(pid, 0)[1]
            if not os.WIFSIGNALED(ended):
                raise Missed(f"a coordinator ended by itself in turn {turn}")
            for line in _lines(reader):
                told.hear(line)
        _check(place, told, turn)
        if before.exists():
            _put_back(place, before, folder / f"mixed-{turn}")
    return f"{most} at once" if told.barred else "before the first bar"


def _check(place: Path, told: Told, turn: int) -> None:
    try:
        with closing(FleetState(place, DOMAIN)) as state:
            barred = {entry.subject for entry in state.revocations()}
            clocks = {entry.ek_name: entry.clock for entry in state.clocks()}
            if lost := told.barred - barred:
                raise Missed(f"{len(lost)} bars are lost: {min(lost)}")
            for name, clock in told.clocks.items():
                if clocks.get(name, -1) < clock:
                    raise Missed(f"the clock of {name} went back")
            for document, version in told.editions.items():
                asked = Seen(document=document, version=1, digest="0" * 64)
                if state.accept(asked).version < version:
                    raise Missed(f"an older edition of {document} would be accepted")
            state.revoke(Revocation(subject=f"node:{DOMAIN}/after-{turn}", reason="x", since="y"))
    except AttestationError as error:
        raise Missed(
            f"the folder cannot be used after a kill: {error.code}: {error.what}"
        ) from error


def _put_back(place: Path, before: Path, mixed: Path) -> None:
    """The database of before in the folder of now."""
    shutil.copytree(place, mixed)
    for path in mixed.glob("state.sqlite*"):
        path.unlink()
    if not (before / "state.sqlite").exists():
        return
    for path in before.glob("state.sqlite*"):
        shutil.copy2(path, mixed / path.name)
    try:
        FleetState(mixed, DOMAIN).close()
    except AttestationError as error:
        if error.code != "ST-ATTS-017":
            raise Missed(f"a database that was put back is {error.code}") from error
        return
    raise Missed("a database that was put back is not noticed")


CAMPAIGN: Final = Campaign(
    title="coordinators that are killed while they bar nodes", count=50, case=case
)
