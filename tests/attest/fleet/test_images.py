# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Images by signature: the command writes what the verifier reads.

Commands of docs/how-to/attest-a-fleet.md are tried here.
"""

import msgspec
import pytest

from securetrain.attest.fleet.images import accept_images
from securetrain.attest.fleet.values import retire
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.reference import ImageGroup
from tests import vocabulary
from tests.attest.worlds import World, tpm
from tests.evidence.test_late_exchange import UkiBoot, fleet
from tests.evidence.tpm import lateboots as uki
from tests.rsa_keys import rsa_key
from tests.tables import each

KEY = rsa_key(2048, 5)
PEM = uki.pem(KEY)


def changed(values, keys=(), retired=(), group=""):
    return accept_images(values, keys=keys, retired=retired, group=group)


@pytest.mark.forgery
def test_an_image_comes_in_by_its_signature_and_is_thrown_out_by_its_digest():
    world = fleet()
    values = changed(world.values, [PEM])
    assert changed(values, [PEM]).late == values.late
    world = World(world.machine, values=values)
    world.machine.boot(UkiBoot(linux=b"a new kernel"))
    one = uki.prediction(KEY, dict(world.machine.tpm.values()))
    world.join(forge=tpm(pcr_signatures=uki.signed(one)))
    over = World(world.machine, values=changed(values, retired=[one["pol"]]))
    over.refused("ST-ATTS-242", forge=tpm(pcr_signatures=uki.signed(one)))


def test_a_group_of_its_own():
    world = fleet()
    late = world.values.late
    values = msgspec.structs.replace(world.values, late=None, groups={"g": ImageGroup(late=late)})
    made = changed(values, [PEM], group="g")
    assert made.groups["g"].late.policy_keys == (PEM,)
    assert made.late is None
    assert late
    without = retire(made, [late.words["12"][0]]).groups["g"].late
    assert without
    assert without.words == {"12": ()}


@each(
    "code, how",
    ("ST-USAG-001", {}),
    ("ST-USAG-001", {"retired": ["x"]}),
    ("ST-USAG-001", {"retired": ["AB" * 32]}),
    ("ST-ATTS-009", {"keys": ["x"]}),
    ("ST-ATTS-009", {"keys": [PEM], "group": "other"}),
)
def test_bad_input(code, how):
    kind = UsageError if code == "ST-USAG-001" else AttestationError
    vocabulary.refused(kind, code, changed, fleet().values, **how)


def test_a_group_whose_registers_are_not_judged():
    error = vocabulary.refused(UsageError, "ST-USAG-001", changed, fleet(late=None).values, [PEM])
    assert "learn a boot" in error.fix
