# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a node's devices teach."""

import msgspec

from securetrain.attest.fleet.learn_gpu import LearnedDevices, learn_devices, merge_devices
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.reference import GpuReference, check_reference
from tests.attest.worlds import refused
from tests.evidence.gpu.forge import GPUS, NONCE, NOW, SWITCHES, Device, hgx_gpu, hgx_switch, roots
from tests.tables import forgeries

GPU = Device()


def learn(*devices, nonce=NONCE, trusted=None):
    evidence = [device.evidence(nonce=NONCE) for device in devices]
    return learn_devices(evidence, nonce=nonce, now=NOW, roots=trusted or roots())


def test_one_gpu():
    learned = learn(GPU)
    assert learned == LearnedDevices(gpus=(GPU.pdi,), switches=())
    reference = merge_devices(GpuReference(), learned)
    assert (reference.devices, reference.gpus, reference.switches) == ((GPU.pdi,), 1, 0)
    check_reference(GPU.state(), reference)


def test_a_whole_board():
    devices = [hgx_gpu(n, SWITCHES) for n in range(8)] + [hgx_switch(n, GPUS) for n in range(4)]
    learned = learn(*devices)
    assert learned.pdis == (*GPUS, *SWITCHES)
    reference = merge_devices(GpuReference(), learned)
    assert (reference.gpus, reference.switches) == (8, 4)


@forgeries(
    "id, code, devices, how",
    ("another-bundle", "ST-ATTS-604", [GPU], {"nonce": bytes(32)}),
    ("another-root", "ST-ATTS-609", [GPU], {"trusted": {"ab" * 32}}),
    ("one-device-twice", "ST-ATTS-631", [GPU, GPU], {}),
    (
        "switches-that-stay-silent",
        "ST-ATTS-633",
        [hgx_gpu(0, SWITCHES), hgx_switch(0, GPUS[:1])],
        {},
    ),
    (
        "a-switch-that-is-not-locked",
        "ST-ATTS-637",
        [hgx_gpu(0, SWITCHES[:1]), hgx_switch(0, GPUS[:1], f25=b"\0\0")],
        {},
    ),
)
def test_devices_that_teach_nothing(code, devices, how):
    refused(code, lambda: learn(*devices, **how))


def test_a_second_node_of_the_same_kind():
    first = merge_devices(GpuReference(modes=(Mode.SPT,)), learn(GPU))
    other = Device("00112233445566bb")
    merged = merge_devices(first, learn(other))
    assert merged.devices == (GPU.pdi, other.pdi)
    assert (merged.gpus, merged.modes) == (1, (Mode.SPT,))
    assert merge_devices(merged, learn(other)) == merged


def test_a_node_with_another_number_of_devices():
    first = merge_devices(GpuReference(), learn(GPU))
    more = LearnedDevices(gpus=("00" * 8, "11" * 8), switches=())
    refused("ST-ATTS-632", lambda: merge_devices(first, more), says="2 GPUs and 0 switches")
    with_switch = msgspec.structs.replace(first, switches=4)
    refused("ST-ATTS-632", lambda: merge_devices(with_switch, learn(GPU)))
