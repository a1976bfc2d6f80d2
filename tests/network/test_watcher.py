# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import subprocess
import threading
from pathlib import Path

import pytest

from securetrain.network import watcher as module
from securetrain.network.watcher import Watcher


class Process:
    """A device whose engine is a process."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(["sleep", "300"])

    def process(self):
        return self.child.pid

    def failure_reason(self):
        return "" if self.child.poll() is None else "it is dead"


class Kernel:
    """A device of the kernel."""

    how = ""

    def process(self):
        return None

    def failure_reason(self):
        return self.how


class Told:
    def __init__(self) -> None:
        self.all: list[str] = []
        self.event = threading.Event()

    def __call__(self, how):
        self.all.append(how)
        self.event.set()


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def engine():
    device = Process()
    yield device
    device.child.kill()
    device.child.wait()


def test_the_end_of_a_process_is_known_at_once(engine, monkeypatch):
    monkeypatch.setattr(module, "_POLL_MS", 60_000)
    told = Told()
    watcher = Watcher(engine, told)
    assert not told.event.wait(0.05)
    engine.child.kill()
    assert told.event.wait(10)
    watcher.stop()
    assert told.all == ["it is dead"]


def test_a_device_of_the_kernel_is_looked_for(monkeypatch):
    monkeypatch.setattr(module, "_POLL_MS", 5)
    told, device = Told(), Kernel()
    watcher = Watcher(device, told)
    assert not told.event.wait(0.05)
    device.how = "gone"
    assert told.event.wait(10)
    watcher.stop()
    assert told.all == ["gone"]


def test_stopped_is_silent_and_leaves_no_descriptor(engine, monkeypatch):
    monkeypatch.setattr(module, "_POLL_MS", 60_000)
    before = num_descriptors()
    told = Told()
    watcher = Watcher(engine, told)
    watcher.stop()
    watcher._thread.join(10)
    assert not watcher._thread.is_alive()
    engine.child.kill()
    assert told.all == []
    assert num_descriptors() == before
    watcher.stop()


def test_what_dies_while_it_is_stopped_is_no_death(monkeypatch):
    monkeypatch.setattr(module, "_POLL_MS", 5)
    told, device, ready = Told(), Kernel(), threading.Event()
    made: list[Watcher] = []

    def failure_reason():
        assert ready.wait(10)
        made[0].stop()  # down() is at work, and has closed the device
        return "it was closed"

    monkeypatch.setattr(device, "failure_reason", failure_reason)
    made.append(Watcher(device, told))
    ready.set()
    made[0]._thread.join(10)
    assert told.all == []


def test_the_one_who_is_told_may_stop_it(engine):
    done = threading.Event()
    watcher: list[Watcher] = []

    def died(_how):
        watcher[0].stop()
        done.set()

    watcher.append(Watcher(engine, died))
    engine.child.kill()
    assert done.wait(10)
