# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values that are changed: what is taken out, written whole, and taken by a verifier.

Commands of docs/how-to/attest-a-fleet.md, docs/how-to/manage-reference-values.md are tried here.
"""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.values import change_values, remove, retire
from securetrain.attest.session import values_watch
from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.cache import Item, build_cache
from securetrain.attest.session.for_a_job import fleet_verifier, open_fleet
from securetrain.attest.session.reference_file import read_reference_values, write_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.attest.session.values_watch import ValuesWatch
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence import EnrolledNode
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.node_evidence import NODE_TYPE
from securetrain.evidence.tpm import BootReference
from securetrain.evidence.tpm.secureboot import PolicyVariable
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger, verify_ledger
from securetrain.policy import load_policy
from securetrain.testing.machine import REFERENCE_FILE, write_policy
from tests import vocabulary
from tests.attest.worlds import Machine, World, reference_values, refused
from tests.evidence.tpm.forge import NOW
from tests.tables import items

OPERATOR = PrivateKey.generate()
SIGNED_BY = [key_text(OPERATOR.public)]
CRL = CollateralKind.CRL


def add(folder, fetched, *, document, index):
    """Put a document into the cache; it and the index are good for so many days."""
    ends = fetched + timedelta(days=document)
    item = Item(kind=CRL, id="00" * 32, data=b"crl", fetched=fetched, expires=ends)
    build_cache(folder / "cache", [item], OPERATOR, fetched, fetched + timedelta(days=index))


class Watched(World):
    """A verifier that watches the values of a policy on disk; two machines of one image."""

    def __init__(self, folder: Path, *, cached: bool = False) -> None:
        machines = Machine("node-0"), Machine("node-1")
        values = reference_values(*machines, expires=NOW + timedelta(days=30))
        file = write_policy(folder, values, OPERATOR, tier="tpm", extends="hardened")
        if cached:
            add(folder, NOW, document=11, index=20)
            document = json.loads(file.read_text())
            document["node"]["reference_values"]["cache"] = "cache"
            file.write_text(json.dumps(document))
        policy = load_policy(str(file))
        super().__init__(*machines, values=values, policy=policy.policy)
        self.heard: list[str] = []
        self.path = folder / REFERENCE_FILE
        self.verifier.appraisers = appraisers_for(policy, NOW, self.state)
        self.verifier.watch = ValuesWatch(
            policy=policy,
            state=self.state,
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
            read=lambda: self.heard.append("read"),
            refused=lambda error: self.heard.append(error.code),
            ending=lambda days: self.heard.append(f"{days} days"),
            collateral=lambda one, days: self.heard.append(f"{one.kind} {one.name}: {days} days"),
        )
        self.verifier.watch.begin(self.verifier.appraisers)


@pytest.fixture
def world(tmp_path):
    return Watched(tmp_path)


def change(world, what, **how):
    how = {"now": world.now, "lifetime": None, "state": world.state, **how}
    return change_values(world.path, what, key=OPERATOR, signed_by=SIGNED_BY, **how)


def later(world, seconds=values_watch.LOOK_SECONDS):
    world.seconds += seconds


# A verifier that runs.


@pytest.mark.forgery
def test_a_retired_kernel_is_refused_at_the_next_renewal(world):
    world.join()
    kernels = world.values.boot.boot_applications
    assert not world.ask()[0].full, "the control: a renewal sends no log"
    made = change(world, lambda old: retire(old, kernels[-1:]))
    assert (made.version, made.expires) == (2, world.values.expires)
    later(world)
    assert world.ask()[0].full
    assert world.refused("ST-ATTS-213").where.startswith("PCR 4")
    assert world.heard == ["read"]
    assert world.state.revocations() == [], "it is out of date, and did not lie"


def test_everybody_is_asked_for_everything_once_after_a_new_edition(world):
    first, second = world.machines
    world.join(first)
    world.join(second)
    change(world, lambda old: old)
    later(world)
    for machine in world.machines:
        assert world.ask(machine)[0].full
        world.join(machine)
        assert not world.ask(machine)[0].full
    assert world.heard == ["read"]


@pytest.mark.forgery
def test_a_new_edition_does_not_free_the_hardware_of_others(world):
    world.join()
    change(world, lambda old: old)
    later(world)
    other = Machine("node-1", tpm=world.machine.tpm)
    nodes = dict.fromkeys(("node-0", "node-1"), EnrolledNode(ek_names=(world.machine.ek_name,)))
    world.verifier.watch = None
    world.verifier.appraisers = {
        NODE_TYPE: world.make_appraiser(values=msgspec.structs.replace(world.values, nodes=nodes))
    }
    world.refused("ST-ATTS-011", other)


def test_values_that_end_are_replaced_without_a_restart(world):
    world.join()
    world.now += timedelta(days=31)
    world.refused("ST-ATTS-009")
    change(world, lambda old: old, lifetime=timedelta(days=90))
    world.refused("ST-ATTS-009")  # not looked at again yet
    later(world)
    world.join()
    assert world.heard == ["2 days", "read"]


def test_an_end_is_told_fourteen_and_two_days_before(world):
    for days, heard in ((15, []), (16, ["14 days"]), (20, ["14 days"])):
        world.now = NOW + timedelta(days=days)
        for _ in range(2):
            later(world)
            world.join()
        assert world.heard == heard
    world.now = NOW + timedelta(days=28)
    later(world)
    world.join()
    assert world.heard == ["14 days", "2 days"]
    change(world, lambda old: old, lifetime=timedelta(days=1))
    later(world)
    world.join()
    assert world.heard == ["14 days", "2 days", "read", "2 days"]


@pytest.mark.forgery
def test_an_edition_that_is_not_good_changes_nothing_and_is_told_once(world):
    world.join()
    good = world.path.read_bytes()
    write_reference_values(world.path, world.values, PrivateKey.generate())
    for _ in range(3):
        later(world)
        world.join()
    assert world.heard == ["ST-ATTS-009"]
    world.path.unlink()
    later(world)
    world.join()
    assert world.heard == ["ST-ATTS-009"] * 2
    world.path.write_bytes(good)
    later(world)
    world.join()
    assert world.heard == ["ST-ATTS-009", "ST-ATTS-009", "read"]


@pytest.mark.forgery
def test_a_node_that_was_removed_is_out_at_its_next_renewal(world):
    world.join(world.machines[1])
    change(world, lambda old: remove(old, ["node-1"]))
    later(world)
    world.refused("ST-ATTS-012", world.machines[1])
    world.join()


def test_the_ledger_has_every_edition(tmp_path):
    values = reference_values(Machine(), expires=NOW + timedelta(days=2))
    file = write_policy(tmp_path, values, OPERATOR, tier="tpm", extends="hardened")
    policy = load_policy(str(file))
    ledger = Ledger(tmp_path / "ledger.jsonl", OPERATOR, "coordinator", lambda: NOW).begin()
    with closing(open_fleet(tmp_path / "fleet", policy)) as state:
        verifier = fleet_verifier(policy, lambda: NOW, state, ledger)
        assert isinstance(verifier.watch, ValuesWatch)
        seconds = iter(range(0, 100, 2))
        verifier.watch.monotonic = lambda: next(seconds)
        newer = msgspec.structs.replace(values, version=2, expires=NOW + timedelta(days=90))
        for key in (PrivateKey.generate(), OPERATOR):
            write_reference_values(tmp_path / REFERENCE_FILE, newer, key)
            verifier.challenge("node-0")
    ledger.close()
    opened = verify_ledger(ledger.path.read_bytes(), {OPERATOR.key_id: OPERATOR.public})
    assert [entry.body.event.event for entry in opened.entries[1:]] == [
        "fleet-state-opened",
        "reference-values-ending",
        "reference-values-not-read",
        "reference-values-read",
        "close",
    ]


def test_a_cache_and_its_documents_are_told_before_they_end(tmp_path):
    world = Watched(tmp_path, cached=True)
    folder, crl = tmp_path / "cache", f"{CRL} {'00' * 32}"

    assert world.heard == [f"collateral {crl}: 14 days"], "the cache itself has 20 days"
    world.heard.clear()
    for day, heard in (
        (1, []),
        (7, [f"cache {folder}: 14 days"]),
        (9, [f"collateral {crl}: 2 days"]),
        (18, [f"cache {folder}: 2 days", "14 days"]),
        (18, []),
    ):
        world.now = NOW + timedelta(days=day)
        later(world)
        world.verifier.challenge("node-0")
        assert sorted(world.heard) == sorted(heard), day
        world.heard.clear()
    add(tmp_path, world.now, document=60, index=90)
    later(world)
    world.verifier.challenge("node-0")
    assert world.heard == ["read", "14 days"], "the values end as before, and are told again"


# What is written.


def test_what_is_retired_stands_nowhere(world):
    boot = BootReference(
        registers={"1": ("ab" * 32, "cd" * 32)},
        firmware=("ab" * 32,),
        variables={PolicyVariable.DB: ("ab" * 32, "ef" * 32)},
        kernel_command_lines=("root=/dev/sda",),
    )
    values = msgspec.structs.replace(world.values, boot=boot, tdx_boot=boot)
    made = retire(values, ["ab" * 32, "root=/dev/sda"])
    for left in (made.boot, made.tdx_boot):
        assert left.registers == {"1": ("cd" * 32,)}
        assert left.variables == {PolicyVariable.DB: ("ef" * 32,)}
        assert (left.firmware, left.kernel_command_lines) == ((), ())
    assert msgspec.structs.replace(made, boot=boot, tdx_boot=boot) == values


@items("what", lambda v: retire(v, ["ab" * 32]), lambda v: remove(v, ["node-0", "node-7"]))
def test_what_is_not_there_cannot_be_taken_out(world, what):
    before = world.path.read_bytes()
    vocabulary.refused(UsageError, "ST-USAG-001", change, world, what)
    assert world.path.read_bytes() == before


def test_a_removed_node_takes_its_exception_with_it(world):
    eks = [machine.ek_name for machine in world.machines]
    tpm = msgspec.structs.replace(world.values.tpm, allow_uncertified=tuple(eks))
    made = remove(msgspec.structs.replace(world.values, tpm=tpm), ["node-1"])
    assert list(made.nodes) == ["node-0"]
    assert made.tpm.allow_uncertified == (eks[0],)


@pytest.mark.parametrize("field", ["firmware", "boot_commands"])
def test_an_edition_that_nobody_could_read_is_not_written(world, field):
    """Sixteen thousand digests and one node more, as it was."""
    many = 16385 if field == "boot_commands" else (1 << 18) + 1
    before = world.path.read_bytes()
    entries = tuple(f"{number:064x}" for number in range(many))
    boot = msgspec.structs.replace(world.values.boot, **{field: entries})
    error = refused(
        "ST-ATTS-018", lambda: change(world, lambda old: msgspec.structs.replace(old, boot=boot))
    )
    assert field in error.what
    assert world.path.read_bytes() == before
    fits = msgspec.structs.replace(world.values.boot, **{field: entries[1 : 1 << 14]})
    change(world, lambda old: msgspec.structs.replace(old, boot=fits))


def test_an_edition_that_is_too_large_is_not_written(world, monkeypatch):
    monkeypatch.setattr("securetrain.attest.session.reference_file.FILE_LIMIT", 100)
    refused("ST-ATTS-018", lambda: write_reference_values(world.path, world.values, OPERATOR))


def test_old_values_are_not_made_the_next_edition(world):
    old = world.path.read_bytes()
    change(world, lambda values: values)
    world.path.write_bytes(old)
    vocabulary.refused(AttestationError, "accepted before", change, world, lambda values: values)
    control = change(world, lambda values: values, state=MemoryState())
    assert control.version == 2
    assert read_reference_values(world.path, SIGNED_BY, MemoryState()).values == control
