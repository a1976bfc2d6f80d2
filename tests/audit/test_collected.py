# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collectors and checks together, over machines made of files: what is wrong is found, what is
hidden is never a pass.
"""

import os
import shutil
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.check import Check
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.facts import Outcome, Section
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.node.collect import host as collectors
from securetrain.audit.subjects.node.collect import node
from securetrain.audit.subjects.node.collect.node import collect_from
from securetrain.audit.subjects.node.facts.node import Node, decode_facts
from securetrain.core.vocabulary import Severity, State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW
from tests.audit.hardened import BAD, GOOD
from tests.audit.hardened.faults import Bad
from tests.audit.hardened.machine import MOUNTS, Kept, Machine, hardened, mount, plain_container

CHECKS = [check for check in load_checks() if check.kind == "node"]
DEV = load_policy("dev").policy
NOBODY = 65534


def states_of(machine: Machine) -> dict[str, State]:
    facts = collect_from(machine.host(), now=NOW)
    assert decode_facts(facts.to_json(), "x") == facts
    return worst_states(audit(facts_of([facts]), CHECKS, DEV, NOW).findings)


def state_of(machine: Machine, check: Check) -> State:
    """The state of one check, for which nothing is collected but its evidence."""
    wanted = {name.partition(".")[2] for name in check.spec.evidence}

    def section(collect, host, seconds):
        if collect.__name__ in wanted:
            return collectors.section(collect, host, seconds)
        return Section(outcome=Outcome.DENIED, reason="not collected here")

    with mock.patch.object(node, "section", section):
        facts = collect_from(machine.host(), now=NOW)
    return worst_states(audit(facts_of([facts]), [check], DEV, NOW).findings)[check.id]


def test_a_collector_has_the_name_of_its_section(kept):
    """As `state_of` takes for granted."""
    with (
        mock.patch.object(node, "section", lambda collect, *_: collect.__name__),
        mock.patch.object(node, "_ledger", return_value=()),
        mock.patch.object(node, "_of_kernel", return_value=()),
    ):
        facts = collect_from(kept.again().host(), now=NOW).node
    assert {name: getattr(facts, name) for name in Node.__struct_fields__} == {
        name: name for name in Node.__struct_fields__
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A hardened machine, built once, to which each test does what it likes."""
    return Kept.of(hardened(tmp_path_factory.mktemp("machine")))


@pytest.fixture
def machine(kept):
    return kept.again()


def test_a_hardened_machine_passes_everything(machine):
    states = states_of(machine)
    compared = {check.id for check in CHECKS if check.across is not None}
    # It asks for no TLS of Gloo, and has no RDMA and no entry points of other packages.
    for check in ("ST-FAB-017", "ST-FAB-010", "ST-FAB-011", "ST-FAB-013", "ST-SUP-023"):
        assert states.pop(check) is State.NOT_APPLICABLE, check
    bad = {check: state for check, state in states.items() if state is not State.PASS}
    assert {check: state for check, state in bad.items() if check not in compared} == {}


def test_there_is_a_machine_that_fails_each_check():
    # the policy's own words, a device (test_collect), and the age of a list (test_advisories)
    elsewhere = {"ST-FAB-022", "ST-HST-015", "ST-INT-001", "ST-SUP-007"}
    alone = {check.id for check in CHECKS if check.across is None}
    assert {bad.check for bad in BAD.values()} == alone - elsewhere


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_found_by_the_check_it_is_for(name, machine):
    bad = BAD[name]
    bad.make(machine)
    states = states_of(machine)
    assert states[bad.check] is State.FAIL
    failed = {check for check, state in states.items() if state is State.FAIL}
    assert failed - {bad.check} <= bad.also


@pytest.mark.parametrize("name", GOOD)
def test_what_only_looks_wrong_is_not(name, machine):
    check, make = GOOD[name]
    make(machine)
    assert states_of(machine)[check] is State.PASS


def test_a_plain_container_of_one_user_has_nothing_high_and_passes_nothing_that_it_hides(tmp_path):
    machine = plain_container(tmp_path)
    facts = collect_from(machine.host(), now=NOW)
    result = audit(facts_of([facts]), CHECKS, load_policy("baseline").policy, NOW)
    heavy = [f for f in result.of(State.FAIL) if f.severity_in_context >= Severity.HIGH]
    assert [(finding.check, finding.reason) for finding in heavy] == []
    (cache,) = (f for f in result.of(State.FAIL) if f.check == "ST-SUP-013")
    assert (cache.severity, cache.severity_in_context) == (Severity.CRITICAL, Severity.LOW)
    unknown = {finding.check: finding.reason for finding in result.of(State.UNKNOWN)}
    assert set(unknown) == {
        *("ST-HST-002", "ST-HST-012", "ST-HST-015", "ST-IPC-002", "ST-NET-006", "ST-NET-009")
    }
    assert "seen from inside a container" in unknown["ST-HST-015"] + unknown["ST-IPC-002"]


@pytest.mark.parametrize("mounted", [mount("/tmp", "ext4"), mount("/", "ext4")])
def test_the_same_container_with_the_machines_tmp_is_not_alone(mounted, tmp_path):
    """A bind of the machine's /tmp, or a namespace of processes on the machine's own root."""
    machine = plain_container(tmp_path)
    machine.append("/proc/self/mountinfo", mounted)
    facts = collect_from(machine.host(), now=NOW)
    result = audit(facts_of([facts]), CHECKS, load_policy("baseline").policy, NOW)
    (cache,) = (f for f in result.of(State.FAIL) if f.check == "ST-SUP-013")
    assert cache.severity_in_context is Severity.CRITICAL


# --- the sweep: evidence that is unreadable, masked, emptied or missing ---------------------------


def unreadable(machine: Machine, path: Path) -> None:
    path.chmod(0)


def masked(machine: Machine, path: Path) -> None:
    """A device or pipe over the file, as container engines hide files."""
    path.unlink()
    os.mkfifo(path)


def folder_masked(machine: Machine, path: Path) -> None:
    """An empty mount over its folder, as they hide directories."""
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    table = machine.root / "proc/self/mountinfo"
    inside = "/" + str(path.parent.relative_to(machine.root))
    if path != table and table.exists():
        table.write_text(table.read_text() + mount(inside, "tmpfs"))


def folder_unreadable(machine: Machine, path: Path) -> None:
    path.parent.chmod(0)


def emptied(machine: Machine, path: Path) -> None:
    path.write_text("")


def missing(machine: Machine, path: Path) -> None:
    path.unlink()


HIDDEN = (unreadable, masked, folder_unreadable)
TAKEN = (emptied, missing)
MOUNTED_OVER = ("/proc/", "/sys/", "/etc/")
SHOWN = {name: bad for name, bad in BAD.items() if bad.evidence}


def faults(bad: Bad) -> Iterator[Callable[[Machine, Path], None]]:
    yield from HIDDEN
    if not bad.is_subject:
        yield from TAKEN
    if bad.evidence.startswith(MOUNTED_OVER):
        yield folder_masked


def sweep(name: str, kept: Kept, *, one: bool = False) -> None:
    """Each fault on the evidence of one bad thing; the check that should see it may not pass.

    Of one, it is another for each name.
    """
    bad = BAD[name]
    (check,) = (one for one in CHECKS if (one.id, one.kind) == (bad.check, "node"))
    ways = list(faults(bad))
    for fault in [ways[zlib.crc32(name.encode()) % len(ways)]] if one else ways:
        machine = kept.again()
        bad.make(machine)
        path = machine.root / bad.evidence.lstrip("/")
        try:
            fault(machine, path)
            state = state_of(machine, check)
        finally:
            if path.parent.exists():
                path.parent.chmod(0o755)
        assert state is not State.PASS, (name, fault.__name__)
        assert state is not State.NOT_APPLICABLE or fault in {missing, folder_masked}, name


@pytest.mark.parametrize("name", SHOWN)
def test_evidence_that_is_hidden_never_passes(name, kept):
    sweep(name, kept, one=True)


@pytest.mark.many
@pytest.mark.parametrize("name", SHOWN)
def test_nor_does_any_that_is_hidden_otherwise(name, kept):
    sweep(name, kept)


def as_nobody(work: Callable[[], None]) -> None:
    """Run `work` in a child without privileges."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent looks at the status
            traceback.print_exc()
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0


@pytest.fixture
def nobodys():
    """A folder that an unprivileged user can reach and fill; pytest keeps its own to itself."""
    if os.geteuid() != 0:
        pytest.skip("this is an unprivileged user already: the sweep above is the test")
    with tempfile.TemporaryDirectory(prefix="audit-") as name:
        folder = Path(name)
        (folder / "before").mkdir()
        states_of(hardened(folder / "before"))  # without rights not everything can be imported
        os.chown(folder, NOBODY, NOBODY)
        yield folder


def kept_in(folder: Path) -> Kept:
    own = folder / "own"
    own.mkdir()
    return Kept.of(hardened(own))


@pytest.mark.parametrize("name", ["sshd-match", "tcp-service", "spectre", "no-lsm", "ptrace"])
def test_nor_does_it_pass_for_an_unprivileged_user(name, nobodys):
    as_nobody(lambda: sweep(name, kept_in(nobodys)))


@pytest.mark.many
def test_nor_does_any_pass_for_an_unprivileged_user(nobodys):
    def whole() -> None:
        kept = kept_in(nobodys)
        for name in SHOWN:
            sweep(name, kept)

    as_nobody(whole)


@pytest.mark.parametrize(
    "links",
    [b"", b"\0" * 7, MOUNTS.encode()],
    ids=["nothing", "cut off", "something else"],
)
def test_without_the_kernels_list_nothing_about_interfaces_passes(links, machine):
    machine.links = links
    states = states_of(machine)
    for check in ("ST-NET-001", "ST-NET-002", "ST-NET-004", "ST-FAB-001", "ST-FAB-002"):
        assert states[check] is State.UNKNOWN, check


def test_no_interface_at_all_is_unknown(machine):
    machine.links = machine.links[-20:]  # the end of the list only
    states = states_of(machine)
    assert states["ST-NET-001"] is states["ST-NET-002"] is State.UNKNOWN
