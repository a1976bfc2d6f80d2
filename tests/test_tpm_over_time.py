# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A TPM and its copy are two machines, in whatever order they join; an honest one never is.

Machines and verifiers are simulated in a time of the test's: clocks with a drift, suspends,
reboots, walls that are set. `World` judges real quotes, `judged` is the same rules alone.
"""

import copy
import random
import shutil
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.state import FileState, MemoryState, StateStore
from securetrain.core.errors import AttestationError
from securetrain.evidence.case import Remembered
from securetrain.evidence.tpm.quote import Clock
from securetrain.evidence.tpm_appraiser import check_history
from tests.attest.worlds import Machine, World, node_policy
from tests.evidence.tpm.forge import NOW
from tests.tables import items

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
START = 400 * DAY


@dataclass
class Time:
    """The time that passes, milliseconds; only the test knows it."""

    now: int = START


@dataclass
class Tpm:
    """A TPM's own time."""

    time: Time
    rate: float = 1.0
    clock: float = 5_000_000
    resets: int = 7
    restarts: int = 0
    key: str = "ak"
    since: int = START

    def read(self) -> Clock:
        self.clock += (self.time.now - self.since) * self.rate
        self.since = self.time.now
        return Clock(
            clock=int(self.clock),
            reset_count=self.resets,
            restart_count=self.restarts,
            firmware=1,
        )

    def off(self, passes: int, *, reboot: bool) -> None:
        """Without power for a while: a suspend, or a reboot."""
        self.read()
        self.time.now += passes
        self.since = self.time.now
        self.resets, self.restarts = (
            (self.resets + 1, 0) if reboot else (self.resets, self.restarts + 1)
        )

    def cleared(self) -> None:
        """TPM2_Clear, and a new attestation key."""
        self.clock, self.resets, self.restarts, self.since = 0, 0, 0, self.time.now
        self.key += "'"


@dataclass
class Coordinator:
    """A verifier's machine: its boot, and a wall that people set."""

    time: Time
    name: str
    wall: int = 0
    boot: int = 0
    booted: int = START - DAY

    def restart(self) -> None:
        self.boot, self.booted = self.boot + 1, self.time.now

    def judged(self, tpm: Tpm, state: StateStore) -> None:
        """Judge a quote, and keep it."""
        past = tuple(state.past("ek:00"))
        self.time.now += 400  # the exchange takes its time
        clock = tpm.read()
        self.time.now += 300
        now = NOW + timedelta(milliseconds=self.time.now + self.wall)
        boot, uptime = f"{self.name} {self.boot}", self.time.now - self.booted
        case: Any = SimpleNamespace(past=past, boot=boot, uptime=uptime, now=now)
        check_history(clock, tpm.key, case)
        told = Remembered(
            ek_name="ek:00",
            ak_name=tpm.key,
            node="node-0",
            clock=clock.clock,
            reset_count=clock.reset_count,
            restart_count=clock.restart_count,
            firmware=1,
            seen=now.isoformat(),
            boot=boot,
            uptime=uptime,
        )
        state.remember(told)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "wait", "wait", "suspend", "reboot", "wall", "coordinator", "other"]
        ),
        st.integers(0, DAY) | st.integers(0, 10 * MINUTE),
        st.booleans(),
    ),
    max_size=24,
)


@given(events=EVENTS, rate=st.floats(0.86, 1.14))
@settings(max_examples=80, deadline=None)
def test_an_honest_machine_is_one(events, rate):
    time = Time()
    tpm, state = Tpm(time, rate=rate), MemoryState()
    coordinators = [Coordinator(time, "a"), Coordinator(time, "b", wall=-DAY)]
    for kind, amount, back in events:
        chosen = coordinators[back]
        match kind:
            case "wait":
                time.now += amount
            case "suspend" | "reboot":
                tpm.off(amount, reboot=kind == "reboot")
            case "wall":
                chosen.wall += -amount if back else amount
            case "coordinator":
                chosen.restart()
            case _:
                chosen = coordinators[not back]
        chosen.judged(tpm, state)


def test_a_thousand_honest_events_of_one_machine_are_one():
    """NTP steps of a day in both directions among them."""
    drawn = random.Random(32)
    time = Time()
    tpm, state = Tpm(time, rate=1.14), MemoryState()
    coordinators = [Coordinator(time, "a"), Coordinator(time, "b")]
    for _ in range(1000):
        one = drawn.choice(coordinators)
        happens = drawn.randrange(5)
        if happens < 2:
            tpm.off(drawn.randrange(DAY), reboot=happens == 1)
        elif happens == 2:
            one.wall += drawn.choice([-DAY, DAY, drawn.randrange(-DAY, DAY)])
        elif happens == 3:
            one.restart()
        time.now += drawn.randrange(DAY)
        one.judged(tpm, state)


def test_a_cleared_tpm_is_told_apart_from_a_copy():
    """Its counts go back as a copy's do, and it has another attestation key."""
    time = Time()
    tpm, state = Tpm(time), MemoryState()
    coordinator = Coordinator(time, "a")
    coordinator.judged(tpm, state)
    tpm.cleared()
    with pytest.raises(AttestationError, match="ST-ATTS-117"):
        coordinator.judged(tpm, state)


# Two machines.


def copied(machine: Machine, *, boot: bool) -> Machine:
    """The copy: of the TPM's file, which is started then, or of all that it holds in memory."""
    other = copy.copy(machine)
    other.tpm = copy.copy(machine.tpm)
    other.tpm.pcrs = dict(machine.tpm.pcrs)
    other.measured = list(machine.measured)
    if boot:
        other.boot()
    return other


class Pair:
    """An original, its copy, and verifiers whose machines keep the time of the test."""

    def __init__(self, drawn: random.Random, *, boot: bool, state: StateStore) -> None:
        self.drawn, self.state = drawn, state
        self.original = Machine()
        self.copy = copied(self.original, boot=boot)
        # What was not in memory was off for as long as the file lay there.
        self.copy.clock -= drawn.randrange(20 * MINUTE, DAY)
        self.original.clock += DAY
        self.copy.clock += DAY
        self.worlds = [World(self.original, state=state, job=f"job-{n}") for n in range(2)]
        for world, name in zip(self.worlds, ("a", "b"), strict=True):
            world.boot = name

    def joins(self, order: str) -> None:
        """Ten joins, O and C, at either coordinator; one is restarted now and then."""
        for letter in order:
            passes = self.drawn.randrange(MINUTE, 10 * MINUTE)
            for machine in (self.original, self.copy):
                machine.clock += passes
            for world in self.worlds:
                world.seconds += passes / 1000
                world.now += timedelta(milliseconds=passes)
            world = self.drawn.choice(self.worlds)
            if self.drawn.random() < 0.2:
                world.restart()
            world.verifier.release("node-0")
            world.join(self.original if letter == "O" else self.copy)


def orders(count: int = 20) -> list[str]:
    """Orders of ten joins in which the original comes again after its copy, and the copy before."""
    drawn = random.Random(477)
    found: list[str] = []
    while len(found) < count:
        order = "".join(drawn.choices("OC", k=10))
        if "CO" in order:
            found.append(order)
    return found


@pytest.mark.forgery
@pytest.mark.parametrize("boot", [False, True], ids=["in-memory", "started"])
def test_original_and_copy_are_named_in_whatever_order(boot):
    for number, order in enumerate(orders()):
        state = MemoryState()
        pair = Pair(random.Random(number), boot=boot, state=state)
        with pytest.raises(AttestationError) as refusal:
            pair.joins(order)
        assert refusal.value.code == "ST-ATTS-121", order
        assert "as node-0 at 2026" in refusal.value.what
        held = {entry.subject: entry.reason for entry in state.revocations()}
        assert set(held) == {"node:node-0", f"ek:{pair.original.ek_name}"}
        assert all(reason.startswith("ST-ATTS-121: now reset") for reason in held.values())
        for world in pair.worlds:  # neither gets in until a person decides
            for machine in (pair.original, pair.copy):
                world.refused("ST-ATTS-010", machine)


@pytest.mark.forgery
def test_without_the_rules_the_copy_comes_and_goes(monkeypatch):
    """The control: at most the plain order of clocks is left, and the faster one is never told."""
    monkeypatch.setattr("securetrain.evidence.tpm_appraiser.check_history", lambda *_: None)
    for number, order in enumerate(orders(3)):
        state = MemoryState()
        Pair(random.Random(number), boot=False, state=state).joins(order)
        assert state.revocations() == []


@pytest.mark.forgery
def test_two_coordinators_and_a_restart_of_both_share_what_they_saw(tmp_path):
    """The database is the fleet's: a verifier that has heard of one machine alone hears of two."""
    original = Machine()
    other = copied(original, boot=True)
    with (
        closing(FleetState(tmp_path, "a.example")) as one,
        closing(FleetState(tmp_path, "a.example")) as two,
    ):
        World(original, state=one).join()
        World(original, state=two).join(other)
        World(original, state=one).refused("ST-ATTS-121")
    with closing(FleetState(tmp_path, "a.example")) as again:
        world = World(original, state=again)
        world.refused("ST-ATTS-010", other)
        assert [entry.subject.split(":")[0] for entry in again.revocations()] == ["ek", "node"]
        for entry in again.revocations():
            assert again.restore(entry.subject)  # a person has decided
        world.join()
        again._heard_until = -1.0
        world.verifier.release("node-0")
        world.join(other)
        World(original, state=again).refused("ST-ATTS-121")


@pytest.mark.forgery
def test_a_database_that_is_full_or_cut_lets_nobody_in_and_forgets_no_copy(tmp_path):
    original = Machine()
    other = copied(original, boot=True)
    path = tmp_path / "state.sqlite"
    with closing(FileState(path)) as state:
        world = World(original, state=state)
        world.join()
        world.verifier.release("node-0")
        world.join(other)
    with closing(FileState(path)) as state:
        state._db.execute("PRAGMA query_only=1")  # as a full disk answers
        world = World(original, state=state)
        world.refused("ST-ATTS-015", other)
        world.refused("ST-ATTS-015")
        assert world.verifier._unkept, "it counts before it can be written"
        state._db.execute("PRAGMA query_only=0")
        world.refused("ST-ATTS-010", other)
    shutil.copy(path, tmp_path / "cut.sqlite")
    with (tmp_path / "cut.sqlite").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(AttestationError, match="ST-ATTS-015"):
        World(original, state=FileState(tmp_path / "cut.sqlite")).join(other)


# What the kernels have measured.


@pytest.mark.forgery
@items(
    "id, first, then",
    ("another-file", ["/bin/a"], ["/bin/b", "/bin/c"]),
    ("shorter", ["/bin/a", "/bin/b"], ["/bin/a"]),
    ("same-length", ["/bin/a"], ["/bin/b"]),
)
def test_copies_that_were_started_together_differ_in_what_they_run(first, then):
    """No clock tells them apart: they have the same counts, and the same time."""
    original = Machine()
    other = copied(original, boot=False)
    state = MemoryState()
    world = World(original, state=state, policy=logged())
    for path in first:
        original.execute(path, path.encode())
    for path in then:
        other.execute(path, path.encode())
    world.join()
    other.clock = original.clock
    world.verifier.release("node-0")
    assert "before" in world.refused("ST-ATTS-121", other).what
    assert len(state.revocations()) == 2


def test_a_list_that_grows_is_one_machine_at_joins_and_renewals_of_two_coordinators():
    machine, state = Machine(), MemoryState()
    worlds = [World(machine, state=state, policy=logged(), job=f"job-{n}") for n in range(2)]
    for number in range(6):
        machine.execute(f"/bin/{number}", b"x")
        worlds[number % 2].join()
    machine.boot()
    for world in worlds:
        world.verifier.release("node-0")
        world.join()


@pytest.mark.forgery
def test_a_copy_that_renews_at_another_coordinator_is_told_by_its_list():
    original = Machine()
    other = copied(original, boot=False)
    state = MemoryState()
    first, second = (
        World(original, state=state, policy=logged(), job=f"job-{n}") for n in range(2)
    )
    first.join()
    other.clock = original.clock
    second.join(other)
    original.execute("/bin/a", b"a")
    other.execute("/bin/b", b"b")
    other.execute("/bin/c", b"c")
    original.clock = other.clock
    first.join()
    other.clock = original.clock
    second.refused("ST-ATTS-121", other)


def logged():
    return node_policy(tpm={"ima": "log"})
