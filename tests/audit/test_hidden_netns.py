# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's own evidence behind real mounts, in a mount and a network namespace of the test's.

An interface that takes routes from anybody and a UDP service are there throughout; what lies over
/proc and /sys hides neither, and turns nothing into a pass.
"""

import ctypes
import json
import mmap
import os
import socket
import subprocess
import tempfile
import traceback
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.node.collect.node import collect_node
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.vocabulary import needs

NOBODY, ANOTHER = 65534, 12345
NEW_MOUNTS, NEW_NETWORK = 0x00020000, 0x40000000
KERNEL = {"ST-HST-005", "ST-HST-006", "ST-IPC-002", "ST-NET-001", "ST-NET-004", "ST-NET-005"}
TABLES = {"ST-RDZ-002", "ST-DBG-004", "ST-NET-011"}

# What is mounted over, and the checks that cannot pass then.
MASKS = {
    "/proc/sys": KERNEL,
    "/proc/sys/net": {"ST-NET-001", "ST-NET-004", "ST-NET-005"},
    "/proc/cmdline": {"ST-HST-004"},
    "/proc/self/net": TABLES,
    "/proc/self/mountinfo": {"ST-HST-007", "ST-HST-012", "ST-HST-002"},
    "/proc": KERNEL | TABLES | {"ST-HST-004", "ST-HST-007"},
    "/sys": {"ST-HST-002", "ST-HST-012"},
    "/dev/shm": {"ST-HST-007"},
    "/etc": {"ST-SEC-007"},
}
SAMPLE = ("/proc/sys", "/proc/self/net", "/sys")


def root() -> list[str]:
    return [] if os.geteuid() == 0 else ["user id 0"]


@cache
def states_behind(mask: str, *, as_nobody: bool) -> dict[str, State]:
    """The states of all checks, seen by a child for which `mask` is mounted over."""
    _audited()  # a user without rights may not import from everywhere
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(_look(mask, as_nobody=as_nobody)).encode())
        except BaseException:  # noqa: BLE001 - the parent finds the pipe empty
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = answer.read()
    os.waitpid(child, 0)
    assert found, "the child ended without an answer"
    return {check: State(state) for check, state in json.loads(found).items()}


def _look(mask: str, *, as_nobody: bool) -> dict[str, str]:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(NEW_MOUNTS | NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    _run("mount", "--make-rprivate", "/")
    _run("ip", "link", "add", "st-hide-a", "type", "veth", "peer", "name", "st-hide-b")
    Path("/proc/sys/net/ipv6/conf/st-hide-a/accept_ra").write_text("1")
    _run("ip", "link", "set", "st-hide-a", "up")
    _open_store()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service:
        if as_nobody:
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        service.bind(("0.0.0.0", 5353))
        os.seteuid(0)
        os.setegid(0)
        _cover(mask)
        if as_nobody:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        states = _audited()
    return {check: state.value for check, state in states.items()}


def _open_store() -> None:
    """A store of another user, as torch opens it, on every address, until this process ends."""
    ready, said = os.pipe()
    ended, held = os.pipe()
    if os.fork() == 0:
        os.close(held)
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "libtorch_cpu.so"
            library.write_bytes(bytes(4096))
            with library.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
        os.setgroups([])
        os.setresgid(ANOTHER, ANOTHER, ANOTHER)
        os.setresuid(ANOTHER, ANOTHER, ANOTHER)
        with mapped, socket.create_server(("0.0.0.0", 29666)):
            os.write(said, b"ready")
            os.read(ended, 1)
        os._exit(0)
    assert os.read(ready, 5) == b"ready"


def _audited() -> dict[str, State]:
    now = datetime.now(UTC)
    facts = collect_node({"PATH": "/usr/bin", "HOME": "/nonexistent"}, now=now)
    policy = load_policy("dev").policy
    return worst_states(audit(facts_of([facts]), load_checks(), policy, now).findings)


def _cover(mask: str) -> None:
    mask = mask.replace("/self/", f"/{os.getpid()}/")
    if not mask:
        return
    if Path(mask).is_dir():
        _run("mount", "-t", "tmpfs", "none", mask)
    else:
        _run("mount", "--bind", "/dev/null", mask)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def check_mask(mask: str, *, as_nobody: bool) -> None:
    plain = states_behind("", as_nobody=as_nobody)
    assert plain["ST-NET-002"] is plain["ST-NET-011"] is State.FAIL, "the attack is there"
    behind = states_behind(mask, as_nobody=as_nobody)
    assert behind["ST-NET-002"] is State.FAIL, "netlink needs neither /proc nor /sys"
    better = {c for c, state in behind.items() if state is State.PASS} - {
        c for c, state in plain.items() if state is State.PASS
    }
    assert better == set()
    assert {check for check in MASKS[mask] if behind[check] is State.PASS} == set()


@pytest.mark.netns
@needs(root)
@pytest.mark.parametrize("as_nobody", [False, True], ids=["root", "nobody"])
@pytest.mark.parametrize("mask", SAMPLE)
def test_what_a_mount_hides_does_not_pass(mask, as_nobody):
    check_mask(mask, as_nobody=as_nobody)


@pytest.mark.netns
@needs(root)
def test_another_users_store_is_not_somebody_elses():
    seen, unseen = (states_behind("", as_nobody=as_nobody) for as_nobody in (False, True))
    assert seen["ST-RDZ-002"] is seen["ST-FAB-018"] is State.FAIL
    for check in ("ST-RDZ-002", "ST-RDZ-013", "ST-FAB-018", "ST-DBG-001", "ST-DBG-003"):
        assert unseen[check] is State.UNKNOWN


@pytest.mark.many
@pytest.mark.netns
@needs(root)
@pytest.mark.parametrize("as_nobody", [False, True], ids=["root", "nobody"])
@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask not in SAMPLE])
def test_nor_does_what_any_other_mount_hides(mask, as_nobody):
    check_mask(mask, as_nobody=as_nobody)
