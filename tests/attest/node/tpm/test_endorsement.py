# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses

from securetrain.attest.node.tpm import endorsement
from securetrain.attest.node.tpm.client import Tpm
from securetrain.attest.node.tpm.commands import Command
from securetrain.attest.node.tpm.endorsement import find, split_certificates
from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Attributes, Handle
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from tests.attest.node.tpm.simulator import Simulator
from tests.evidence.tpm import forge
from tests.tables import each
from tests.vocabulary import refused


def der(size: int, fill: int = 0xAB) -> bytes:
    return b"\x30\x82" + size.to_bytes(2, "big") + bytes([fill]) * size


LEAF, FIRST, SECOND = der(1000), der(700, 1), der(900, 2)


@each(
    "template, index",
    *[
        (t, i)
        for t, i in endorsement.CERTIFICATE_INDICES.items()
        if t[0] != "H" or t in {"H-2", "H-3", "H-4"}
    ],
)
def test_the_key_that_has_a_certificate_is_used(template, index):
    simulator = Simulator(template, nv={index: LEAF})
    key = find(Tpm(simulator))
    assert key.template == template
    assert key.public == simulator.tpm.ek.public
    assert key.handle is None
    assert key.certificate == LEAF
    assert key.chain == ()
    assert not simulator.loaded


def test_the_preferred_certificate_wins():
    simulator = Simulator("H-3", nv={0x1C00002: der(300), 0x1C00016: LEAF, 0x1C0000A: der(400)})
    key = find(Tpm(simulator))
    assert (key.template, key.certificate) == ("H-3", LEAF)


def test_a_certificate_wins_over_a_persistent_key():
    simulator = Simulator("L-1", nv={0x1C00002: LEAF})
    simulator.persistent[Handle.EK_ECC_P384] = forge.Tpm("H-3").ek.public
    key = find(Tpm(simulator))
    assert (key.template, key.handle) == ("L-1", None)


def test_a_persistent_key_is_used_where_it_is():
    simulator = Simulator("L-1", nv={0x1C00002: LEAF})
    simulator.persistent[Handle.EK_RSA] = simulator.tpm.ek.public
    key = find(Tpm(simulator))
    assert (key.template, key.handle) == ("L-1", Handle.EK_RSA)
    assert Command.CreatePrimary not in simulator.sent


def test_a_persistent_key_without_a_certificate_is_used():
    simulator = Simulator("H-2")
    simulator.persistent[0x81010014] = simulator.tpm.ek.public
    key = find(Tpm(simulator))
    assert (key.template, key.handle, key.certificate) == ("H-2", 0x81010014, b"")


def test_without_anything_the_key_every_tpm_has_is_made():
    simulator = Simulator("L-1")
    key = find(Tpm(simulator))
    assert (key.template, key.handle, key.certificate) == ("L-1", None, b"")
    assert Command.NV_Read not in simulator.sent


def test_other_persistent_keys_are_passed_over():
    simulator = Simulator("L-1")
    own = simulator.tpm.ek.public
    sealing = dataclasses.replace(own, attributes=own.attributes | Attributes.NO_DA)
    simulator.persistent = {
        0x81000001: own,  # of the owner, not of the endorsement hierarchy
        0x81010001: sealing,
        0x81010002: forge.make_key(AK_TEMPLATE).public,
        0x81020000: own,
    }
    assert find(Tpm(simulator)).handle is None
    simulator.persistent[0x8101FFFF] = own
    assert find(Tpm(simulator)).handle == 0x8101FFFF


def test_persistent_keys_of_unknown_kinds_are_passed_over():
    simulator = Simulator("L-1")
    simulator.persistent[0x81010001] = simulator.tpm.ek.public
    simulator.alter[Command.ReadPublic] = lambda body: body[:2] + b"\0\x08" + body[4:]
    simulator.after[Command.ReadPublic] = simulator.alter.clear
    assert find(Tpm(simulator)).handle is None


def test_a_tpm_that_fails_is_not_taken_for_an_empty_one():
    simulator = Simulator("L-1")
    simulator.persistent[0x81010001] = simulator.tpm.ek.public
    simulator.refuse[Command.ReadPublic] = [0x101]
    refused(AttestationError, "ST-ATTS-153", find, Tpm(simulator))


def test_the_first_of_two_keys_of_one_template_is_used():
    simulator = Simulator("L-1")
    simulator.persistent = dict.fromkeys((0x81010001, 0x81010005), simulator.tpm.ek.public)
    assert find(Tpm(simulator)).handle == 0x81010001


def test_a_chain_runs_over_from_index_to_index():
    stored = FIRST + SECOND
    nv = {0x1C00002: LEAF, 0x1C00100: stored[:1000], 0x1C00101: stored[1000:] + bytes(50)}
    assert find(Tpm(Simulator("L-1", nv=nv))).chain == (FIRST, SECOND)


def test_a_chain_has_at_most_eight_certificates():
    nv = {0x1C00002: LEAF, 0x1C00100: der(300) * 9, 0x1C000FF: der(400), 0x1C00200: der(500)}
    assert find(Tpm(Simulator("L-1", nv=nv))).chain == (der(300),) * 8


@each("padding", b"", b"\0" * 20, b"\xff" * 20)
def test_padding_of_a_certificate_is_cut_off(padding):
    key = find(Tpm(Simulator("L-1", nv={0x1C00002: LEAF + padding})))
    assert key.certificate == LEAF


@each("stored", b"", b"\xff" * 100, LEAF[:-1], b"\x30\x80" + bytes(100))
def test_an_index_without_a_certificate_gives_none(stored):
    key = find(Tpm(Simulator("L-1", nv={0x1C00002: stored})))
    assert (key.template, key.certificate) == ("L-1", b"")


def test_certificates_are_split():
    assert split_certificates(b"") == []
    assert split_certificates(FIRST) == [FIRST]
    assert split_certificates(FIRST + SECOND + b"\0") == [FIRST, SECOND]
    assert split_certificates(FIRST + SECOND[:-1]) == [FIRST]


@each("template, uses_or", ("L-1", False), ("H-2", True), ("H-3", True))
def test_the_policy_of_the_key_is_satisfied(template, uses_or):
    simulator = Simulator(template)
    tpm = Tpm(simulator)
    key = endorsement.EndorsementKey(
        template=template, public=simulator.tpm.ek.public, handle=None, certificate=b"", chain=()
    )
    with endorsement.session(tpm, key) as session:
        assert list(simulator.loaded) == [session]
    assert (Command.PolicyOR in simulator.sent) is uses_or
    started = simulator.commands[simulator.sent.index(Command.StartAuthSession)]
    assert started[-2:] == key.public.name_alg.to_bytes(2, "big")
    assert not simulator.loaded
