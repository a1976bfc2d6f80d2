# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a verifier remembers, in memory and in a file."""

import sqlite3
import stat

import pytest
from msgspec.structs import replace

from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.state import (
    HEARD_WITHIN,
    KEPT,
    FileState,
    MemoryState,
    Revocation,
    Seen,
)
from securetrain.core.errors import AttestationError
from securetrain.evidence.case import Remembered
from securetrain.testing.clock import SettableClock
from tests.vocabulary import refused

TPM = Remembered(
    ek_name="ek:000b" + "ab" * 32,
    ak_name="000b" + "cd" * 32,
    node="node-0",
    clock=123456,
    reset_count=7,
    restart_count=2,
    firmware=0xFEDCBA9876543210,
    seen="2026-06-01T12:00:00+00:00",
)
GONE = Revocation(subject="node:a", reason="it lied", since="2026-06-01T12:00:00+00:00")


@pytest.fixture(params=["memory", "file", "fleet"])
def state(request, tmp_path):
    if request.param == "memory":
        yield MemoryState()
        return
    if request.param == "file":
        made = FileState(tmp_path / "state.sqlite")
    else:
        made = FleetState(tmp_path / "fleet")
    yield made
    made.close()


def test_a_clock_is_remembered_and_replaced(state):
    assert state.past(TPM.ek_name) == []
    state.remember(TPM)
    assert state.past(TPM.ek_name) == [TPM]
    later = replace(TPM, clock=200000)
    state.remember(later)
    assert state.past(TPM.ek_name) == [later]


def test_the_last_quotes_of_each_boot_of_a_verifier_are_kept_bounded(state):
    heard = [replace(TPM, boot=f"boot {n}", clock=n, entries=n, pcr10="ab") for n in range(40)]
    for one in (*heard, *heard[::-1]):
        state.remember(one)
    assert sorted(state.past(TPM.ek_name), key=lambda one: one.clock) == heard[-KEPT:]


def test_the_first_reason_of_a_revocation_stays_until_it_is_lifted(state):
    state.revoke(GONE)
    state.revoke(Revocation(subject=GONE.subject, reason="another", since=GONE.since))
    assert state.revocation(GONE.subject) == GONE
    assert state.revocations() == [GONE]
    assert state.restore(GONE.subject)
    assert not state.restore(GONE.subject)
    assert state.revocation(GONE.subject) is None


def test_an_edition_is_not_taken_back(state):
    def seen(version, digest="ab", document="values"):
        return Seen(document=document, version=version, digest=digest)

    for version in (1, 7):
        assert state.accept(seen(version)) == seen(version)
    assert state.accept(seen(3)) == seen(7)
    assert state.accept(seen(7)) == seen(7)
    assert state.accept(seen(7, "cd")) == seen(7), "another one of the same version"
    assert state.accept(seen(8, "cd")) == seen(8, "cd")
    assert state.accept(seen(1, document="cache")) == seen(1, document="cache")


def test_an_earlier_quote_that_is_heard_later_changes_nothing(state):
    state.remember(TPM)
    for change in ({"clock": 5}, {"reset_count": 6, "clock": 999999}, {"restart_count": 1}):
        state.remember(replace(TPM, **change))
        assert state.past(TPM.ek_name) == [TPM]
    rebooted = replace(TPM, reset_count=8, restart_count=0, clock=1)
    state.remember(rebooted)
    assert state.past(TPM.ek_name) == [rebooted]


def test_a_tpm_that_was_cleared_is_restored_with_its_clock(state):
    state.remember(TPM)
    assert state.restore(TPM.ek_name)
    assert state.past(TPM.ek_name) == []
    assert not state.restore(TPM.ek_name)


def test_a_file_of_the_version_before_is_taken_over(tmp_path):
    path = tmp_path / "state.sqlite"
    with sqlite3.connect(path) as old:
        old.executescript(
            "CREATE TABLE floor (document TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT;"
            "INSERT INTO floor VALUES ('values', 7); PRAGMA user_version=1;"
            "CREATE TABLE tpm (ek_name TEXT PRIMARY KEY, ak_name TEXT, node TEXT, clock INTEGER,"
            " reset_count INTEGER, restart_count INTEGER, firmware TEXT, seen TEXT) STRICT;"
        )
        row = (TPM.ek_name, TPM.ak_name, TPM.node, TPM.clock, 7, 2, f"{TPM.firmware:x}", TPM.seen)
        old.execute(f"INSERT INTO tpm VALUES {row}")
    old.close()
    state = FileState(path)
    assert state.clocks() == [TPM]
    kept = Seen(document="values", version=7, digest="")
    assert state.accept(Seen(document="values", version=6, digest="ab")) == kept
    same = Seen(document="values", version=7, digest="ab")
    assert state.accept(same) == same
    state.close()


def test_a_file_outlives_the_process_and_is_private(tmp_path):
    path = tmp_path / "state.sqlite"
    first = FileState(path)
    first.remember(TPM)
    first.revoke(GONE)
    first.close()
    second = FileState(path)
    assert second.past(TPM.ek_name) == [TPM]
    assert second.revocations() == [GONE]
    second.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_another_process_revokes_is_heard_within_half_a_second(tmp_path):
    clock = SettableClock()
    mine = FileState(tmp_path / "state.sqlite", clock.seconds)
    other = FileState(tmp_path / "state.sqlite")
    assert mine.revocation(GONE.subject) is None
    other.revoke(GONE)
    clock.sleep(HEARD_WITHIN)
    assert mine.revocation(GONE.subject) == GONE
    other.restore(GONE.subject)
    clock.sleep(HEARD_WITHIN)
    assert mine.revocation(GONE.subject) is None
    for state in (mine, other):
        state.close()


def test_what_it_revokes_itself_counts_at_once(tmp_path):
    state = FileState(tmp_path / "state.sqlite", SettableClock().seconds)
    assert state.revocation(GONE.subject) is None
    state.revoke(GONE)
    assert state.revocation(GONE.subject) == GONE
    state.restore(GONE.subject)
    assert state.revocation(GONE.subject) is None
    state.close()
    refused(AttestationError, "ST-ATTS-015", state.revocation, GONE.subject)


def test_a_file_that_is_no_state_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"not a database, but long enough to be one" * 100)
    refused(AttestationError, "ST-ATTS-015", FileState, path)


def test_a_state_of_another_version_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    FileState(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    refused(AttestationError, "version 99", FileState, path)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused(AttestationError, "ST-ATTS-015", FileState, tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_state_that_cannot_be_written_refuses(tmp_path):
    state = FileState(tmp_path / "state.sqlite")
    state.close()
    for use in (
        lambda: state.remember(TPM),
        lambda: state.past(TPM.ek_name),
        lambda: state.revocation("node:a"),
        lambda: state.revoke(GONE),
    ):
        refused(AttestationError, "ST-ATTS-015", use)
