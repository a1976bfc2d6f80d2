# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import threading
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import overlay as module
from securetrain.network import record
from securetrain.network.addresses import Names, address
from securetrain.network.namespace import Namespace
from securetrain.network.overlay import Overlay, Plan, require_only_way, underlay_mtu
from securetrain.network.process_identity import Owner
from securetrain.network.wireguard import Endpoint, WireGuardKey
from tests import vocabulary
from tests.network.worlds import UNDERLAY, Link


@pytest.fixture
def overlay(raise_overlay, job):
    return raise_overlay(key=job.keys["node-0"], port=51820)


def refused(code, call, *arguments, **how):
    return vocabulary.refused(NetworkError, code, call, *arguments, **how)


def test_up_without_members(overlay, system, engine, job, state):
    inside = system.spaces[overlay.names.namespace]
    assert set(inside) == {"lo", "st0"}
    assert inside["st0"].is_up
    assert inside["st0"].mtu == 1500 - 80
    assert inside["st0"].addresses == []
    assert set(system.spaces[""]) == {"lo", "eth0"}
    assert engine.device.state.private_key == job.keys["node-0"].secret()
    assert engine.device.state.peers == ()
    assert overlay.port == 51820
    assert (overlay.epoch, overlay.address) == (-1, None)
    assert "policy drop" in system.tables[overlay.names.namespace]["securetrain"]
    assert "udp dport 51820 drop" in system.tables[""][overlay.names.table]
    (entry,) = record.entries(state)
    assert entry.record is not None
    assert entry.record.owner == Owner.current()


def test_the_filter_stands_before_there_is_something_to_filter(overlay, system):
    def first(words):
        return next(i for i, line in enumerate(system.lines) if words in line)

    filtered = first("nft -f -")
    moved = first(f"link set dev {overlay.names.device} netns {overlay.names.namespace}")
    up = first("link set dev st0 up")
    assert filtered < moved < up


def test_any_port_is_read_back(raise_overlay):
    assert raise_overlay().port == 51820


def test_an_epoch(overlay, system, engine, job):
    overlay.apply(1, job.members("node-0"))
    assert overlay.epoch == 1
    assert overlay.address == address("job-1", 0)
    assert system.spaces[overlay.names.namespace]["st0"].addresses == [f"{overlay.address}/20"]
    assert [peer.public_key for peer in engine.device.state.peers] == [
        job.keys[node].public for node in ("node-1", "node-2")
    ]
    rules = system.tables[""][overlay.names.table]
    assert "192.0.2.2 . 51820" in rules
    assert "192.0.2.3 . 51820" in rules
    assert "node-2" in (overlay.folder / "hosts").read_text()
    assert overlay.read() is engine.device.state


def test_who_is_out_is_out(overlay, system, engine, job):
    overlay.apply(1, job.members("node-0"))
    job.new_epoch()
    overlay.apply(2, job.members("node-0", ["node-0", "node-1"]))
    (peer,) = engine.device.state.peers
    assert peer.public_key == job.keys["node-1"].public
    assert "192.0.2.3" not in system.tables[""][overlay.names.table]
    assert "node-2" not in (overlay.folder / "hosts").read_text()


def test_nobody_is_heard_between_epochs(overlay, system, engine, job):
    overlay.clear()  # before the first one too
    overlay.apply(1, job.members("node-0"))
    overlay.clear()
    assert engine.device.state.peers == ()
    assert "192.0.2.2" not in system.tables[""][overlay.names.table]
    assert (overlay.epoch, overlay.address) == (1, address("job-1", 0))
    overlay.apply(2, job.members("node-0"))
    assert len(engine.device.state.peers) == 2


def test_a_device_that_keeps_its_peers_is_taken_down(overlay, system, engine, job, monkeypatch):
    overlay.apply(1, job.members("node-0"))
    monkeypatch.setattr(engine.device, "set_peers", lambda _: None)
    vocabulary.refused(NetworkError, "ST-NETW-016", overlay.clear)
    assert system.is_clean


def test_single_members_are_dropped_from_an_epoch_that_is_under_way(overlay, system, engine, job):
    overlay.apply(1, job.members("node-0"))
    kept = engine.device.state.peers[0]
    overlay.drop(["node-2", "nobody"])
    assert engine.device.state.peers == (kept,)
    rules = system.tables[""][overlay.names.table]
    assert "192.0.2.2" in rules
    assert "192.0.2.3" not in rules
    assert (overlay.epoch, overlay.address) == (1, address("job-1", 0))
    before = engine.device.state
    overlay.drop(["node-2", "node-0"])  # gone already, and this node itself
    assert engine.device.state is before
    overlay.drop(["node-1"])
    assert engine.device.state.peers == ()
    overlay.apply(2, job.members("node-0"))
    assert len(engine.device.state.peers) == 2
    overlay.clear()
    overlay.drop(["node-1"])
    assert engine.device.state.peers == ()


def test_a_device_that_keeps_who_was_dropped_is_taken_down(
    overlay, system, engine, job, monkeypatch
):
    overlay.apply(1, job.members("node-0"))
    monkeypatch.setattr(engine.device, "set_peers", lambda _: None)
    refused("ST-NETW-016", overlay.drop, ["node-1"])
    assert system.is_clean
    refused("ST-NETW-014", overlay.drop, ["node-1"])


def test_another_slot_is_another_address(overlay, system, job):
    overlay.apply(1, job.members("node-0"))
    own, *others = job.members("node-0")
    overlay.apply(2, [replace(own, slot=7), *others])
    assert overlay.address == address("job-1", 7)
    assert system.spaces[overlay.names.namespace]["st0"].addresses == [f"{overlay.address}/20"]


@pytest.mark.parametrize("epoch", [1, 0, -5])
def test_an_epoch_never_goes_back(overlay, engine, job, epoch):
    overlay.apply(1, job.members("node-0"))
    before = engine.device.state
    error = refused("ST-NETW-019", overlay.apply, epoch, job.members("node-0", ["node-0"]))
    assert f"epoch {epoch} after epoch 1" in error.what
    assert engine.device.state is before
    overlay.apply(2, job.members("node-0"))


def test_the_first_epoch_may_be_0(overlay, job):
    overlay.apply(0, job.members("node-0"))
    assert overlay.epoch == 0


def test_members_that_contradict_each_other_change_nothing(overlay, engine, job):
    overlay.apply(1, job.members("node-0"))
    before = engine.device.state
    refused("ST-NETW-018", overlay.apply, 2, job.members("node-0", ["node-1", "node-2"]))
    refused("ST-NETW-018", overlay.apply, 2, job.members("node-0") * 2)
    assert engine.device.state is before
    assert overlay.epoch == 1
    overlay.apply(2, job.members("node-0"))


def test_a_device_that_does_not_do_as_it_is_told(overlay, system, engine, job):
    engine.device.lies = True
    refused("ST-NETW-016", overlay.apply, 1, job.members("node-0"))
    assert system.is_clean
    refused("ST-NETW-014", overlay.apply, 2, job.members("node-0"))


def test_down_leaves_nothing(overlay, system, engine, job, state):
    overlay.apply(1, job.members("node-0"))
    overlay.down()
    assert system.is_clean
    assert engine.device.closed
    assert list(record.entries(state)) == []
    before = len(system.commands)
    overlay.down()
    assert len(system.commands) == before
    for call in (overlay.read, lambda: overlay.command(["x"]), lambda: overlay.watch(print)):
        refused("ST-NETW-014", call)


@pytest.fixture
def farewell(overlay, engine, monkeypatch):
    """The order in which the device is asked, looked at and closed; how often something is open."""
    said: list[str] = []
    answers = [True, True, False]

    def look(_):
        said.append("look")
        return answers.pop(0)

    device = engine.device
    monkeypatch.setattr(Namespace, "has_unacknowledged_close", look)
    monkeypatch.setattr(device, "read", lambda: said.append("read"))
    monkeypatch.setattr(device, "close", lambda: said.append("close"))
    return said


def test_in_peace_the_others_are_told_first(overlay, system, farewell):
    before = len(system.commands)
    overlay.down()
    assert farewell == ["read", "look"] * 3 + ["close"]
    assert system.commands[before] == ["ip", "netns", "pids", overlay.names.namespace]


def test_who_does_not_answer_is_not_waited_for(overlay, farewell, monkeypatch):
    monkeypatch.setattr(module, "_DRAIN_SECONDS", -1.0)
    overlay.down()
    assert farewell == ["read", "look", "close"]


@pytest.mark.parametrize("trouble", [OSError("gone"), NetworkError("ST-NETW-013", "no answer")])
def test_trouble_with_the_farewell_keeps_nothing_up(overlay, farewell, monkeypatch, trouble):
    def fail(_):
        raise trouble

    monkeypatch.setattr(Namespace, "has_unacknowledged_close", fail)
    overlay.down()
    assert farewell == ["read", "close"]


def test_after_a_failure_the_tunnel_goes_at_once(overlay, farewell):
    with pytest.raises(KeyError), overlay:
        raise KeyError("mine")
    assert farewell == ["close"]


def test_the_end_of_the_block_is_down(raise_overlay, system):
    with raise_overlay():
        assert not system.is_clean
    assert system.is_clean


def test_an_error_in_the_block_stays_the_error(raise_overlay, system):
    def work():
        system.fail_at = len(system.commands) + 1
        raise KeyError("mine")

    with pytest.raises(KeyError) as error, raise_overlay() as overlay:
        work()
    assert any("ST-NETW-021" in note for note in error.value.__notes__)
    assert overlay.folder.exists()  # so that gc can try again


def num_commands(raise_overlay, system):
    overlay = raise_overlay(key=WireGuardKey.generate())
    made = len(system.commands)
    overlay.down()
    return made


@pytest.mark.parametrize("when", ["fail_at", "fail_after"])
def test_a_failure_at_any_step_of_up_leaves_nothing(raise_overlay, system, engine, state, when):
    steps = num_commands(raise_overlay, system)
    assert steps > 8
    for step in range(steps):
        setattr(system, when, len(system.commands) + step)
        refused("ST-NETW-011", raise_overlay, says="on purpose")
        setattr(system, when, None)
        assert system.is_clean, f"command {step}"
        assert list(record.entries(state)) == []
        assert all(device.closed for device in engine.devices)
    assert raise_overlay().port


@pytest.mark.parametrize("when", ["fail_at", "fail_after"])
def test_a_failure_at_any_step_of_apply_leaves_nothing(raise_overlay, system, state, job, when):
    step = 0
    while True:
        overlay = raise_overlay(key=job.keys["node-0"])
        setattr(system, when, len(system.commands) + step)
        with suppress(NetworkError):
            overlay.apply(1, job.members("node-0"))
            break
        setattr(system, when, None)
        assert system.is_clean, f"command {step}"
        assert list(record.entries(state)) == []
        step += 1
    assert step == 3


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, OSError, MemoryError])
def test_every_kind_of_failure_leaves_nothing(raise_overlay, system, state, monkeypatch, kind):
    def fail(*_):
        raise kind

    monkeypatch.setattr(module, "require_state", fail)
    with pytest.raises(kind):
        raise_overlay()
    assert system.is_clean
    assert list(record.entries(state)) == []


def test_an_engine_that_does_not_start(raise_overlay, system, engine):
    engine.broken = True
    refused("ST-NETW-013", raise_overlay)
    assert system.is_clean


def test_what_cannot_be_removed_is_told_and_can_be_tried_again(raise_overlay, system, state):
    overlay = raise_overlay()
    system.fail_at = len(system.commands) + 2
    refused("ST-NETW-021", overlay.down, says="on purpose")
    assert [entry.folder for entry in record.entries(state)] == [overlay.folder]


def test_one_job_network_at_a_time(raise_overlay, system):
    overlay = raise_overlay()
    refused("ST-NETW-020", raise_overlay, says="already")
    assert not system.is_clean  # the first one still stands
    other = raise_overlay("node-1")
    assert other.names != overlay.names


@pytest.mark.parametrize("what", ["namespace", "device"])
def test_what_nobody_claimed_is_not_ours_to_remove(raise_overlay, system, state, what):
    names = Names.of("job-1", "node-0")
    if what == "namespace":
        system.add(names.namespace)
    else:
        system.spaces[""][names.device] = Link()
    refused("ST-NETW-020", raise_overlay, says=getattr(names, what))
    assert names.namespace in system.spaces or names.device in system.spaces[""]
    assert list(record.entries(state)) == []


def dead(state, system, **given):
    """A record of an owner that died, and what it left."""
    owner = replace_owner(Owner.current())
    made = record.Record(job="job-1", node="node-0", owner=owner, **given)
    record.claim(state, made)
    system.add(made.names.namespace)
    system.spaces[""][made.names.device] = Link()
    system.tables[""][made.names.table] = "old"
    return made


def replace_owner(owner):
    return Owner(
        pid=owner.pid,
        started=owner.started + 1,
        boot=owner.boot,
        pid_namespace=owner.pid_namespace,
    )


def test_what_a_dead_owner_left_goes_first(raise_overlay, system, state):
    names = dead(state, system).names
    overlay = raise_overlay()
    assert overlay.names == names
    assert names.device not in system.spaces[""]
    assert "old" not in system.tables[""].values()


def test_what_a_dead_owner_left_and_cannot_be_removed_stops_up(raise_overlay, system, state):
    dead(state, system)
    system.fail_at = len(system.commands) + 1
    refused("ST-NETW-021", raise_overlay, says="on purpose")


def test_a_failure_is_told_with_what_it_left(raise_overlay, system):
    system.fail_at = 4

    original = system._nft

    def broken(name, data):
        if "chain" not in data:
            raise NetworkError("ST-NETW-011", "the filter stays")
        original(name, data)

    system._nft = broken
    error = refused("ST-NETW-011", raise_overlay, says="on purpose")
    assert any("the filter stays" in note for note in error.__notes__)


@pytest.mark.parametrize("name", ["tunl0", "eth0"])
def test_another_device_that_is_up_is_refused(raise_overlay, system, name):
    system.extra = {name: Link(is_up=True)}
    refused("ST-NETW-023", raise_overlay, says=name)
    assert system.is_clean


def test_a_device_that_is_down_and_stays_so_is_not_a_way_out(raise_overlay, system):
    system.extra = {"tunl0": Link(), "sit0": Link()}
    assert raise_overlay().port


def test_a_route_is_a_way_out(system):
    system.add("st-x")
    require_only_way(Namespace("st-x", system))
    system.spaces["st-x"]["sit0"] = Link(routes=["-6"])
    refused("ST-NETW-023", require_only_way, Namespace("st-x", system))


def test_a_way_out_that_appears_later_is_seen_at_the_next_epoch(overlay, system, job):
    overlay.apply(1, job.members("node-0"))
    system.spaces[overlay.names.namespace]["eth0"] = Link(is_up=True)
    refused("ST-NETW-023", overlay.apply, 2, job.members("node-0"))
    assert overlay.names.namespace not in system.spaces


def test_the_mtu_is_the_underlays(system):
    host = Namespace("", system)
    assert underlay_mtu(host, None) == 1500
    assert underlay_mtu(host, UNDERLAY) == 1500
    system.spaces[""]["eth0"].mtu = 9000
    assert underlay_mtu(host, UNDERLAY) == 9000
    system.spaces[""]["eth0"].mtu = 68
    assert underlay_mtu(host, UNDERLAY) == 576 + 80


def test_an_endpoint_of_somebody_else(raise_overlay, system):
    error = refused("ST-NETW-018", lambda: raise_overlay(endpoint=IPv4Address("192.0.2.77")))
    assert "192.0.2.77" in error.what
    assert system.is_clean


def test_a_death_is_told_once_and_nothing_goes_on(overlay, engine, job, monkeypatch):
    monkeypatch.setattr("securetrain.network.watcher._POLL_MS", 5)
    told: list[NetworkError] = []
    happened = threading.Event()

    def died(error):
        told.append(error)
        overlay.down()  # as a launcher may do
        happened.set()

    overlay.watch(died)
    engine.device.how = "it was killed by signal 9"
    assert happened.wait(10)
    (error,) = told
    assert error.code == "ST-NETW-014"
    assert "signal 9" in error.what
    refused("ST-NETW-014", overlay.apply, 9, job.members("node-0"))


def test_taking_it_down_is_no_death(raise_overlay, engine, monkeypatch):
    monkeypatch.setattr("securetrain.network.watcher._POLL_MS", 5)
    told: list[NetworkError] = []
    with raise_overlay() as overlay:
        overlay.watch(told.append)
        device = engine.device
    device.how = "it was closed"
    assert not [thread for thread in overlay._watchers if thread._thread.join(10)]
    assert told == []


def test_a_dead_engine_takes_no_epoch(overlay, engine, job):
    engine.device.how = "it ended with exit code 1"
    refused("ST-NETW-014", overlay.apply, 1, job.members("node-0"), says="exit code 1")


def test_a_plan_does_not_show_its_key():
    key = WireGuardKey.generate()
    plan = Plan(job="j", node="n", key=key)
    assert key.secret().hex() not in repr(plan)
    assert repr(key.secret()) not in repr(plan)


def test_the_engine_is_chosen_when_none_is_given(system, engine, state, monkeypatch):
    monkeypatch.setattr(module, "choose", lambda: engine)
    plan = Plan(job="job-1", node="node-0", key=WireGuardKey.generate())
    with Overlay.up(plan, state=state, run=system) as overlay:
        assert overlay.engine is engine


def test_a_command_runs_inside(overlay, monkeypatch):
    monkeypatch.setattr("securetrain.network.namespace.program", lambda name: f"/usr/bin/{name}")
    command = overlay.command(["/bin/true"])
    assert any(overlay.names.namespace in word for word in command)
    assert "--bounding-set=-all" in command
    assert "--bounding-set=-all" not in overlay.command(["/bin/true"], keep_capabilities=True)


def test_an_underlay_of_both_families(overlay, system, job):
    own, one, other = job.members("node-0")
    six = Endpoint.parse("[2001:db8::2]:51820")
    overlay.apply(1, [own, replace(one, endpoint=six), other])
    assert "members6 { 2001:db8::2 . 51820 }" in system.tables[""][overlay.names.table]
