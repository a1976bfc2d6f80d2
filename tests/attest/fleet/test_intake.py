# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rules that sign: what would change for any other machine waits for a person."""

import contextlib
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from securetrain.attest.fleet import intake, lessons
from securetrain.attest.fleet.desk import Desk
from securetrain.attest.fleet.enrollment import enroll
from securetrain.attest.fleet.intake import CurrentValues, Rule
from securetrain.attest.fleet.lessons import IDENTITIES, enrollment_of, lesson
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.state import MemoryState
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence import ImageGroup
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.fleet.worlds import ROOTS
from tests.attest.worlds import Machine
from tests.evidence.test_late_exchange import CHANGES, LINE, UkiBoot, UkiMachine
from tests.evidence.tpm.forge import NOW
from tests.vocabulary import changed


def come(office, *machines, group="image"):
    for machine in machines:
        office.prove(office.token(machine.name, group=group), machine)


def first(office, machine, group="image"):
    """The first boot of a group."""
    come(office, machine, group=group)
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert taken.held == ()
    return taken.edition.values


@pytest.mark.forgery
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("group", ["", "image"])
@pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=["image", "line", "keys"])
def test_a_machine_that_differs_in_its_late_registers_alone(office, rule, group, change):
    """The attack: a rule took another kernel image, command line or owner's key for the group's.

    The control: without the comparison it is signed, and every machine may boot it from then on.
    """
    before = first(office, UkiMachine("node-1"), group)
    odd = UkiMachine("node-2")
    odd.boot(UkiBoot(**change))
    come(office, odd, group=group)
    (proven,) = office.desk.waiting()
    plain = enroll(before, [enrollment_of(proven)], roots=ROOTS, now=NOW).values
    assert plain.group(group).late != before.group(group).late
    assert plain.group(group).boot == before.group(group).boot
    taken = office.intake.sign_by_rule(office.desk, rule)
    assert taken.edition is None
    (held,) = taken.held
    assert "it boots what its image group does not: late." in held.why
    assert office.intake.current() == before
    come(office, UkiMachine("node-3"), group=group)
    taken = office.intake.sign_by_rule(office.desk, rule)
    assert [one.name for one in taken.edition.nodes] == ["node-3"]
    assert taken.edition.values.group(group) == before.group(group)


@pytest.mark.forgery
def test_the_first_machines_of_a_group_differ_in_their_late_registers(office):
    odd = UkiMachine("node-2")
    odd.boot(UkiBoot(line=LINE + " init=/bin/sh"))
    come(office, UkiMachine("node-1"), odd)
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert taken.edition is None
    assert [one.proven.node for one in taken.held] == ["node-1", "node-2"]
    assert all("differ in late.words.12" in one.why for one in taken.held)


def teaching(field, value):
    """An enrolling code that learns one thing more, as that of a new kind of evidence would."""

    def learns(values, enrollments, **how):
        made = enroll(values, enrollments, **how)
        values = msgspec.structs.replace(made.values, **{field: value(made.values)})
        return dataclasses.replace(made, values=values)

    return learns


def of_fleet(values):
    return msgspec.structs.replace(values.snp, measurements=("ab" * 48,))


def identities(values):
    return msgspec.structs.replace(values.snp, chip_ids=("ab" * 64,))


def test_what_every_group_would_accept_is_no_rules_to_sign(office, monkeypatch):
    """The firmware of CPUs and guests is one list for the fleet."""
    values = first(office, Machine("node-1"))
    come(office, Machine("node-2"), group="other")
    come(office, Machine("node-3"))
    monkeypatch.setattr(lessons, "enroll", teaching("snp", of_fleet))
    taken = office.intake.sign_by_rule(office.desk, Rule.SAME)
    assert {one.proven.node: one.why.split(":")[0] for one in taken.held} == {
        "node-2": "the image group has no boot yet",
        "node-3": "it boots what its image group does not",
    }
    good, held = sorted_out(office, values)
    assert [one.node for one in good] == ["node-2", "node-3"], "the fleet had no such list yet"
    known = changed(values, snp={"measurements": ("cd" * 48,)})
    good, held = sorted_out(office, known)
    assert good == []
    assert [one.why.split(":")[0] for one in held] == [
        "it adds to what every image group accepts",
        "it boots what its image group does not",
    ]


def test_the_first_machine_of_all_may_teach_the_fleet(office, monkeypatch):
    """Nothing was accepted before: no rule can add to it."""
    come(office, Machine("node-1"))
    monkeypatch.setattr(lessons, "enroll", teaching("snp", of_fleet))
    (proven,) = office.desk.waiting()
    assert lesson(None, proven, ROOTS, NOW).of_fleet
    good, held = sorted_out(office, None)
    assert ([one.node for one in good], held) == (["node-1"], [])


@pytest.mark.parametrize("group", ["", "image"])
def test_a_machine_whose_late_registers_teach_nothing(office, group, monkeypatch):
    """It does as its group, of which nobody has said anything either."""
    values = first(office, Machine("node-1"), group)

    def unjudged(values):
        bare: dict[str, object] = {"late": None}
        if group:
            bare = {"groups": {group: msgspec.structs.replace(values.groups[group], **bare)}}
        return msgspec.structs.replace(values, **bare)

    come(office, Machine("node-2"), group=group)
    (proven,) = office.desk.waiting()
    real = enroll
    monkeypatch.setattr(
        lessons,
        "enroll",
        lambda *args, **how: dataclasses.replace(
            made := real(*args, **how), values=unjudged(made.values)
        ),
    )
    assert lesson(unjudged(values), proven, ROOTS, NOW).adds == {}


# Several operators, and a state that goes away.


@pytest.fixture
def operator(office, tmp_path):
    """An operator with a desk, a state and an intake of their own, over the same folders."""
    with contextlib.ExitStack() as stack:

        def operator():
            state = stack.enter_context(contextlib.closing(FleetState(tmp_path / "fleet")))
            desk = stack.enter_context(contextlib.closing(Desk(office.desk.folder, state)))
            return desk, dataclasses.replace(office.intake, state=state)

        yield operator


def test_two_operators_who_sign_at_the_same_time(office, operator):
    """Each takes other machines; every edition goes on from the one before, and none is lost."""
    machines = [Machine(f"node-{n}") for n in range(6)]
    come(office, *machines)
    both = [operator(), operator()]
    begin = threading.Barrier(2, timeout=60)

    def sign(number):
        desk, intake = both[number]
        begin.wait()
        for machine in machines[number::2]:
            assert intake.sign(desk, desk.waiting([machine.name])).held == ()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sign, range(2)))
    desk, intake = both[0]
    values = intake.current()
    assert set(values.nodes) == {machine.name for machine in machines}
    assert values.version == len(machines)
    assert desk.waiting() == []
    enrolled = [
        one.body.event.details["version"]
        for one in desk.decisions()
        if one.body.event.event == "machine-enrolled"
    ]
    assert sorted(enrolled) == list(range(1, 7))


def test_two_operators_who_sign_the_same_machine(office, operator):
    """It is enrolled once or twice into the same place, and waits no more."""
    come(office, Machine("node-1"))
    both = [operator(), operator()]
    begin = threading.Barrier(2, timeout=60)

    def sign(one):
        desk, intake = one
        waiting = desk.waiting()
        begin.wait()
        return intake.sign(desk, waiting).held

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(sign, both)) == [(), ()]
    desk, intake = both[0]
    assert list(intake.current().nodes) == ["node-1"]
    assert desk.waiting() == []


@pytest.mark.parametrize("call", range(1, 5))
def test_a_state_that_vanishes_while_it_is_signed(office, operator, monkeypatch, call):
    """At any of the times at which it is asked: signing again loses nothing and doubles nothing."""
    come(office, Machine("node-1"))
    desk, intake = operator()
    assert intake.sign(desk, desk.waiting()).edition.values.version == 1
    come(office, Machine("node-2"))
    office.desk.close()
    desk, intake = operator()
    waiting = desk.waiting()
    real, calls = FleetState.accept, []

    def gone(state, given):
        calls.append(given)
        if len(calls) >= call:
            raise AttestationError("ST-ATTS-015", "no server", state.place)
        return real(state, given)

    with monkeypatch.context() as patched:
        patched.setattr(FleetState, "accept", gone)
        refused = False
        try:
            intake.sign(desk, waiting)
        except AttestationError as error:
            assert error.code == "ST-ATTS-015"  # noqa: PT017 - the last one ends without
            refused = True
    assert refused is (call < 4), "the last call is behind what was done, and may fail"
    assert "node-1" in intake.current().nodes, "the last edition, or the next one, stands"
    if refused:
        assert [one.node for one in desk.waiting()] == ["node-2"]
        assert intake.sign(desk, desk.waiting()).held == ()
    assert set(intake.current().nodes) == {"node-1", "node-2"}
    assert desk.waiting() == []
    assert len(desk.decisions()) == 6
    desk.cancel(["node-9"], NOW)


def sorted_out(office, values, rule=Rule.FIRST):
    return intake.sort_out(office.desk.waiting(), values, rule, roots=ROOTS, now=office.now)


def test_the_numbers_of_chips_teach_nothing(office, monkeypatch):
    values = first(office, Machine("node-1"))
    come(office, Machine("node-2"))
    monkeypatch.setattr(lessons, "enroll", teaching("snp", identities))
    assert len(sorted_out(office, values)[0]) == 1
    assert {"snp.chip_ids", "tdx.ppids", "gpu.devices"} == IDENTITIES


@pytest.mark.parametrize("group", ["", "image"])
def test_a_group_whose_late_registers_were_not_judged(office, group):
    """From then on they would be, for all of its machines: a person says so."""
    values = first(office, Machine("node-1"), group)
    bare: dict[str, object] = {"late": None}
    if group:
        bare = {"groups": {group: msgspec.structs.replace(values.groups[group], **bare)}}
    come(office, Machine("node-2"), group=group)
    values = msgspec.structs.replace(values, **bare)
    (proven,) = office.desk.waiting()
    assert lesson(values, proven, ROOTS, NOW).adds == {
        "late": ("PCR 11 to 15 are judged from now on",)
    }
    assert sorted_out(office, values)[0] == []


def test_what_a_first_boot_teaches_is_named_by_field(office):
    come(office, UkiMachine("node-1"), group="g.boot.1")
    (proven,) = office.desk.waiting()
    found = lesson(None, proven, ROOTS, NOW)
    assert found.adds["late.words.12"] == (LINE,)
    assert {"boot_applications", "kernel_command_lines", "late", "late.sections..linux"} <= set(
        found.adds
    )
    assert found.of_fleet == ()
    assert lesson(found.values, proven, ROOTS, NOW).adds == {}


def test_a_proof_that_cannot_be_signed_says_so(office):
    values = first(office, Machine("node-1"))
    come(office, Machine("node-2"))
    (proven,) = office.desk.waiting()
    broken = changed(proven, secret={"secret": bytes(32)})
    for one in (values, None):
        assert lesson(one, broken, ROOTS, NOW).refused.startswith("ST-ATTS-016")
        for rule in Rule:
            good, held = intake.sort_out([broken], one, rule, roots=ROOTS, now=NOW)
            assert (good, len(held)) == ([], 1)


def test_two_new_groups_that_come_together(office):
    two = Machine("node-2")
    two.boot(Boot(kernel=b"another kernel"))
    come(office, Machine("node-1"), group="one")
    come(office, two, group="two")
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert taken.held == ()
    groups = taken.edition.values.groups
    assert set(groups) == {"one", "two"}
    assert groups["one"] != groups["two"] != ImageGroup()


def test_a_machine_that_was_moved_is_judged_by_its_new_group(office):
    """`fleet admit --replace` names another group: what counts is what that one boots."""
    first(office, Machine("node-1"), "one")
    two = Machine("node-2")
    two.boot(Boot(kernel=b"another kernel"))
    first(office, two, "two")
    office.prove(office.token("node-2", group="one", replace=True), two)
    (held,) = office.intake.sign_by_rule(office.desk, Rule.FIRST).held
    assert "boot_applications" in held.why


def test_values_whose_place_cannot_be_looked_at(tmp_path):
    """It is not the same as a fleet without an edition, for which everything is new."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "fleet.json", tmp_path / ("x" * 300)):
        vocabulary.refused(UsageError, "ST-USAG-002", CurrentValues(path, (), MemoryState()))
    assert CurrentValues(tmp_path / "fleet.json", (), MemoryState())() is None


def test_an_edition_that_somebody_else_signs_is_seen(office):
    """A desk that went on with the values of before would let in who was taken out meanwhile."""
    first(office, Machine("node-1"))
    current = CurrentValues(office.intake.path, office.intake.signed_by, office.intake.state)
    before = current()
    assert before is not None
    assert set(before.nodes) == {"node-1"}
    assert current() is before, "a file that did not change is not read again"
    come(office, Machine("node-2"))
    office.intake.sign(office.desk, office.desk.waiting())
    after = current()
    assert after is not None
    assert set(after.nodes) == {"node-1", "node-2"}
