# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A launcher that dies while it finishes what a death has interrupted, and again the next time: the
third one comes to the same end, wherever the two were.
"""

import os
import random
import shutil
import signal

import pytest

from securetrain.artifacts.lineage import head
from securetrain.artifacts.lineage.folder import REMOVING
from securetrain.artifacts.lineage.head import read_head
from securetrain.artifacts.statement.statements import Parent, ParentRole
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRole
from securetrain.launch.checkpoints.restart import Restart
from securetrain.ledger import Ledger, events, verify_ledger
from tests.launch.test_restart import Run, at, gone, membership
from tests.train.lives import Fault, How, Injector

DEATHS = [How.BEFORE, How.AFTER, How.TORN, How.POWER]


class Interrupted(Run):
    """A run that a death has left with all that may be left, and copies of it."""

    def __init__(self, tmp_path, scenario):
        super().__init__(tmp_path)
        self.begin(3)
        self.evicted, self.number, self.tmp_path = (), 0, tmp_path
        scenario(self)
        folder = self.made.run_dir.checkpoints
        staged = folder / f"step-00000009.tmp-{'ab' * 16}"
        staged.mkdir()
        (staged / "rank-00000.bin").write_bytes(b"half")
        (folder / f".head.json.tmp-{'ab' * 6}").write_bytes(b"half")
        with self.made.run_dir.ledger.open("ab") as file:
            file.write(b'{"body": {"half')

    def chain(self, *steps, noted):
        """Save; each names the one before it, the first that of the chain before."""
        for step in steps:
            before = [self.last] if self.last else []
            parents = [Parent(digest=one, role=ParentRole.PREVIOUS) for one in before]
            self.last = self.save(step, seq=step, parents=parents, noted=noted)

    last = ""

    def copy(self):
        self.number += 1
        root = self.tmp_path / f"copy-{self.number}"
        shutil.copytree(self.made.run_dir.root, root)
        return root

    def start(self, root, fault=None):
        """Start a launcher in a process of its own; returns its calls, or how it died."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                injector = Injector(str(root), fault)
                injector.install()
                run = RunDir(root)
                ledger = Ledger(run.ledger, self.made.keys["agent"], "agent", self.clock)
                restart = Restart(
                    run=run, run_id="run-1", ledger=ledger, clock=self.clock, say=lambda _: None
                )
                restart.begin(membership(4, *self.evicted), lambda time: time)
                os.write(writing, str(injector.count).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as said:
            text = said.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return int(text) if status == 0 else status

    def state(self, root):
        """What counts: names, the head, and what the ledger says of checkpoints."""
        run, trust = RunDir(root), self.made.trust
        data = run.ledger.read_bytes()
        said = head.read_history(head.read_run_ledger(run.ledger, trust).recorded)
        found = read_head(LocalStorage(run.checkpoints), trust)
        recovered = [
            entry.body.event.subject
            for entry in verify_ledger(data, trust.keys_for(TrustRole.LEDGER)).entries
            if entry.body.event.event == "checkpoint-recovered"
        ]
        names = sorted(path.name for path in run.checkpoints.iterdir())
        return (
            [name for name in names if name != ".head.lock"],
            None if found is None else found.step,
            [(made.step, made.digest) for made in said.made],
            said.set_aside,
            said.restart,
            said.going_back,
            recovered,
        )


def rolling_forward(run):
    run.chain(1, 2, noted=True)
    run.chain(3, 4, noted=False)
    first = run.made.run_dir.checkpoint(1)
    first.rename(first.with_name(first.name + REMOVING))


def going_back(run):
    run.chain(1, 2, 3, noted=True)
    said = events.RolledBack(subject="step 35", to=1, ranks="2", evidence="bad")
    run.made.ledger("rank-0").write(said)


def after_an_eviction(run):
    run.chain(1, 2, 3, noted=True)
    run.chain(4, noted=False)
    run.evicted = (gone(at(15)),)


SCENARIOS = [rolling_forward, going_back, after_an_eviction]


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.__name__)
def run(request, tmp_path):
    return Interrupted(tmp_path, request.param)


def two_deaths(run, wanted, places, how):
    first, second = places
    root = run.copy()
    assert run.start(root, Fault(0, first, how[0])) == -signal.SIGKILL
    # What is left may be less than that, and is done then.
    ended = run.start(root, Fault(0, second, how[1]))
    assert ended == -signal.SIGKILL or 0 <= ended < second, ended
    assert run.start(root) > 0
    assert run.state(root) == wanted, (places, how)
    shutil.rmtree(root)


def undisturbed(run):
    root = run.copy()
    calls = run.start(root)
    assert calls > 10
    return run.state(root), calls


def test_two_deaths_of_a_launcher_that_recovers(run):
    wanted, calls = undisturbed(run)
    draw = random.Random(7)
    for _ in range(3):
        places = draw.randint(1, calls), draw.randint(1, calls)
        two_deaths(run, wanted, places, (draw.choice(DEATHS), draw.choice(DEATHS)))


@pytest.mark.many
@pytest.mark.timeout(3600)
def test_two_deaths_at_every_pair_of_calls(run):
    wanted, calls = undisturbed(run)
    draw = random.Random(7)
    for first in range(1, calls + 1):
        for second in range(1, calls + 1):
            how = draw.choice(DEATHS), draw.choice(DEATHS)
            two_deaths(run, wanted, (first, second), how)
