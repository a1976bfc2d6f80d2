# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's GPUs as one piece of evidence; `test_a_nodes_devices` is the control."""

import hashlib
from datetime import timedelta

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.firmware import wanted_rims
from securetrain.evidence.gpu.reference import GpuReference
from securetrain.evidence.gpu.rim import RimCache, RimKind
from securetrain.evidence.gpu_appraiser import GpuAppraiser
from securetrain.evidence.node_evidence import DeviceEvidence, device_nonce
from securetrain.policy.schema import Gpu
from tests import vocabulary
from tests.attest.collateral import Shelf, case
from tests.evidence.gpu.authority import DAY, NOW, YEAR, make_authority
from tests.evidence.gpu.forge import GPUS, SWITCHES, Device, hgx_gpu, hgx_switch, key, spki
from tests.evidence.gpu.rimforge import manifest, sign
from tests.tables import forgeries

BINDING = bytes(range(32))
NONCE = device_nonce(BINDING)
AUTHORITY = make_authority(not_before=NOW - YEAR, not_after=NOW + DAY)
GPU = Device()
PDI = GPU.state().pdi
BOARD = [hgx_gpu(number, SWITCHES[:1]) for number in range(2)]
SWITCH = hgx_switch(0, GPUS[:2])


def root_pin():
    return hashlib.sha256(spki(key("root"))).hexdigest()


def rims(*devices, change=None):
    """Signed manifests that say what these devices measure."""
    store = {}
    for device in devices:
        values = {index: [digest] for index, digest in device.measurements().items()}
        if change is not None:
            values = {**values, **change}
        vbios, *driver = wanted_rims(device.state())
        # Each index stands in one RIM only.
        split = 40 if driver else len(values)
        parts = (
            ({i: v for i, v in values.items() if i < split}, vbios),
            *(({i: v for i, v in values.items() if i >= split}, one) for one in driver),
        )
        for golden, wanted in parts:
            edition = "SWITCH" if wanted.kind is RimKind.SWITCH else "GPU"
            text = manifest(
                wanted.version,
                product=wanted.product,
                edition=edition,
                measurements=golden,
                inactive=(),
            )
            store["rim", wanted.id] = sign(text, AUTHORITY)
    return store


def appraiser(devices, shelf, policy=None, **reference):
    settings = {
        "devices": tuple(device.state().pdi for device in devices),
        "gpus": sum(device.kind == "gpu" for device in devices),
        "switches": sum(device.kind == "switch" for device in devices),
        "roots": (root_pin(),),
    }
    return GpuAppraiser(
        policy=policy or Gpu(revocation=False),
        reference=GpuReference(**{**settings, **reference}),
        collateral=Shelf(shelf),
        rims=RimCache(AUTHORITY.roots),
    )


def judge(
    *evidence: DeviceEvidence, devices=(GPU,), shelf=None, enrolled=(), policy=None, **reference
):
    made = appraiser(devices, rims(*devices) if shelf is None else shelf, policy, **reference)
    return made.appraise(evidence, case(BINDING, NOW, NOW + timedelta(minutes=10)), enrolled)


def refused(code, *evidence, **changes):
    return vocabulary.refused(AttestationError, code, judge, *evidence, **changes)


def good(device=GPU):
    return device.evidence(nonce=NONCE)


def test_a_nodes_devices():
    (part,) = judge(good(), enrolled=(PDI,))
    assert part.name == "gpu-0"
    assert part.identities == (f"device:{PDI}",)
    assert part.submodule.trust_vector["hardware"] == 2
    assert part.submodule.claims["measurements"] == 63, "35 is not made"


def test_a_board_that_closes():
    devices = (*BOARD, SWITCH)
    parts = judge(*map(good, devices), devices=devices, policy=Gpu(revocation=False, fabric=True))
    assert [part.name for part in parts] == ["gpu-0", "gpu-1", "switch-2"]


FABRIC = {"policy": Gpu(revocation=False, fabric=True), "names": "node.gpu.fabric"}
WHOLE = {"devices": (*BOARD, SWITCH), "switches": 0}
STRANGER = Device("00112233445566bb")


@forgeries(
    "id, code, evidence, how",
    ("for another connection", 604, [GPU.evidence(nonce=bytes(32))], {}),
    ("a fabric is asked for", 13, [good()], FABRIC),
    ("of another node", 12, [good()], {"enrolled": ("ee" * 8,), "says": PDI}),
    ("of no fleet", 625, [good(STRANGER)], {}),
    ("revoked", 626, [good()], {"revoked_devices": (PDI,)}),
    ("one of two", 632, [good()], {"gpus": 2}),
    ("the same twice", 631, [good(), good()], {"gpus": 2}),
    ("the switch stays silent", 633, list(map(good, BOARD)), WHOLE),
    ("no RIM for this firmware", 735, [good()], {"shelf": {}}),
    ("nobody knows what is revoked", 735, [good()], {"policy": Gpu()}),
)
def test_devices_that_are_refused(code, evidence, how):
    refused(f"ST-ATTS-{code:03}", *evidence, **how)


@pytest.mark.forgery
def test_a_measurement_that_is_not_golden():
    error = refused("ST-ATTS-622", good(), shelf=rims(GPU, change={7: [bytes(48)]}))
    assert "7" in f"{error.what} {error.where}"


def test_answers_are_kept_for_a_minute():
    made = appraiser((GPU,), {}, Gpu())
    first = made._status_at(NOW)
    assert made._status_at(NOW + timedelta(seconds=59)) is first
    later = made._status_at(NOW + timedelta(seconds=61))
    assert later is not first
    assert made._status_at(NOW) is not later, "a clock that went back asks again"
