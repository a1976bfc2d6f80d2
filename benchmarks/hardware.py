# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What reports of GPUs, switches and confidential CPUs cost their verifier.

Devices and CPUs are forged in the form of their makers', with certificates of the same length and
algorithms, so nothing is needed but this repository. "Cold" remembers nothing of anybody; "warm" is
the second appraisal of the same node, which is what a renewal is. Where the test vectors are
(SECURETRAIN_VECTORS) a genuine board of NVIDIA's is measured too; elsewhere its line is missing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final

from benchmarks.ab import Benchmark, Goal
from benchmarks.cpu import Bound, Cpu, Sample
from securetrain.evidence.node_evidence import DeviceEvidence, TeeEvidence, device_nonce
from tests.attest.collateral import case
from tests.evidence import test_gpu_appraiser as gpus
from tests.evidence import test_tee_appraiser as cpus
from tests.evidence.gpu.forge import GPUS, NOW, SWITCHES, hgx_gpu, hgx_switch
from tests.evidence.gpu.test_genuine import HGX
from tests.evidence.vectors import vectors

LEASE: Final = timedelta(minutes=10)
REPORTS: Final = 20
NUM_GPUS: Final = 8
NUM_SWITCHES: Final = 4
DEVICES: Final = NUM_GPUS + NUM_SWITCHES
BOARD: Final = HGX + "gpu_evidence.json"


def _timed(operation: Callable[[], object]) -> float:
    started = time.process_time()
    operation()
    return time.process_time() - started


@contextmanager
def board(count: int, *, warm: bool) -> Iterator[Sample]:
    """Eight GPUs and four switches, from their reports to the golden values of their RIMs."""
    del count
    devices = [
        *(hgx_gpu(number, SWITCHES) for number in range(NUM_GPUS)),
        *(hgx_switch(number, GPUS) for number in range(NUM_SWITCHES)),
    ]
    shelf = gpus.rims(devices[0], devices[-1])
    reports = [device.evidence(nonce=device_nonce(gpus.BINDING)) for device in devices]
    asked = case(gpus.BINDING, NOW, NOW + LEASE)

    def sample() -> float:
        appraiser = gpus.appraiser(devices, shelf)
        if warm:
            appraiser.appraise(reports, asked, ())
        return _timed(lambda: appraiser.appraise(reports, asked, ()))

    yield sample


@contextmanager
def genuine_board(count: int) -> Iterator[Sample]:
    """The same of a real machine, whose RIMs are not at hand."""
    from securetrain.evidence.gpu.report import verify_device
    from securetrain.evidence.gpu.topology import check_fabric
    from securetrain.identity import paths
    from tests.evidence.gpu.test_genuine import NOW as THEN
    from tests.evidence.gpu.test_genuine import board

    del count
    reports: list[tuple[DeviceEvidence, bytes]] = list(board())

    def sample() -> float:
        cache = paths.Links()
        return _timed(
            lambda: check_fabric(
                [verify_device(r, nonce=nonce, now=THEN, cache=cache) for r, nonce in reports],
                gpus=NUM_GPUS,
                switches=NUM_SWITCHES,
            )
        )

    yield sample


@contextmanager
def reports(count: int, *, make: Callable[[], TeeEvidence], warm: bool) -> Iterator[Sample]:
    """Reports of a CPU."""
    del count
    evidence = make()
    known = cpus.appraiser()
    asked = case(cpus.BINDING, NOW, NOW + LEASE)

    def sample() -> float:
        seconds = 0.0
        for _ in range(REPORTS):
            appraiser = known if warm else cpus.appraiser()
            seconds += _timed(partial(appraiser.appraise, evidence, asked, (), cpus.NO_BOOT))
        return seconds / REPORTS

    yield sample


_GENUINE: Final[tuple[Benchmark, ...]] = (
    Cpu(
        name="attest-hgx-genuine",
        title="a real HGX board, 8 GPUs and 4 switches, nothing remembered, without RIMs",
        goal=Goal(seconds=0.060),
        bound=Bound(p384=DEVICES * 3 + 4),
        prepare=genuine_board,
    ),
)

BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Cpu(
        name="attest-hgx-cold",
        title="an HGX node of 8 GPUs and 4 switches, nothing remembered, RIMs included",
        goal=Goal(seconds=0.060),
        # Of each device the report and two certificates; one root and family; two kinds of
        # devices; three RIMs with a chain of four.
        bound=Bound(p384=DEVICES * 3 + 4 + 3 * 5),
        prepare=partial(board, warm=False),
    ),
    Cpu(
        name="attest-hgx-warm",
        title="the same HGX node again",
        goal=Goal(seconds=0.025),
        bound=Bound(p384=DEVICES),
        prepare=partial(board, warm=True),
    ),
    *(_GENUINE if vectors(BOARD) else ()),
    *(
        Cpu(
            name=f"attest-{name}-{'warm' if warm else 'cold'}",
            title=f"{title}, {'again' if warm else 'nothing remembered'}",
            goal=Goal(seconds=1 / (500 if warm else 350)),
            bound=again if warm else first,
            prepare=partial(reports, make=make, warm=warm),
        )
        for name, title, make, first, again in (
            (
                *("snp", "an SEV-SNP report up to AMD's root", cpus.snp),
                *(Bound(p384=1, rsa4096=4), Bound(p384=1)),
            ),
            (
                *("tdx", "a TDX quote up to Intel's root with its collateral", cpus.tdx),
                *(Bound(p256=11), Bound(p256=2)),
            ),
        )
        for warm in (False, True)
    ),
)
