# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One node's TPM in whole exchanges: whose it is, what it booted, what it has run since.

`test_join_and_renew` is the control of every forgery.
"""

import dataclasses
import hashlib

import msgspec
import pytest

from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Ask, Case, Claims, Lease, Remembered
from securetrain.evidence.node_evidence import NODE_TYPE
from securetrain.evidence.tpm.bootrules import BootReference
from securetrain.evidence.tpm.constants import Attributes
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from securetrain.evidence.tpm.runtime_policy import ImaReference
from securetrain.policy.schema import ImaMode, SelfAsserted
from securetrain.testing.bootlog import Boot
from securetrain.testing.machine import runtime_policy
from securetrain.testing.measurement_lists import measured_file
from tests.attest.worlds import (
    FILES,
    MAKER_CA,
    MANIFEST,
    Machine,
    World,
    ima,
    node_policy,
    reference_values,
    refused,
    tpm,
)
from tests.evidence.tpm.forge import SWTPM, Authority, Tpm
from tests.tables import each, forgeries, items


@pytest.fixture
def world():
    return World(Machine("node-0"), Machine("node-1"))


def changed_world(change, *machines, **policy):
    """A world whose reference values `change` has changed."""
    machines = machines or (Machine("node-0"), Machine("node-1"))
    values = change(reference_values(*machines))
    return World(*machines, values=values, policy=node_policy(**policy))


def pinned(**tpm_reference):
    return lambda values: msgspec.structs.replace(
        values, tpm=msgspec.structs.replace(values.tpm, **tpm_reference)
    )


# What must work.


def test_join_and_renew(world):
    result = world.join()
    assert result.tier is NodeTier.TPM
    assert result.label == "tpm"
    assert result.reference_values == "ab" * 32
    assert result.media_type == NODE_TYPE
    assert set(result.submods) == {"self-report", "tpm"}
    assert set(result.submods["self-report"].trust_vector.values()) == {0}
    vector = result.submods["tpm"].trust_vector
    affirmed = {name for name, value in vector.items() if value}
    assert affirmed == {"hardware", "instance-identity", "executables"}
    assert result.submods["tpm"].claims["enrolled"] is True
    world.machine.execute("/usr/bin/new-tool", b"started during the lease")
    for entries in (3, 4):
        ask, binding = world.ask()
        assert (ask.full, ask.credential, ask.ima_first) == (False, None, entries)
        said = world.machine.collect(binding, ask)
        assert not said.tpm.event_log, "a renewal sends no firmware log"
        assert world.answer(world.machine.sign(said, binding), binding).tier is NodeTier.TPM


def test_a_node_joins_again_after_a_reboot_with_all_its_evidence(world):
    world.join()
    world.machine.boot()
    world.refused("ST-ATTS-118")
    world.verifier.release("node-0")
    assert world.ask()[0].full
    assert world.join().tier is NodeTier.TPM


def test_a_maker_of_virtual_tpms():
    change = pinned(roots=(), virtual_roots=(MAKER_CA.pem,))
    result = changed_world(change, min_tier=NodeTier.VTPM).join()
    assert result.tier is NodeTier.VTPM
    assert not result.submods["tpm"].trust_vector["hardware"]
    assert result.submods["tpm"].trust_vector["instance-identity"] == 2


def test_a_test_tpm_affirms_nothing():
    change = pinned(roots=(), test_roots=(MAKER_CA.pem,))
    allowed = SelfAsserted(max_nodes=1, reason="a test")
    world = changed_world(change, min_tier=NodeTier.TEST_ONLY, allow_self_asserted=allowed)
    result = world.join()
    assert result.tier is NodeTier.TEST_ONLY
    assert set(result.submods["tpm"].trust_vector.values()) == {0}


@pytest.mark.forgery
def test_a_software_tpm_is_no_tpm_whatever_its_root_is_listed_as():
    world = World(Machine(attributes=SWTPM))
    assert world.refused("ST-ATTS-004").what.startswith("the tier is vtpm")


# Whose machine.


@pytest.mark.forgery
def test_a_genuine_tpm_that_is_not_enrolled():
    world = changed_world(lambda values: msgspec.structs.replace(values, nodes={}))
    assert "not enrolled" in world.refused("ST-ATTS-012").what


@pytest.mark.forgery
def test_the_tpm_of_another_enrolled_node(world):
    """The cuckoo: node-0's connection, node-1's TPM."""
    error = refused("ST-ATTS-012", lambda: world.ask(keys=world.machines[1].keys()))
    assert "the node has another" in error.what


@pytest.mark.forgery
def test_a_tpm_of_another_manufacturer_with_the_same_names(world):
    stranger = Machine(maker=Authority("a maker's root"), tpm=world.machine.tpm)
    refused("ST-ATTS-107", lambda: world.ask(keys=stranger.keys()))


@pytest.mark.forgery
def test_the_certificate_of_another_tpm(world):
    mixed = world.machine.keys(ek_certificate=world.machines[1].certificate)
    refused("ST-ATTS-106", lambda: world.ask(keys=mixed))


@pytest.mark.forgery
def test_an_attestation_key_of_another_tpm(world):
    """Its name is in the credential: the TPM with the endorsement key does not open it."""
    mixed = world.machine.keys(ak_public=world.machines[1].keys().ak_public)
    ask, binding = world.ask(keys=mixed)
    said = world.machines[1].collect(binding, Ask())
    refused("ST-ATTS-016", lambda: world.answer(world.machine.sign(said, binding), binding))
    assert ask.credential is not None


@pytest.mark.forgery
@items(
    "id, signer, code",
    ("below-its-own-endorsement-key", None, "ST-ATTS-114"),
    ("renamed-and-not-signed-again", "renamed", "ST-ATTS-111"),
)
def test_an_attestation_key_that_two_endorsement_keys_vouch_for(world, signer, code):
    """The forger's TPM opens credentials for any name; the signed parent still tells the two apart.

    A relay of this kind needs a TPM that loads another's key, which none does (fixedTPM).
    """
    mine, other = world.machines
    ask, binding = world.ask(keys=mine.keys(ak_public=other.keys().ak_public))
    value = binding.value(MANIFEST)
    both = Tpm()
    both.ek, both.ak, both.pcrs = mine.tpm.ek, other.tpm.ak, mine.tpm.pcrs
    mine.tpm, own = both, mine.tpm
    said = mine.collect(binding, ask)
    quote, signature = other.quote(value, clock=mine.clock, reset=mine.resets)
    if signer:
        quote = said.tpm.quote
    forged = tpm(quote=quote, signature=signature)(said)
    mine.tpm = own
    refused(code, lambda: world.answer(mine.sign(forged, binding), binding))


# This exchange, and after the last one.


@pytest.mark.forgery
def test_an_old_quote_with_a_fresh_activation(world):
    ask, binding = world.ask()
    old = world.machine.collect(binding, ask)
    world.refused("ST-ATTS-113", forge=tpm(quote=old.tpm.quote, signature=old.tpm.signature))


@pytest.mark.forgery
def test_the_proof_of_an_earlier_challenge(world):
    ask, binding = world.ask()
    old = world.machine.collect(binding, ask)
    world.refused("ST-ATTS-016", forge=tpm(activation=old.tpm.activation))


@pytest.mark.forgery
@items(
    "id, code, changes",
    ("clock-back", "ST-ATTS-121", {"clock": 1_000_000}),
    ("clock-stands-still", "ST-ATTS-121", {"clock": 1_001_000}),
    ("resets-back", "ST-ATTS-121", {"reset": 5}),
    ("restarts-back", "ST-ATTS-121", {"restart": 1}),
    ("rebooted", "ST-ATTS-118", {"reset": 7}),
    ("resumed", "ST-ATTS-118", {"restart": 3}),
    ("other-firmware", "ST-ATTS-119", {"firmware": 1}),
)
@pytest.mark.parametrize("restarted", [False, True])
def test_the_tpms_clock(world, code, changes, restarted):
    """Only what makes a TPM's time go back counts once the verifier holds no lease."""
    world.join()
    if restarted:
        world.restart()
    if restarted and code != "ST-ATTS-121":
        world.join(**changes)
    else:
        assert world.refused(code, **changes).where in {"clockInfo", "firmwareVersion"}


def test_the_first_quote_of_a_tpm_is_compared_with_nothing():
    World().join(clock=1, reset=0, restart=0)


# Parts left out, swapped or changed.


@pytest.mark.forgery
@items(
    "id, code, forge",
    ("no-firmware-log", "ST-ATTS-013", tpm(event_log=b"")),
    ("no-measurement-list", "ST-ATTS-013", tpm(ima=None)),
    ("no-activation", "ST-ATTS-016", tpm(activation=b"")),
    ("activation-guessed", "ST-ATTS-016", tpm(activation=bytes(32))),
    ("signature-cut", "ST-ATTS-101", tpm(signature=b"\x00\x18\x00\x0b")),
    ("quote-is-noise", "ST-ATTS-111", tpm(quote=b"\xff" * 100)),
    ("log-is-noise", "ST-ATTS-201", tpm(event_log=b"\xff" * 200)),
    ("list-is-noise", "ST-ATTS-301", ima(entries=b"\xff" * 200)),
    ("no-registers", "ST-ATTS-116", tpm(pcrs={})),
    ("registers-never-used", "ST-ATTS-116", tpm(pcrs=dict.fromkeys(range(16), bytes(32)))),
    ("another-log", "ST-ATTS-204", tpm(event_log=Boot(kernel=b"other").log())),
    ("list-begins-elsewhere", "ST-ATTS-311", ima(first=2)),
    ("list-of-another-kind", "ST-ATTS-301", ima(binary=False)),
)
def test_a_part_is_missing_or_broken(world, code, forge):
    world.refused(code, forge=forge)


# The boot.


@pytest.mark.forgery
@items(
    "id, code, where, what",
    ("kernel", "ST-ATTS-213", "PCR 4", Boot(kernel=b"with a back door")),
    ("boot-loader", "ST-ATTS-213", "PCR 4", Boot(boot_loader=b"evil")),
    ("command-line", "ST-ATTS-214", "PCR 8", Boot(command_line="init=/bin/sh")),
    ("initrd", "ST-ATTS-215", "PCR 9", Boot(initrd=b"evil")),
    ("firmware", "ST-ATTS-216", "PCR 0", Boot(firmware=b"older")),
    ("signers", "ST-ATTS-211", "PCR 7", Boot(db=("other signer",))),
    ("secure-boot-off", "ST-ATTS-208", "PCR 7", Boot(secure_boot=False)),
)
def test_another_boot_than_the_enrolled_one(world, code, where, what):
    world.machine.boot(what)
    assert world.refused(code).where.startswith(where)


@pytest.mark.forgery
def test_another_kernel_was_booted(world):
    """The same log, quoted honestly, with the machine's word that it is the good kernel."""
    good = world.machine.what
    world.machine.boot(Boot(kernel=b"kernel with a back door"))
    world.refused("ST-ATTS-204", forge=tpm(event_log=good.log()))
    world.refused("ST-ATTS-213")


@pytest.mark.forgery
def test_secure_boot_was_off(world):
    world.machine.boot(Boot(secure_boot=False))
    world.refused("ST-ATTS-208")
    with_it_off = changed_world(lambda v: v, world.machine, tpm={"secure_boot": False})
    claims = with_it_off.join().submods["tpm"].claims
    assert claims["secure_boot"] is False


@pytest.mark.forgery
@pytest.mark.parametrize("pcr", range(10))
def test_a_boot_register_is_extended_during_the_lease(world, pcr):
    world.join()
    world.machine.extend(pcr, hashlib.sha256(b"kexec").digest())
    assert world.refused("ST-ATTS-008").where == f"PCR {pcr}"
    world.refused("ST-ATTS-010")


# What it has run.


@pytest.mark.forgery
@pytest.mark.parametrize("renewal", [False, True])
def test_an_entry_is_left_out(world, renewal):
    """At a join the list no longer leads to the quoted register; at a renewal neither does it."""
    if renewal:
        world.join()
    world.machine.execute("/tmp/one", b"1")
    hidden = world.machine.measured.pop()
    world.machine.execute("/tmp/two", b"2")
    world.refused("ST-ATTS-306")
    assert hidden.name == b"/tmp/one"


def test_the_kernel_measures_between_quote_and_list(world):
    """Entries behind the quoted value are not read: they were not there when it was quoted."""

    def later(said):
        world.machine.execute("/tmp/later", b"later")
        return ima(entries=b"".join(one.binary() for one in world.machine.measured))(said)

    assert world.join(forge=later).submods["tpm"].claims["ima_entries"] == 3
    assert world.ask()[0].ima_first == 3, "and are asked for at the next renewal"
    assert world.join().submods["tpm"].claims["ima_entries"] == 4


@pytest.mark.forgery
def test_the_list_of_another_boot(world):
    """An honest list of an honest node, which PCR 0 to 9 contradict."""
    world.machine.boot(Boot(kernel=b"another"))
    entries = list(world.machine.measured)
    world.machine.boot(Boot())
    world.machine.tpm.pcrs[10] = bytes(32)
    world.machine.measured = []
    for entry in entries:
        world.machine._measure(entry)
    assert world.refused("ST-ATTS-308").where.endswith("boot_aggregate")


def enforcing(change=None, files=FILES, **policy):
    def values(made):
        reference = change or ImaReference(policy=runtime_policy(files))
        return msgspec.structs.replace(made, ima=reference)

    return changed_world(values, Machine(), tpm={"ima": ImaMode.ENFORCE, **policy})


@pytest.mark.forgery
def test_every_file_is_in_the_runtime_policy():
    world = enforcing()
    assert world.join().submods["tpm"].trust_vector["file-system"] == 2
    world.machine.execute("/tmp/implant.so", b"not in the policy")
    assert "/tmp/implant.so" in world.refused("ST-ATTS-309").where
    assert world.refused("ST-ATTS-010").where == "node:node-0", "it contradicted its lease"


@pytest.mark.forgery
def test_a_file_of_the_policy_was_changed():
    world = enforcing()
    world.machine.boot(files={**FILES, "/opt/train.py": b"another script"})
    assert "/opt/train.py" in world.refused("ST-ATTS-310").where


# What the policy leaves out.


@each("enrolled", False, True)
def test_without_an_inventory(enrolled):
    """Any genuine TPM may come in, but a node that is enrolled answers with its own."""

    def forget(values):
        return values if enrolled else msgspec.structs.replace(values, nodes={})

    result = changed_world(forget, tpm={"inventory": False}).join()
    assert result.submods["tpm"].claims["enrolled"] is enrolled
    assert bool(result.submods["tpm"].trust_vector["instance-identity"]) is enrolled


@pytest.mark.forgery
def test_without_an_inventory_an_enrolled_node_is_still_its_own_tpm():
    world = changed_world(lambda values: values, tpm={"inventory": False})
    refused("ST-ATTS-012", lambda: world.ask(keys=world.machines[1].keys()))


def boots(**values):
    """Reference values of a boot, and no firmware log that is asked for."""

    def change(made):
        return msgspec.structs.replace(made, boot=BootReference(**values))

    return changed_world(change, tpm={"event_log": False, "secure_boot": False})


@forgeries("pcr", 0, 4, 9, 10, 15)
def test_whole_registers_without_a_log(pcr):
    machine = Machine()
    good = {str(pcr): (machine.tpm.pcrs[pcr].hex(), "ab" * 32)}
    world = boots(registers=good)
    result = world.join(forge=tpm(event_log=b""))
    vector = result.submods["tpm"].trust_vector
    assert not vector["executables"], "nothing is known of what the registers hold"
    assert "secure_boot" not in result.submods["tpm"].claims
    world.join()
    world = boots(registers={str(pcr): ("ab" * 32,)})
    assert world.refused("ST-ATTS-216").where == f"PCR {pcr}"


@pytest.mark.forgery
def test_a_whole_register_that_is_not_quoted():
    assert boots(registers={"17": ("00" * 32,)}).refused("ST-ATTS-216").where == "PCR 17"


def test_without_a_measurement_list():
    world = changed_world(lambda values: values, tpm={"ima": ImaMode.OFF})
    for said in (tpm(), tpm(ima=None)):
        result = world.join(forge=said)
        assert not result.submods["tpm"].trust_vector["file-system"]
        assert "ima_entries" not in result.submods["tpm"].claims
    assert world.ask()[0].ima_first == 0


@pytest.mark.forgery
def test_violations_are_what_the_policy_says():
    """A file that changed while the kernel measured it: neither digest is the file's."""
    worlds = [
        changed_world(lambda v: v, tpm={"allow_ima_violations": one}) for one in (True, False)
    ]
    for world in worlds:
        broken = dataclasses.replace(measured_file("/tmp/x", template="ima-ng"), violation=True)
        world.machine._measure(broken)
    worlds[0].join()
    assert "/tmp/x" in worlds[1].refused("ST-ATTS-307").where


@each("mode", ImaMode.LOG, ImaMode.ENFORCE)
def test_a_violation_during_a_lease_ends_it_and_bars_nobody(mode):
    """Whoever opens a measured file for writing at the wrong moment causes one; a boot ends it."""
    reference = ImaReference(policy=runtime_policy(FILES))
    world = changed_world(
        lambda values: msgspec.structs.replace(values, ima=reference), tpm={"ima": mode}
    )
    world.join()
    broken = dataclasses.replace(measured_file("/usr/bin/python3.11"), violation=True)
    world.machine._measure(broken)
    world.refused("ST-ATTS-307")
    world.refused("ST-ATTS-307")
    assert world.state.revocations() == []
    world.machine.boot()
    world.verifier.release(world.machine.name)
    world.join()


# Keys and leases as the appraiser itself sees them.


@pytest.mark.forgery
@items("removed", "RESTRICTED", "SIGN", "FIXED_TPM", "FIXED_PARENT", "SENSITIVE_DATA_ORIGIN")
def test_a_key_that_cannot_vouch_is_not_even_challenged(world, removed):
    """Twice, for an accepted key is remembered."""
    attributes = AK_TEMPLATE.attributes & ~Attributes[removed]
    weak = Tpm(ak=dataclasses.replace(AK_TEMPLATE, attributes=attributes))
    world.join()
    keys = world.machine.keys(ak_public=weak.ak.public.tpm2b)
    for _ in range(2):
        refused("ST-ATTS-104", lambda: world.ask(keys=keys))


def judged(world, **case):
    """The appraiser's own verdict on an honest answer to a question of the test's making."""
    machine, binding = world.machine, world.ask()[1]
    said = machine.collect(binding, Ask())
    opening = world.appraiser.open(machine.keys(), machine.name, world.now)
    asked = Case(
        binding=binding.value(MANIFEST),
        node=machine.name,
        now=world.now,
        expires=world.now,
        ask=Ask(),
        secret=b"",
        opening=opening,
        **{"lease": None, **case},
    )
    return world.appraiser.appraise(Claims(manifest=MANIFEST, node=said), asked)


def test_a_lease_without_a_tpm_says_nothing_about_one(world):
    """Its boot is judged as at a join, and its clock by the last quote that is known."""
    lease = Lease(identities=("chip:ab",), expires=world.now)
    assert judged(world, lease=lease).tier is NodeTier.TPM
    last = Remembered(
        ek_name="ek:00",
        ak_name="",
        node="node-0",
        clock=10**12,
        reset_count=world.machine.resets,
        restart_count=2,
        firmware=world.machine.firmware,
        seen="",
    )
    refused("ST-ATTS-117", lambda: judged(world, lease=lease, past=(last,)))
    refused("ST-ATTS-117", lambda: judged(world, past=(last,)))
    world.machine.boot(Boot(kernel=b"another"))
    refused("ST-ATTS-213", lambda: judged(world, lease=lease))
