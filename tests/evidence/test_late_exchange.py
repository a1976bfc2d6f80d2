# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole exchanges of nodes that boot unified kernel images: what passed unseen is refused."""

from dataclasses import dataclass

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import EventType, parse
from securetrain.evidence.tpm.late import LateReference, learn_late
from securetrain.testing.bootlog import Boot, Event
from tests.attest.worlds import Machine, World, node_policy, reference_values, tpm
from tests.evidence.tpm import lateboots as uki
from tests.rsa_keys import rsa_key
from tests.vocabulary import refused

LINE = "root=/dev/vda1 ro"


@dataclass(frozen=True, slots=True, kw_only=True)
class UkiBoot(Boot):
    """A boot of a unified kernel image, under shim."""

    linux: bytes = b"the kernel"
    line: str = LINE
    keys: bytes = b"a machine owner's key"

    def events(self):
        for name, content in {**uki.IMAGE, ".linux": self.linux}.items():
            yield Event(11, EventType.IPL, name.encode() + b"\0")
            yield Event(11, EventType.IPL, name.encode() + b"\0", content)
        yield Event(12, EventType.IPL, (self.line + "\0").encode("utf-16-le"))
        yield Event(14, EventType.IPL, b"MokList\0", self.keys)
        yield from Boot.events(self)


class UkiMachine(Machine):
    """What it boots goes on in systemd's log."""

    def boot(self, what=None, files=None):
        self.said = []
        super().boot(what or UkiBoot(), **({"files": files} if files else {}))
        for word in uki.PHASES:
            self.say(word)

    def say(self, word):
        self.said.append(word)
        self.extend(word.pcr, word.extends())

    def evidence(self, value, ask, **changes):
        made = super().evidence(value, ask, **changes)
        log = b"".join(one.record() for one in self.said)
        return msgspec.structs.replace(made, userspace_log=log)


def learned(machine):
    log = b"".join(one.record() for one in machine.said)
    return learn_late(parse(machine.what.log()), log, dict(machine.tpm.values()))


def fleet(**changes):
    machine = UkiMachine()
    return World(machine, values=reference_values(machine, **{"late": learned(machine), **changes}))


@pytest.fixture
def world():
    return fleet()


CHANGES = [
    ({"linux": b"another kernel"}, "PCR 11"),
    ({"line": LINE + " init=/bin/sh"}, "PCR 12"),
    ({"keys": b"the attacker's key"}, "PCR 14"),
]


def test_a_join_and_renewals(world):
    assert "unjudged_pcrs" not in world.join().submods["tpm"].claims
    assert not world.ask()[0].full
    world.join()
    world.machine.say(uki.word(11, "shutdown"))
    world.join()
    world.machine.boot()
    world.restart()
    world.join()


@pytest.mark.forgery
@pytest.mark.parametrize(("change", "where"), CHANGES)
def test_changes_that_passed_unseen(world, change, where):
    """Without rules for PCR 11 to 15 the change is let in, and the result names them."""
    plain = fleet(late=None)
    plain.machine.boot(UkiBoot(**change))
    claims = plain.join().submods["tpm"].claims
    assert claims["unjudged_pcrs"] == "11,12,13,14,15"
    world.machine.boot(UkiBoot(**change))
    assert world.refused("ST-ATTS-241").where.startswith(where)


@pytest.mark.forgery
def test_a_register_that_is_listed_whole_is_quoted():
    """Listing one of them refused every node: the agent did not quote it."""
    world = fleet(late=None)
    pcr = world.machine.tpm.pcrs[14]
    boot = msgspec.structs.replace(
        world.values.boot, registers={**world.values.boot.registers, "14": (pcr.hex(),)}
    )
    world = World(world.machine, values=msgspec.structs.replace(world.values, boot=boot))
    assert world.join().submods["tpm"].claims["unjudged_pcrs"] == "11,12,13,15"
    world.machine.boot(UkiBoot(keys=b"?"))
    world.restart()
    world.refused("ST-ATTS-216")


@pytest.mark.forgery
def test_what_is_extended_during_a_lease_bars_the_node_unless_it_is_explained(world):
    world.join()
    world.machine.say(uki.word(11, "something"))
    world.refused("ST-ATTS-241")
    world.machine.extend(12, Hash.SHA256.digest(b"secretly"))
    world.machine.said.pop()
    world.refused("ST-ATTS-008")
    world.refused("ST-ATTS-010")


@pytest.mark.forgery
@pytest.mark.parametrize("log", [b"", b"\x1e{}\n"])
def test_a_userspace_log_that_is_missing(world, log):
    world.refused("ST-ATTS-204", forge=tpm(userspace_log=log))


@pytest.mark.forgery
def test_a_userspace_log_that_is_malformed(world):
    world.refused("ST-ATTS-240", forge=tpm(userspace_log=b"?"))


@pytest.mark.forgery
@pytest.mark.parametrize("forged", [False, True])
def test_an_image_that_was_signed(world, forged):
    """A new kernel comes in by its signature alone, with no new edition of the values."""
    keys = (uki.pem(uki_key := rsa_key(2048, 5)),)
    signing = msgspec.structs.replace(world.values.late, sections={}, policy_keys=keys)
    world = World(world.machine, values=msgspec.structs.replace(world.values, late=signing))
    world.machine.boot(UkiBoot(linux=b"a new kernel"))
    pcrs = dict(world.machine.tpm.values())
    document = uki.signed(uki.prediction(rsa_key(2048, 6) if forged else uki_key, pcrs))
    if forged:
        world.refused("ST-ATTS-242", forge=tpm(pcr_signatures=document))
    else:
        world.join(forge=tpm(pcr_signatures=document))
        world.join()


@pytest.mark.forgery
def test_rules_without_a_firmware_log(world):
    """The policy asks for no log: events cannot be judged, and nobody is let in for that."""
    policy = node_policy(tpm={"event_log": False, "ima": world.policy.node.tpm.ima})
    values = msgspec.structs.replace(world.values)
    blind = World(world.machine, values=values, policy=policy)
    refused(AttestationError, "ST-ATTS-013", blind.join)
    pcrs = world.machine.tpm.pcrs
    whole = LateReference(registers={str(n): (pcrs[n].hex(),) for n in range(11, 16)})
    values = msgspec.structs.replace(values, late=whole)
    World(world.machine, values=values, policy=policy).join()
