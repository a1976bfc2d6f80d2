# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verifier of a large fleet forgets what it can work out again, and nothing else."""

import hashlib
import random

import pytest

from securetrain.core.vocabulary import NodeTier
from tests.attest.worlds import Machine, World, tpm


@pytest.fixture
def world(monkeypatch):
    """Three nodes, and room for one key that is ready."""
    monkeypatch.setattr("securetrain.evidence.tpm_appraiser.READY_KEYS", 1)
    return World(*(Machine(f"node-{n}") for n in range(3)))


def _keys(world):
    return world.appraiser._tpm._attestation_keys


def _ready(world):
    """How many attestation keys OpenSSL holds."""
    known = (_keys(world).get(machine.keys().ak_public) for machine in world.machines)
    return sum("_native" in vars(key) for key in known if key is not None)


def test_keys_that_were_forgotten_verify_again(world):
    drawn = random.Random(5)
    for machine in world.machines:
        assert world.join(machine).tier is NodeTier.TPM
        assert _ready(world) == 1
    assert len(_keys(world)) == 3
    for _ in range(20):
        assert world.join(drawn.choice(world.machines)).tier is NodeTier.TPM
        assert _ready(world) == 1


@pytest.mark.forgery
@pytest.mark.parametrize("other", [1, 2])
def test_a_key_that_was_forgotten_is_nobody_elses(world, other):
    """The quote of a node by the key that is ready, which is another node's."""
    for machine in world.machines:
        world.join(machine)
    ask, binding = world.ask(world.machines[other])
    said = world.machines[other].collect(binding, ask)
    world.refused("ST-ATTS-111", forge=tpm(signature=said.tpm.signature))
    world.refused("ST-ATTS-010")


def test_an_endorsement_key_is_not_held_ready_after_its_challenge(world):
    for _ in range(2):
        world.join()
        _, opening = world.verifier._open("node-0", world.machine.keys())
        assert "_native" not in vars(opening.endorsement.key)
        world.verifier.release("node-0")


def test_nodes_that_boot_alike_share_their_registers(world):
    for machine in world.machines:
        world.join(machine)
    leases = world.verifier._leases.values()
    assert len({lease.registers for lease in leases}) == 1
    assert len({id(lease.registers) for lease in leases}) == 1


@pytest.mark.forgery
@pytest.mark.parametrize("pcr", [0, 4, 7, 9])
def test_registers_that_another_node_has_are_still_a_change(world, pcr):
    """A node takes over the very registers that the verifier keeps for others."""
    alike, late = world.machines[:2]
    late.extend(pcr, hashlib.sha256(b"measured later").digest())
    kept = b"".join(dict(late.tpm.values(range(10))).values())
    world.appraiser._tpm._shared(kept)
    world.join(alike)
    alike.extend(pcr, hashlib.sha256(b"measured later").digest())
    assert world.refused("ST-ATTS-008", alike).where == f"PCR {pcr}"
