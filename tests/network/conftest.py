# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.network import namespace
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.wireguard import Endpoint, WireGuardKey
from tests.network.worlds import UNDERLAY, FakeEngine, FakeSystem, Job


@pytest.fixture
def system(tmp_path, monkeypatch):
    folder = tmp_path / "netns"
    folder.mkdir()
    monkeypatch.setattr(namespace, "FOLDER", folder)
    return FakeSystem(folder)


@pytest.fixture
def engine(system):
    return FakeEngine(system)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def raise_overlay(system, engine, state):
    """Make an overlay on the machine in memory."""
    made = []

    def up(node="node-0", **given):
        plan = Plan(
            job=given.pop("job", "job-1"),
            node=node,
            key=given.pop("key", None) or WireGuardKey.generate(),
            endpoint=given.pop("endpoint", UNDERLAY),
            **given,
        )
        overlay = Overlay.up(plan, state=state, engine=engine, run=system)
        made.append(overlay)
        return overlay

    yield up
    system.fail_at = system.fail_after = None
    for overlay in made:
        overlay.down()


@pytest.fixture
def job():
    """Three nodes on the documentation network."""
    return Job({f"node-{n}": Endpoint(UNDERLAY + n, 51820) for n in range(3)})
