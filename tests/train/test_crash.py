# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whatever kills a run, whenever, however often: it goes on by itself along the same curve."""

import json
import os
import random
import re
import shutil
import signal

import pytest

from securetrain.artifacts.verify import verify_path
from securetrain.core.codes import ExitCode
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRole
from securetrain.ledger import verify_ledger
from tests.train.conftest import now
from tests.train.jobs import JOB
from tests.train.lives import Fault, How, Job, live

FIRST = int(os.environ.get("CRASH_FIRST", "0"))
SEQUENCES = int(os.environ.get("CRASH_SEQUENCES", "1000"))
STRIDE = int(os.environ.get("CRASH_STRIDE", "1"))
"""Every so many calls: for a quick look."""
TWO_NODES = 5
"""The number of a sequence on two nodes."""
CURVES: dict[int, list[tuple[object, ...]]] = {}
BACKGROUND = "checkpoint: {every: 2, keep: 2, background: true}"
FOREGROUND = "checkpoint: {every: 2, keep: 2}"
TINY = (
    JOB.replace("checkpoint: {every: 3}", FOREGROUND)
    .replace("eval: {every: 3, rows: 4}", "eval: {every: 6, rows: 4}")
    .replace("steps: 6", "steps: 8")
)


def curve(root):
    keys = ("step", "loss", "grad_norm", "lr", "val_bits_per_byte", "tokens", "verdict")
    lines = RunDir(root).metrics.read_text().splitlines()
    return [tuple(json.loads(line)[key] for key in keys) for line in lines]


def names(root):
    return sorted(path.name for path in RunDir(root).checkpoints.iterdir())


def left_over(root):
    """What no save that ended well leaves; of the finished ones, more than the job keeps."""
    finished = [name for name in names(root) if re.fullmatch(r"step-\d{8}", name)]
    whole = {"head.json", ".head.lock", *finished[-2:]}
    beside = [path.name for path in root.iterdir() if ".tmp-" in path.name]
    return [name for name in names(root) if name not in whole] + beside


@pytest.fixture
def run(new_run):
    """A run that has not begun; `fresh` copies it, so that all have the same keys and data."""
    return new_run("run")


@pytest.fixture
def fresh(run, tmp_path):
    count = iter(range(10**9))

    def copy():
        root = tmp_path / f"copy-{next(count)}"
        shutil.copytree(run.run_dir.root, root)
        return root

    return copy


def job(*, background=False, world=1):
    text = TINY.replace(FOREGROUND, BACKGROUND) if background else TINY
    return Job(text=text, world=world)


@pytest.fixture
def wanted(fresh):
    """The curves of runs that nobody disturbed, by the number of ranks: no key has a part in it."""

    def of(world):
        if world not in CURVES:
            root = fresh()
            assert {end.code for end in live(root, job(world=world))} == {0}
            CURVES[world] = curve(root)
        return CURVES[world]

    return of


def goes_on(root, asked, wanted):
    """Start it once more, with nobody to disturb it; nothing of its deaths is left."""
    ends = live(root, asked)
    assert [(end.code, end.refusal) for end in ends] == [(0, "")] * asked.world, (ends, names(root))
    assert curve(root) == wanted(asked.world)
    assert left_over(root) == []


def test_two_kills_between_data_and_entry(run, wanted):
    root = run.run_dir.root
    for step in (2, 4):
        fault = Fault(0, 1, How.AFTER, on=f"rename {run.run_dir.checkpoint(step)}.tmp-")
        (end,) = live(root, job(), fault)
        assert (end.code, end.refusal) == (-9, "")
    goes_on(root, job(), wanted)
    keys = run.trust.keys_for(TrustRole.LEDGER)
    said = verify_ledger(run.run_dir.ledger.read_bytes(), keys).entries
    found = [e.body.event.event for e in said if e.body.event.event.startswith("checkpoint-")]
    assert found == [
        *["checkpoint-recovered"] * 2,
        *["checkpoint-signed", "checkpoint-removed"] * 2,
    ]
    for step in (6, 8):
        path = run.run_dir.checkpoint(step)
        assert verify_path(path, trust=run.trust, policy=None, now=now()).ok


def fault_at(root, asked, call, how, wanted):
    """One fault at one call, and what becomes of the run."""
    ends = live(root, asked, Fault(0, call, how))
    for end in ends:
        match how:
            case How.FULL:
                assert end.code == ExitCode.IO, (call, ends)
                assert end.refusal.startswith(("ST-USAG-006", "ST-CKPT-202")), (call, ends)
                assert "free some space" in end.refusal
            case How.BROKEN:
                assert re.match(r"ST-[A-Z]{4}-\d{3}: ", end.refusal), (call, ends)
            case How.STOP:
                assert end.code in {ExitCode.OK, ExitCode.INTERRUPTED}, (call, ends)
                # It ends with all that it had done, unless the signal came before the first step.
                assert names(root)[-1] == f"step-{curve(root)[-1][0]:08d}", call
            case _:
                assert end.code == -signal.SIGKILL, (call, ends)
    goes_on(root, asked, wanted)
    shutil.rmtree(root)


EVERY = [(how, background) for how in How for background in (False, True)]


@pytest.mark.parametrize(("how", "background"), EVERY)
@pytest.mark.many
@pytest.mark.timeout(3600)
def test_a_fault_at_every_call(fresh, wanted, how, background):
    """Between the first byte and the last record, at each call that changes a file."""
    asked = job(background=background)
    (whole,) = live(fresh(), asked)
    assert whole.calls > 100
    for call in range(1, whole.calls + 1, STRIDE):
        fault_at(fresh(), asked, call, how, wanted)


@pytest.mark.parametrize(
    ("call", "how"),
    [(60, How.TORN), (61, How.POWER), (100, How.STOP), (130, How.FULL)],
    ids=str,
)
def test_a_fault_at_some_calls(fresh, wanted, call, how):
    fault_at(fresh(), job(background=how is How.TORN), call, how, wanted)


def sequence(root, number, calls, wanted):
    """One to three deaths of one run, drawn by its number; then it goes on."""
    draw = random.Random(number)
    world = draw.choice([1, 1, 2])
    for _ in range(draw.randint(1, 3)):
        asked = job(background=draw.random() < 0.5, world=world)
        how = draw.choice([How.BEFORE, How.AFTER, How.TORN])
        rank = draw.randrange(world)
        fault = Fault(rank, draw.randint(1, calls[world, rank]), how)
        ends = live(root, asked, fault)
        codes = {end.code for end in ends}
        # A life that is shorter than the one that was counted ends well.
        assert -signal.SIGKILL in codes or codes == {0}, (number, fault, ends)
    goes_on(root, job(background=draw.random() < 0.5, world=world), wanted)


def test_a_sequence_of_kills_on_two_nodes(fresh, wanted):
    calls = {(2, 0): 176, (2, 1): 36}
    sequence(fresh(), TWO_NODES, calls, wanted)


@pytest.mark.many
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_sequences_of_kills(fresh, wanted):
    calls = {
        (world, rank): end.calls
        for world in (1, 2)
        for rank, end in enumerate(live(fresh(), job(world=world)))
    }
    for number in range(FIRST, FIRST + SEQUENCES):
        root = fresh()
        sequence(root, number, calls, wanted)
        shutil.rmtree(root)
