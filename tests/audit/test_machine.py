# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Marks of machines and what MASTER_ADDR means, as the collectors see them, between nodes."""

import msgspec
import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.node.collect.node import collect_from
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW
from tests.audit.hardened.machine import hardened

CHECKS = [check for check in load_checks() if check.id in {"ST-NET-013", "ST-RDZ-006"}]


@pytest.fixture
def states(tmp_path):
    """The states of both checks over machines that are changed one by one."""

    def go(*changes):
        bodies = []
        for number, change in enumerate(changes):
            (tmp_path / str(number)).mkdir()
            one = hardened(tmp_path / str(number))
            one.write("/etc/machine-id", f"{number:032x}\n")
            one.write("/proc/sys/kernel/random/boot_id", f"boot-{number}\n")
            one.write("/etc/ssh/ssh_host_ed25519_key.pub", f"ssh-ed25519 AAA{number} root\n")
            change(one)
            body = collect_from(one.host(), now=NOW)
            collected = msgspec.structs.replace(body.collected, hostname=f"n{number}")
            bodies.append(msgspec.structs.replace(body, collected=collected))
        found = audit(facts_of(bodies), CHECKS, load_policy("dev").policy, NOW).findings
        return {
            check.id: [f.state for f in sorted(found, key=lambda f: f.asset) if f.check == check.id]
            for check in CHECKS
        }

    return go


def nothing(machine):
    pass


def master(name, hosts=""):
    def change(machine):
        machine.environ["MASTER_ADDR"] = name
        machine.append("/etc/hosts", hosts)

    return change


PASS, FAIL, UNKNOWN = State.PASS, State.FAIL, State.UNKNOWN


def test_machines_of_their_own(states):
    assert states(nothing, nothing) == {"ST-NET-013": [PASS] * 2, "ST-RDZ-006": [PASS] * 2}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/machine-id", f"{0:032x}\n"),
        ("/etc/ssh/ssh_host_rsa_key.pub", "ssh-rsa AAA0 root\n"),
    ],
)
def test_a_clone_is_found_and_so_is_what_it_was_cloned_from(states, path, text):
    found = states(nothing, nothing, lambda machine: machine.write(path, text))
    assert found["ST-NET-013"] == [FAIL, PASS, FAIL]


@pytest.mark.parametrize("text", ["", "uninitialized\n"])
def test_a_machine_without_an_id_is_not_known_to_be_another(states, text):
    found = states(nothing, nothing, lambda machine: machine.write("/etc/machine-id", text))
    assert found["ST-NET-013"] == [UNKNOWN] * 3


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ((master("gpu-0"), master("gpu-0")), [PASS, PASS]),
        ((master("10.0.0.1"), master("gpu-0")), [FAIL, FAIL]),
        (
            (master("gpu-0"), master("gpu-0"), master("gpu-0", "10.0.0.9 gpu-0\n")),
            [PASS, PASS, FAIL],
        ),
        ((master("gpu-7"), master("gpu-7")), [UNKNOWN, UNKNOWN]),
        ((nothing, nothing, master("gpu-0")), [PASS, PASS, FAIL, FAIL]),  # name and meaning
    ],
)
def test_one_name_means_one_machine(states, changes, wanted):
    assert states(*changes)["ST-RDZ-006"] == wanted


def test_loopback_is_another_machine_on_each(states, monkeypatch):
    names = iter("abcdefgh")
    monkeypatch.setattr("socket.gethostname", lambda: next(names))
    assert states(master("localhost"), master("localhost"))["ST-RDZ-006"] == [FAIL, FAIL]
