# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Boards whose devices do not belong together; `test_the_board_closes` is the control."""

import dataclasses

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.topology import check_fabric
from tests import vocabulary
from tests.evidence.gpu.forge import GPUS, SWITCHES, Device, hgx, hgx_gpu, hgx_switch
from tests.tables import each, forgeries

STRANGER = "ee" * 8


def board(**replaced):
    """The board's states with some replaced: g0=state, s1=None removes one."""
    names = [f"g{number}" for number in range(8)] + [f"s{number}" for number in range(4)]
    states = dict(zip(names, hgx(), strict=True)) | replaced
    return [state for state in states.values() if state is not None]


def changed(state, **changes):
    """A verified state that says something else."""
    claims = {name: changes.pop(name) for name in ("mode", "peers", "locked") if name in changes}
    return dataclasses.replace(state, claims=dataclasses.replace(state.claims, **claims), **changes)


def mpt(number):
    fields = {21: b"\x55", 36: b"\x01\x00"}
    return Device(f"{0x9000 + number:016x}", "GB100", fields=fields).state()


def gpu(number=2, peers=SWITCHES, nonce=None, **fields):
    made = hgx_gpu(number, peers, **fields)
    return made.state() if nonce is None else made.state(nonce=nonce)


def switch(number, peers=GPUS, nonce=None, **fields):
    made = hgx_switch(number, peers, **fields)
    return made.state() if nonce is None else made.state(nonce=nonce)


def test_the_board_closes():
    fabric = check_fabric(board(), gpus=8, switches=4)
    assert fabric.mode is Mode.PPCIE
    assert fabric.gpus == GPUS
    assert fabric.switches == SWITCHES
    assert fabric.closed


def test_the_order_does_not_matter():
    assert check_fabric(board()[::-1], gpus=8, switches=4) == check_fabric(
        board(), gpus=8, switches=4
    )


@each("count", 1, 4)
def test_gpus_without_a_fabric(count):
    fabric = check_fabric([mpt(number) for number in range(count)], gpus=count, switches=0)
    assert fabric.mode is Mode.MPT
    assert not fabric.closed
    assert len(fabric.gpus) == count


def test_a_node_without_devices():
    fabric = check_fabric([], gpus=0, switches=0)
    assert fabric.mode is None
    assert not fabric.closed


GPU, OTHER_GPU = hgx()[0], hgx()[1]
SWITCH = hgx()[8]
BACKWARDS = [bytes.fromhex(pdi)[::-1].hex() for pdi in SWITCHES]
NOT_OURS = f"names {STRANGER} that is not attested, does not name {SWITCHES[0]} that is"
ONE_MORE = f"names {STRANGER} that is not attested, does not name nothing"
STALE = {"nonce": bytes(32)}
FORGED = {
    # Twice and missing.
    "same-gpu-twice": (board(g1=GPU), 631, GPUS[0]),
    "same-switch-twice": (board(s1=SWITCH), 631, SWITCHES[0]),
    "same-gpu-with-another-leaf": (board(g1=changed(GPU, ueid="1", serial="00")), 631, GPUS[0]),
    "a-gpu-and-a-switch-of-one-pdi": (board(s1=changed(SWITCH, pdi=GPUS[0])), 631, GPUS[0]),
    "missing-gpu": (board(g3=None), 632, "7 of kind gpu, the node has 8"),
    "missing-switch": (board(s3=None), 632, "3 of kind switch, the node has 4"),
    "no-switches": (board(s0=None, s1=None, s2=None, s3=None), 632, "0 of kind switch"),
    "switches-alone": (hgx()[8:], 632, "0 of kind gpu"),
    "ninth-gpu": ([*board(), gpu(8)], 632, "9 of kind gpu"),
    "fifth-switch": ([*board(), switch(4)], 632, "5 of kind switch"),
    # Links.
    "gpu-of-another-node": (board(g2=gpu(99, [STRANGER, *SWITCHES[1:]])), 633, NOT_OURS),
    "gpu-that-names-these-switches": (board(g2=gpu(99)), 634, f"not name {0x1000 + 99:016x}"),
    "gpu-with-a-further-switch": (board(g2=gpu(2, [*SWITCHES, STRANGER])), 633, ONE_MORE),
    "gpu-with-a-switch-less": (board(g2=gpu(2, SWITCHES[:3])), 633, SWITCHES[3]),
    "gpu-without-links": (board(g2=gpu(2, [])), 633, "names nothing"),
    "gpu-that-tells-no-links": (board(g2=gpu(2, [], f22=None)), 633, "names nothing"),
    "gpu-with-pdis-backwards": (board(g2=gpu(2, BACKWARDS)), 633, "that is not attested"),
    "switch-of-another-board": (
        *(board(s2=switch(2, [STRANGER, *GPUS[1:]])), 634, f"names {STRANGER}"),
    ),
    "switch-that-is-not-attested": (board(s2=switch(99)), 633, SWITCHES[2]),
    "switch-with-a-gpu-less": (board(s2=switch(2, GPUS[:7])), 634, GPUS[7]),
    "switch-without-gpus": (board(s2=switch(2, [])), 634, "names nothing"),
    "unlocked-switch": (board(s1=switch(1, f25=b"\0\0")), 637, "changed"),
    # Nonce and mode.
    "a-gpu-of-another-nonce": (board(g5=gpu(5, **STALE)), 635, "more than one nonce"),
    "a-switch-of-another-nonce": (board(s3=switch(3, **STALE)), 635, "more than one nonce"),
    "one-gpu-in-spt": (board(g4=gpu(4, f21=b"\x55", f36=b"\0\0")), 636, "ppcie, spt"),
    "one-gpu-unstated": (board(g4=gpu(4, f21=b"\x55", f36=None)), 636, "ppcie, unstated"),
}


@forgeries("id, states, code, what", FORGED)
def test_forged_board_is_refused(states, code, what):
    refused(code, what, states)


NAMED = gpu(0, f21=b"\x55", f36=None)
SPT = [mpt(0), mpt(1), Device("aa" * 8).state()]
FAR = [f"{0x6000 + number:016x}" for number in range(4)]
HALVES = [*board()[4:8], *(gpu(100 + number, FAR) for number in range(4)), *board()[8:]]


@forgeries(
    "id, code, what, states, gpus, switches",
    ("SPT and MPT do not mix", 636, "mpt, spt", SPT, 3, 0),
    # Reference values forgot the switches.
    ("protected PCIe needs them", 633, "names nothing", [gpu(0, [], f22=None)], 1, 0),
    ("named in another mode", 633, "is not attested", [NAMED], 1, 0),
    # A switch that nobody asked for must still name the node's GPUs, and they it.
    ("a switch nobody asked for", 633, "names nothing", [mpt(0), SWITCH], 1, 1),
    ("a switch alone", 634, GPUS[0], [SWITCH], 0, 1),
    # Each half is genuine and closed among its own board.
    ("two halves of two boards", 633, FAR[0], HALVES, 8, 4),
)
def test_nodes_that_do_not_close(code, what, states, gpus, switches):
    assert NAMED.mode is Mode.UNSTATED
    refused(code, what, states, gpus, switches)


def refused(code, what, states, gpus=8, switches=4):
    how = {"gpus": gpus, "switches": switches, "says": what}
    error = vocabulary.refused(AttestationError, f"ST-ATTS-{code}", check_fabric, states, **how)
    assert error.where.startswith("fabric")
