# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What outlives a job: bars, clocks of TPMs, the newest editions; and who tries to undo them."""

import ast
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import securetrain
from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.session import fleet_state
from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.cache import INDEX_NAME, Item, build_cache
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.for_a_job import open_fleet
from securetrain.attest.session.reference_file import write_reference_values
from securetrain.attest.session.sealed_state import check_subject
from securetrain.attest.session.state import FileState, MemoryState, Revocation, Seen
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.files import make_private_dir
from securetrain.evidence import CollateralKind
from securetrain.identity.keys import PrivateKey
from securetrain.policy import load_policy
from securetrain.testing.machine import REFERENCE_FILE, write_policy
from tests import vocabulary
from tests.attest.worlds import Machine, World, reference_values, refused
from tests.evidence.tpm.forge import NOW
from tests.tables import each

OPERATOR = PrivateKey.generate()
DOMAIN = "securetrain.local"
DAY_LATER = NOW.replace(day=NOW.day + 1)


def gone(subject: str) -> Revocation:
    return Revocation(subject=subject, reason="it lied", since="then")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "fleet"


def bar(world: World) -> None:
    """The node changes what it booted while it holds a lease."""
    world.join()
    world.machine.extend(4, bytes(range(32)))
    world.refused("ST-ATTS-008")


# From one job to the next.


@pytest.mark.forgery
@pytest.mark.parametrize("name", ["node-0", "gpu-17.rack-4"])
def test_who_was_barred_in_one_job_is_refused_in_the_next(folder, name):
    machine, pcr = Machine(name), random.randrange(10)
    with closing(FleetState(folder, DOMAIN)) as state:
        world = World(machine, state=state, job="job-1")
        world.join()
        machine.extend(pcr, bytes(range(32)))
        world.refused("ST-ATTS-008")
    machine.boot()
    World(machine, job="job-2").join()  # the control: another memory knows nothing of it
    with closing(FleetState(folder, DOMAIN)) as state:
        world = World(machine, state=state, job="job-2")
        error = world.refused("ST-ATTS-010", names=f"node:{name}")
        assert f"restore node:{DOMAIN}/{name}" in error.fix
        # Another name for the same hardware changes nothing.
        values = reference_values(machine)
        renamed = msgspec.structs.replace(values, nodes={"fresh": values.nodes[name]})
        world = World(machine, values=renamed, state=state, job="job-3")
        assert world.refused("ST-ATTS-010", node="fresh").where == f"ek:{machine.ek_name}"


def test_two_jobs_that_hear_one_tpm_in_another_order_bar_nobody(folder):
    machine = Machine()
    with closing(FleetState(folder, DOMAIN)) as state:
        first, second = (World(machine, state=state, job=job) for job in ("job-1", "job-2"))
        ask, binding = first.ask()
        early = machine.sign(machine.collect(binding, ask), binding)
        second.join()
        first.answer(early, binding)
        second.join()  # a renewal
        assert state.revocations() == []


def test_a_name_is_of_a_trust_domain_and_hardware_is_not(folder):
    with (
        closing(FleetState(folder, DOMAIN)) as one,
        closing(FleetState(folder, "b.example")) as two,
    ):
        one.revoke(gone("node:node-0"))
        one.revoke(gone("ek:" + "ab" * 34))
        assert two.revocation("node:node-0") is None
        assert two.revocation("ek:" + "ab" * 34) == gone("ek:" + "ab" * 34)
        assert one.revocation("node:node-0") == gone(f"node:{DOMAIN}/node-0")


def test_a_bar_that_the_disk_refused_counts_and_is_written_when_there_is_room(folder, monkeypatch):
    with closing(FleetState(folder, DOMAIN)) as state:
        world = World(state=state)
        world.join()
        world.machine.extend(4, bytes(range(32)))

        def full(entry):
            raise AttestationError("ST-ATTS-015", "no space left on device", str(folder))

        with monkeypatch.context() as patched:
            patched.setattr(state, "revoke", full)
            world.refused("ST-ATTS-015")
            world.machine.boot()
            world.refused("ST-ATTS-015")
        assert state.revocations() == []
        world.refused("ST-ATTS-010")
        assert len(state.revocations()) == 1
        with pytest.raises(AttestationError, match="ST-ATTS-010"):
            world.verifier._refuse_revoked(f"ek:{world.machine.ek_name}")
        assert len(state.revocations()) == 2


def test_the_memory_of_a_run_of_an_earlier_version_is_taken_over(folder, tmp_path):
    machine, old = Machine(), tmp_path / "attestation.sqlite"
    with closing(FileState(old)) as state:
        bar(World(machine, state=state))
        clock = state.past(f"ek:{machine.ek_name}")
    policy = load_policy("dev")
    for _ in range(2):
        with closing(open_fleet(folder, policy, old=old)) as state:
            subjects = [entry.subject for entry in state.revocations()]
            assert subjects == [f"ek:{machine.ek_name}", f"node:{DOMAIN}/node-0"]
            assert state.past(f"ek:{machine.ek_name}") == clock
            version = state.version
    assert version == 2, "the second time there was nothing new"


# Whoever tampers with it.


@pytest.fixture
def kept(folder):
    with closing(FleetState(folder, DOMAIN)) as state:
        state.revoke(gone("node:node-0"))
        state.accept(Seen(document="values", version=3, digest="ab"))
        assert state.version == 2
    FleetState(folder, DOMAIN).close()  # the control
    return folder


EDITS = {
    "struck-off": "DELETE FROM revoked",
    "renamed": "UPDATE revoked SET subject = 'node:securetrain.local/node-9'",
    "reason": "UPDATE revoked SET reason = ''",
    "added": "INSERT INTO revoked VALUES ('node:x/y', '', '')",
    "lowered": "UPDATE floor SET version = 1",
    "digest": "UPDATE floor SET digest = ''",
    "forgotten": "DELETE FROM floor",
    "version": "UPDATE head SET version = 9",
    "unsealed": "DELETE FROM head",
    "seal": "UPDATE head SET seal = zeroblob(64)",
}


@pytest.mark.forgery
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_by_hand_is_noticed(kept, edit):
    with closing(sqlite3.connect(kept / "state.sqlite")) as database, database:
        database.execute(edit)
    refused("ST-ATTS-017", lambda: FleetState(kept, DOMAIN), names=str(kept))


@pytest.mark.forgery
def test_an_edit_while_a_coordinator_runs_is_noticed_before_anybody_is_let_in(folder):
    with closing(FleetState(folder, DOMAIN)) as state:
        bar(world := World(state=state))
        with closing(sqlite3.connect(folder / "state.sqlite")) as database, database:
            database.execute("DELETE FROM revoked")
        world.machine.boot()
        state._heard_until = -1.0
        world.refused("ST-ATTS-017")
        refused("ST-ATTS-017", lambda: state.revoke(gone("node:other")))


@pytest.mark.forgery
@pytest.mark.parametrize("lost", ["state.sqlite", "key.pem", "older", "new-key"])
def test_a_state_that_is_gone_or_was_put_back_is_no_new_one(kept, lost, tmp_path):
    if lost == "older":
        shutil.copytree(kept, tmp_path / "copy")
        with closing(FleetState(kept, DOMAIN)) as state:
            state.revoke(gone("node:node-1"))
        shutil.copy(tmp_path / "copy" / "state.sqlite", kept / "state.sqlite")
        for left in kept.glob("state.sqlite-*"):
            left.unlink()
    elif lost == "new-key":
        (kept / "key.pem").unlink()
        PrivateKey.create(kept / "key.pem")
    else:
        (kept / lost).unlink()
    refused("ST-ATTS-017", lambda: FleetState(kept, DOMAIN))


@pytest.mark.forgery
@pytest.mark.parametrize("left", ["version", "state.sqlite"])
def test_a_state_of_which_one_part_is_left_is_no_new_one(kept, left):
    """A key that is made then would be the attacker's beginning: none is."""
    for name in {"key.pem", "state.sqlite", "version"} - {left}:
        (kept / name).unlink()
    for _ in range(2):
        error = refused("ST-ATTS-017", lambda: FleetState(kept, DOMAIN))
        assert error.what == "a part of it is missing"
        assert not (kept / "key.pem").exists()


@pytest.mark.forgery
def test_a_key_that_is_none(kept):
    (kept / "key.pem").write_bytes(b"no key")
    refused("ST-ATTS-017", lambda: FleetState(kept, DOMAIN))


def test_a_database_that_takes_no_table(kept, monkeypatch):
    monkeypatch.setattr(fleet_state, "_HEAD", "CREATE NOTHING")
    refused("ST-ATTS-015", lambda: FleetState(kept, DOMAIN))


@pytest.mark.forgery
def test_a_folder_that_was_put_back_whole_shows_in_the_run(kept, tmp_path):
    policy = load_policy("dev")
    open_fleet(kept, policy, seen=2).close()
    error = refused("ST-ATTS-017", lambda: open_fleet(kept, policy, seen=3))
    assert "version 3 in this run's ledger" in error.what


def test_a_folder_that_others_may_write_to_is_not_used(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    error = refused("ST-ATTS-015", lambda: FleetState(folder, DOMAIN))
    assert "SECURETRAIN_STATE" in error.fix


@pytest.mark.parametrize("text", ["", "x", "two words"])
def test_a_version_that_is_no_number(kept, text):
    (kept / "version").write_text(text)
    refused("ST-ATTS-017", lambda: FleetState(kept, DOMAIN))


@each("subject", "node:a.b/n-1", "ek:" + "ab" * 34, "device:SN-17")
def test_subjects(subject):
    check_subject(subject)


@each("subject", "", "node-0", "node:n-1", "node:a/b/c", "ek:AB", "ek:", "x:y")
def test_what_names_nobody_is_not_revoked(subject):
    vocabulary.refused(UsageError, "ST-USAG-001", check_subject, subject)


# Editions, on every path.


@pytest.fixture
def on_disk(tmp_path):
    """A policy with values and a cache, and both as they were one edition ago."""
    values = reference_values(Machine())
    path = write_policy(tmp_path, values, OPERATOR, tier="tpm", extends="hardened")
    path.write_text(path.read_text().replace('"file":', '"cache": "cache", "file":'))
    item = Item(kind=CollateralKind.AMD_CHAIN, id="Milan-VCEK", data=b"x", fetched=NOW)
    build_cache(tmp_path / "cache", [item], OPERATOR, NOW, DAY_LATER)
    files = (tmp_path / REFERENCE_FILE, tmp_path / "cache" / INDEX_NAME)
    before = {file: file.read_bytes() for file in files}
    newer = msgspec.structs.replace(values, version=2)
    write_reference_values(tmp_path / REFERENCE_FILE, newer, OPERATOR)
    build_cache(tmp_path / "cache", [], OPERATOR, NOW, DAY_LATER)
    return load_policy(str(path)), before


@pytest.mark.forgery
@pytest.mark.parametrize(("which", "code"), [(0, "ST-ATTS-009"), (1, "ST-ATTS-734")])
def test_an_edition_of_an_earlier_job_put_back(on_disk, folder, which, code):
    policy, before = on_disk
    with closing(FleetState(folder, DOMAIN)) as state:
        appraisers_for(policy, NOW, state)
    path = list(before)[which]
    path.write_bytes(before[path])
    appraisers_for(policy, NOW, MemoryState())  # the control
    with closing(FleetState(folder, DOMAIN)) as state:
        error = refused(code, lambda: appraisers_for(policy, NOW, state))
        assert "version 1, version 2 was accepted before" in error.what


@pytest.mark.forgery
def test_another_edition_of_the_same_version(on_disk, folder):
    policy, before = on_disk
    with closing(FleetState(folder, DOMAIN)) as state:
        appraisers_for(policy, NOW, state)
        other = msgspec.structs.replace(reference_values(Machine("node-9")), version=2)
        write_reference_values(next(iter(before)), other, OPERATOR)
        error = refused("ST-ATTS-009", lambda: appraisers_for(policy, NOW, state))
        assert "another edition of version 2" in error.what


@pytest.mark.forgery
def test_a_second_signer_in_the_policy_opens_no_way_back(on_disk, folder, tmp_path):
    policy, before = on_disk
    path = next(iter(before))
    with closing(FleetState(folder, DOMAIN)) as state:
        appraisers_for(policy, NOW, state)
        second = PrivateKey.generate()
        write_reference_values(path, reference_values(Machine()), second)
        names = f'{key_text(OPERATOR.public)}", "{key_text(second.public)}'
        file = tmp_path / "policy.yaml"
        file.write_text(file.read_text().replace(key_text(OPERATOR.public), names))
        both = load_policy(str(file))
        assert both.digest != policy.digest
        refused("ST-ATTS-009", lambda: appraisers_for(both, NOW, state))


READERS = {
    "open_reference_values": {
        "attest/fleet/compare_values.py",
        "attest/session/reference_file.py",
        "chain/reappraise.py",
    },
    "read_reference_values": {
        "attest/fleet/enrollment.py",
        "attest/fleet/intake.py",
        "attest/fleet/status.py",
        "attest/fleet/values.py",
        "attest/session/reference_file.py",
        "cli/attest/reference.py",
    },
    "load_reference_values": {"attest/session/appraisers.py", "audit/subjects/run/collect.py"},
    "read_index": {"attest/session/cache.py", "attest/fleet/cache_files.py"},
    "CollateralCache.open": {"attest/session/appraisers.py", "attest/fleet/enrollment.py"},
    "require_newest_values": {"attest/session/reference_file.py"},
    "require_newest_cache": {
        "attest/fleet/cache_files.py",
        "attest/fleet/enrollment.py",
        "attest/session/appraisers.py",
    },
    "MemoryState": {
        "audit/subjects/run/collect.py",
        "attest/session/verifier.py",
        "cli/attest/verdicts.py",
        "rendezvous/coordinator/settings.py",
    },
    "Coordinator": {
        "drills/loopback_job.py",
        "launch/run.py",
        "rendezvous/coordinator/standalone.py",
    },
}
"""Every path that reads values, a cache or a fleet's memory. A new one belongs here only if it
passes the memory on: what compares two editions judges nobody by them; what takes `MemoryState`
judges the past (``verify --at``), knows no memory
(the audit of a machine that has none), or is a program of its own (`forgetful_verifier`)."""


def test_every_path_that_reads_is_known():
    root = Path(securetrain.__file__).parent
    found: dict[str, set[str]] = {name: set() for name in READERS}
    for file in root.rglob("*.py"):
        text = file.read_text()
        if not any(name in text for name in READERS):
            continue
        for node in ast.walk(ast.parse(text)):
            used = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
            if isinstance(node, ast.Call | ast.keyword) and isinstance(used, ast.AST):
                for name in READERS.keys() & {ast.unparse(used)}:
                    found[name].add(str(file.relative_to(root)))
    assert found == READERS


# A kill at any instant.

WRITER = """
import sys
from pathlib import Path
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.state import Revocation
state = FleetState(Path(sys.argv[1]), "securetrain.local")
for number in range(10_000):
    subject = f"node:{sys.argv[2]}-{number}"
    state.revoke(Revocation(subject=subject, reason="it lied", since="then"))
    print(subject, flush=True)
"""


def killed(folder: Path, name: str, after: int, seconds: float) -> list[str]:
    """Subjects that a process has told to be barred before it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline().strip() for _ in range(after)]
        signal.sigtimedwait([], seconds)
        writer.send_signal(signal.SIGKILL)
        return [*told, *writer.stdout.read().split("\n")[:-1]]


def lose_no_bar(folder: Path, points: int) -> None:
    chance = random.Random(points)
    told: list[str] = []
    for point in range(points):
        told += killed(folder, f"p{point}", chance.randrange(3), chance.random() / 20)
        with closing(FleetState(folder, "securetrain.local")) as state:
            assert {entry.subject for entry in state.revocations()} >= {
                f"node:{DOMAIN}/{one.removeprefix('node:')}" for one in told
            }
    assert len(told) >= points // 2


def test_a_killed_coordinator_has_lost_no_bar(folder):
    lose_no_bar(folder, 2)


@pytest.mark.slow
@pytest.mark.many
def test_a_coordinator_killed_at_fifty_points_has_lost_no_bar(folder):
    lose_no_bar(folder, 50)


def test_two_coordinators_write_at_once(folder):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER.replace("10_000", "20"), str(folder), name],
            stdout=subprocess.DEVNULL,
        )
        for name in ("a", "b")
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    with closing(FleetState(folder, DOMAIN)) as state:
        assert len(state.revocations()) == state.version == 40


def test_a_kill_between_the_parts_of_a_new_folder(folder, monkeypatch):
    """The key is there, the database is not; then the database, without its seal."""
    PrivateKey.create(make_private_dir(folder) / "key.pem")
    FleetState(folder, DOMAIN).close()
    FleetState(folder, DOMAIN).close()
    with monkeypatch.context() as patched, closing(FleetState(folder, DOMAIN)) as state:
        patched.setattr(fleet_state, "write_atomic", lambda *_, **__: None)
        state.revoke(gone("node:node-0"))
    assert not (folder / "version").exists()
    with closing(FleetState(folder, DOMAIN)) as state:
        assert len(state.revocations()) == 1
