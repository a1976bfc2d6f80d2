# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import leftovers, record
from securetrain.network.leftovers import Collected, collect, remove
from securetrain.network.namespace import Namespace
from securetrain.network.process_identity import Machine, Owner
from securetrain.network.record import Record
from securetrain.network.system_tools import command_failed
from tests.network.worlds import Link
from tests.vocabulary import refused

HERE = Machine(boot="boot", pid_namespace="pid:[1]", start_time={7: 100}.get)
ALIVE = Owner(pid=7, started=100, boot="boot", pid_namespace="pid:[1]")
DEAD = Owner(pid=7, started=99, boot="boot", pid_namespace="pid:[1]")
ELSEWHERE = Owner(pid=7, started=99, boot="boot", pid_namespace="pid:[2]")
BEFORE_A_REBOOT = Owner(pid=7, started=100, boot="old", pid_namespace="pid:[2]")


@pytest.fixture
def leave(state, system):
    """What an owner makes, all of it or a part."""

    def make(node, owner, *, parts=("namespace", "device", "table"), host=""):
        made = Record(job="job-1", node=node, owner=owner, host=host)
        record.claim(state, made)
        if "namespace" in parts:
            system.add(made.names.namespace)
        if "device" in parts:
            system.spaces[host][made.names.device] = Link()
        if "table" in parts:
            system.tables[host][made.names.table] = "x"
        return made.names

    return make


def gc(state, system):
    return collect(state, machine=HERE, run=system)


def test_nothing_to_do(state, system):
    assert gc(state, system) == Collected()
    assert not state.exists()
    state.mkdir(mode=0o700)
    assert gc(state, system) == Collected()
    assert system.commands == []


@pytest.mark.parametrize("owner", [DEAD, BEFORE_A_REBOOT])
@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("namespace",),
        ("device",),
        ("table",),
        ("namespace", "table"),
        ("namespace", "device", "table"),
    ],
    ids="+".join,
)
def test_a_dead_owners_leftovers_go(state, system, leave, owner, parts):
    names = leave("node-0", owner, parts=parts)
    assert gc(state, system) == Collected(removed=(names.namespace,))
    assert system.is_clean
    assert list(record.entries(state)) == []


@pytest.mark.parametrize("owner", [ALIVE, ELSEWHERE])
def test_what_is_in_use_stays(state, system, leave, owner):
    names = leave("node-0", owner)
    assert gc(state, system) == Collected(alive=(names.namespace,))
    assert system.commands == []
    assert names.namespace in system.spaces


def test_each_is_judged_by_itself(state, system, leave):
    dead, alive = leave("node-0", DEAD), leave("node-1", ALIVE)
    assert gc(state, system) == Collected(removed=(dead.namespace,), alive=(alive.namespace,))
    assert set(system.spaces) == {"", alive.namespace}
    assert set(system.tables[""]) == {alive.table}
    assert alive.device in system.spaces[""]


def test_the_engine_goes_first_and_the_record_last(state, system, leave, monkeypatch):
    names = leave("node-0", DEAD)
    order: list[object] = []

    def running(program, last):
        order.append((program, last))
        assert order[1:] or system.commands == []
        return [41] if len(order) == 1 else []

    monkeypatch.setattr(leftovers, "running", running)

    def kill(pids):
        order.append(pids)
        return []

    monkeypatch.setattr(leftovers, "kill", kill)
    monkeypatch.setattr(
        record, "release", lambda folder: order.append((system.is_clean, folder.name))
    )
    gc(state, system)
    engine = ("wireguard-go", names.device)
    assert order == [engine, [41], engine, [], (True, names.namespace)]


def test_an_engine_that_was_only_being_started_goes_too(state, system, leave, monkeypatch):
    names = leave("node-0", DEAD, parts=("namespace",))
    killed: list[int] = []

    def running(_program, _last):
        if not killed and not system.commands:
            return []  # between two programs of its command
        system.spaces[""][names.device] = Link()
        return [41]

    def kill(pids):
        killed.extend(pids)
        return []

    monkeypatch.setattr(leftovers, "running", running)
    monkeypatch.setattr(leftovers, "kill", kill)
    assert gc(state, system).removed == (names.namespace,)
    assert killed == [41]
    assert system.is_clean


def test_an_engine_that_stays_is_a_problem(state, system, leave, monkeypatch):
    names = leave("node-0", DEAD)
    monkeypatch.setattr(leftovers, "running", lambda *_: [41])
    monkeypatch.setattr(leftovers, "kill", lambda pids: pids)
    found = gc(state, system)
    assert "process 41" in found.problems[names.namespace]
    assert found.removed == ()
    assert system.is_clean  # the rest went all the same


def test_what_could_not_be_removed_is_found_again(state, system, leave):
    names = leave("node-0", DEAD)
    # One by one, until a run has no step left that can fail.
    for step in range(20):
        system.fail_at = len(system.commands) + step
        found = gc(state, system)
        if not found.problems:
            break
        assert "on purpose" in found.problems[names.namespace]
        assert len(list(record.entries(state))) == 1
    assert step >= 1
    assert found.removed == (names.namespace,)
    assert system.is_clean


def test_a_device_that_goes_by_itself_meanwhile(state, system, leave):
    """The kernel takes it with the engine's last thread, between our look and our deletion."""
    names = leave("node-0", DEAD)

    def late(argv, *, data=b""):
        if argv == ["ip", "link", "delete", "dev", names.device]:
            del system.spaces[""][names.device]
            raise command_failed(" ".join(argv), f'Cannot find device "{names.device}"')
        return system(argv, data=data)

    found = collect(state, machine=HERE, run=late)
    assert (found.removed, found.problems) == ((names.namespace,), {})
    assert system.is_clean


def test_every_problem_is_told(state, system, leave):
    names = leave("node-0", DEAD)
    folder = state / names.namespace

    def broken(argv, *, data=b""):
        raise NetworkError("ST-NETW-011", argv[-1])

    error = refused(NetworkError, "ST-NETW-021", remove, names, Namespace("", broken), folder)
    assert error.what.count(";") == 2
    assert folder.exists()


def test_what_is_not_understood_is_left(state, system, leave):
    leave("node-0", ALIVE)
    (state / "st-x-00000000").mkdir()
    (state / "stray").touch()
    found = gc(state, system)
    assert set(found.problems) == {"st-x-00000000", "stray"}
    assert all(found.problems.values())
    assert (state / "st-x-00000000").exists()


def test_a_claim_that_was_never_finished_goes(state, system, leave):
    leave("node-0", ALIVE)
    (state / "st-x-00000000.tmp-0123").mkdir()
    found = gc(state, system)
    assert found.problems == {}
    assert not (state / "st-x-00000000.tmp-0123").exists()


def test_a_host_that_is_gone_takes_its_part_with_it(state, system, leave):
    system.add("host-a")
    names = leave("node-0", DEAD, host="host-a")
    system._run(["ip", "netns", "delete", "host-a"], "")
    assert gc(state, system) == Collected(removed=(names.namespace,))
    assert system.is_clean


def test_another_hosts_namespace_is_cleaned(state, system, leave):
    system.add("host-a")
    names = leave("node-0", DEAD, host="host-a")
    gc(state, system)
    assert system.tables["host-a"] == {}
    assert names.device not in system.spaces["host-a"]


MADE_ELSEWHERE = Owner(
    pid=7, started=99, boot="boot", pid_namespace="pid:[1]", net_namespace="net:[8]"
)


def test_a_collector_in_another_namespace_cleans_where_the_owner_was(state, system, leave):
    """It said "removed" and left the filter, so that the owner's next run found "File exists"."""
    names = leave("node-0", MADE_ELSEWHERE)
    seen = []

    def run(argv, *, data=b""):
        seen.append(argv)
        there = ["nsenter", "--net=/proc/41/ns/net", "--"]
        assert argv[:3] == there or argv[:2] == ["ip", "netns"]
        return system(argv[3:], data=data)

    paths = {"net:[8]": Path("/proc/41/ns/net")}
    machine = replace(HERE, net_namespace="net:[9]", find_net_namespace=paths.get)
    found = collect(state, machine=machine, run=run)
    assert found == Collected(removed=(names.namespace,))
    assert system.is_clean
    assert [word for argv in seen for word in argv].count("nft") == 1


def test_a_namespace_that_is_gone_took_its_part_with_it(state, system, leave):
    names = leave("node-0", MADE_ELSEWHERE, parts=("namespace",))
    system.tables[""][names.table] = "another's"
    machine = replace(HERE, net_namespace="net:[9]")
    found = collect(state, machine=machine, run=system)
    assert found == Collected(removed=(names.namespace,))
    assert system.tables[""] == {names.table: "another's"}


def test_records_of_earlier_versions_are_read(state, system, leave):
    leave("node-0", DEAD)
    text = next(state.glob("*/record.json")).read_text()
    assert "net_namespace" not in text
    assert gc(state, system).problems == {}


def test_a_state_folder_of_others_is_refused(state, system):
    state.mkdir(mode=0o700)
    # Its own mode is set right when it is locked; a link is not followed.
    state.rmdir()
    (state.parent / "real").mkdir(mode=0o700)
    state.symlink_to(state.parent / "real")
    refused(NetworkError, "ST-NETW-022", gc, state, system)


def test_this_machine_is_the_default(state, system, leave):
    leave("node-0", Owner.current())
    assert collect(state, run=system).alive
