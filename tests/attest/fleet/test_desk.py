# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The record of tokens and proofs: kills, full disks, old copies, edits; and lists of nodes."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import sys
from datetime import timedelta
from typing import Any

import pytest

from securetrain.attest.fleet import guest_list
from securetrain.attest.fleet.decisions import Decisions
from securetrain.attest.fleet.desk import LEDGER, Desk
from securetrain.attest.fleet.guest_list import Guest, read_guests
from securetrain.attest.fleet.intake import Rule
from securetrain.attest.fleet.token import FleetToken, parse_fleet_token
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.state import MemoryState
from securetrain.core.errors import (
    AdmissionError,
    AttestationError,
    IdentityError,
    IntegrityError,
    UsageError,
)
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.ledger import Ledger, events
from tests import vocabulary
from tests.attest.fleet.worlds import answer
from tests.attest.worlds import Machine
from tests.evidence.tpm.forge import NOW


def refused(code, what, *args, **how):
    return vocabulary.refused(AdmissionError, code, what, *args, **how)


# Kills.


def killed_at(office, point, token, machine):
    """A child that keeps a proof and is killed at its n-th step; whether it was."""
    office.desk.close()
    child = os.fork()
    if child == 0:
        steps = 0

        def step():
            nonlocal steps
            steps += 1
            if steps == point:
                os.kill(os.getpid(), signal.SIGKILL)

        patched: Any = vars(sys.modules[Desk.__module__])
        run, write = Desk._run, patched["write_atomic"]

        def counted(self, *args):
            step()
            found = run(self, *args)
            step()
            return found

        def written(*args, **how):
            step()
            write(*args, **how)

        try:
            office.desk = Desk(office.folder / "admission", office.state)
            office.keeper = office.make_keeper()
            asked = office.ask(token, machine)
            said = answer(asked, token, machine)
            Desk._run = counted  # type: ignore[method-assign]
            patched["write_atomic"] = written
            office.keeper.judge(asked, said, "x")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    office.desk = Desk(office.folder / "admission", office.state)
    office.keeper = office.make_keeper()
    return os.WIFSIGNALED(status)


def test_a_kill_at_every_step_spends_the_token_with_the_proof_or_not_at_all(office):
    machine = Machine("node-4")
    before = after = point = 0
    while True:
        point += 1
        token = office.token()
        was_killed = killed_at(office, point, token, machine)
        spent = bool(office.desk.invited(token.key.key_id).used)
        assert spent is (office.desk.waiting_nodes() == ["node-4"])
        if spent:
            refused("ST-ADMN-016", office.prove, token, machine)
            after += 1
        else:
            before += 1
            if before % 8 == 1:
                office.prove(token, machine)
        office.desk.settle(office.desk.waiting(), office.now, version=1, by="person")
        if not was_killed:
            break
        assert point < 60, "the child is never done"
    assert before >= 5
    assert after >= 2
    assert point > 10


def test_a_kill_between_the_edition_and_the_desk(office, monkeypatch):
    """What was signed and still waits is signed again, and nothing is lost or doubled."""
    machine = Machine("node-4")
    office.prove(office.token(), machine)
    waiting = office.desk.waiting()

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Desk, "settle", killed)
        with pytest.raises(KeyboardInterrupt):
            office.intake.sign(office.desk, waiting)
    assert office.intake.current().version == 1
    office.reopen()
    taken = office.intake.sign(office.desk, office.desk.waiting())
    assert (taken.edition.values.version, list(taken.edition.values.nodes)) == (2, ["node-4"])
    assert office.desk.waiting() == []


# A folder that is not what it was.


def test_a_database_that_is_gone(office):
    office.token()
    office.desk.close()
    (office.folder / "admission" / "desk.sqlite").unlink()
    refused("ST-ADMN-023", Desk, office.folder / "admission", office.state)
    (office.folder / "admission" / "version").unlink()
    refused("ST-ADMN-023", Desk, office.folder / "admission", office.state)
    # Without the state it looks as after a kill of the very first start.
    Desk(office.folder / "admission", MemoryState()).close()


PARTS = ("key.pem", "desk.sqlite", "version")
WHOLE = ((), ("key.pem",), ("key.pem", "desk.sqlite"), PARTS)
"""What a kill leaves behind: each is written after the one before."""
YOUNG = ("key.pem",)
"""Left behind by a kill of the very first start alone: the state knows of none later."""


@pytest.mark.forgery
@pytest.mark.parametrize(
    "left", [left for n in range(4) for left in itertools.combinations(PARTS, n)], ids="+".join
)
def test_a_folder_of_which_parts_are_gone(office, left):
    """A desk that began anew would take machines in by tokens that somebody else can make."""
    office.token()
    office.desk.close()
    folder = office.folder / "admission"
    for name in PARTS:
        if name not in left:
            (folder / name).unlink()
    if left in WHOLE:
        if left == YOUNG:
            refused("ST-ADMN-023", Desk, folder, office.state)
        state = MemoryState() if left == YOUNG else office.state
        Desk(folder, state).close()
        return
    error = refused("ST-ADMN-023", Desk, folder, office.state)
    assert error.what == "a part of it is missing"
    assert {path.name for path in folder.iterdir()} & set(PARTS) == set(left), "nothing is made"


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "admission"):
        refused("ST-ADMN-023", Desk, folder, MemoryState())
    (tmp_path / "admission").mkdir(mode=0o700)
    (tmp_path / "admission" / "key.pem").write_bytes(b"no key")
    (tmp_path / "admission" / "desk.sqlite").write_bytes(b"no database" * 100)
    refused("ST-ADMN-023", Desk, tmp_path / "admission", MemoryState())


@pytest.mark.forgery
def test_one_tpm_under_two_names_at_once(office):
    """Both were asked before either had answered."""
    one, two = office.token("node-1"), office.token("node-4")
    machine = Machine("node-1")
    asked = [office.ask(token, machine) for token in (one, two)]
    office.keeper.judge(asked[0], answer(asked[0], one, machine), "x")
    error = refused("ST-ADMN-021", office.keeper.judge, asked[1], answer(asked[1], two, machine),
                    "x")  # fmt: skip
    assert "node-1" in error.what
    assert not office.desk.invited(two.key.key_id).used, "a refusal spends no token"


def test_some_of_what_waits(office):
    for name in ("node-1", "node-2", "node-3"):
        office.prove(office.token(name), Machine(name))
    found = [one.node for one in office.desk.waiting(["node-3", "node-1", "node-9"])]
    assert found == ["node-1", "node-3"]
    assert len(office.desk.waiting()) == 3


@pytest.mark.forgery
def test_a_token_whose_key_was_edited(office):
    office.token()
    with sqlite3.connect(office.folder / "admission" / "desk.sqlite") as db:
        db.execute("UPDATE tokens SET key = x'00'")
    assert "node-4" in refused("ST-ADMN-023", office.desk.tokens).where


def test_a_database_that_is_full(office):
    token, machine = office.token(), Machine("node-4")
    pages = office.desk._db.execute("PRAGMA page_count").fetchone()[0]
    office.desk._db.execute(f"PRAGMA max_page_count={pages}")
    assert "full" in refused("ST-ADMN-023", office.prove, token, machine).what
    assert not office.desk.invited(token.key.key_id).used
    office.desk._db.execute("PRAGMA max_page_count=100000")
    office.prove(token, machine)


def copied(office, folder, copy):
    office.desk.close()
    shutil.copytree(folder, copy)
    office.reopen()


def put_back(office, folder, copy):
    office.desk.close()
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


@pytest.mark.forgery
def test_an_older_copy_put_back(office):
    """The attack: a copy from before a token was used makes it good again."""
    token = office.token()
    folder, copy = office.folder / "admission", office.folder / "copy"
    copied(office, folder, copy)
    office.prove(token, Machine("node-4"))
    office.desk.close()
    shutil.copy(copy / "desk.sqlite", folder / "desk.sqlite")
    refused("ST-ADMN-023", Desk, folder, office.state, says="before")
    shutil.copy(copy / "version", folder / "version")
    error = refused("ST-ADMN-023", Desk, folder, office.state)
    assert LEDGER not in error.what, "the ledger goes on from what the copy knows"


@pytest.mark.forgery
def test_a_proof_that_was_edited(office):
    office.prove(office.token(), Machine("node-4"))
    path = office.folder / "admission" / "desk.sqlite"
    with sqlite3.connect(path) as db:
        (record,) = db.execute("SELECT record FROM proven").fetchone()
        db.execute("UPDATE proven SET record = ?", (record.replace(b'"node-4"', b'"node-5"'),))
    refused("ST-ADMN-023", office.desk.waiting)


@pytest.mark.parametrize("content", [b"x\n", b"99\n"])
def test_a_version_that_cannot_be(office, content):
    office.desk.close()
    (office.folder / "admission" / "version").write_bytes(content)
    refused("ST-ADMN-023", Desk, office.folder / "admission", office.state)


def test_the_folder_is_private(office):
    assert (office.folder / "admission").stat().st_mode & 0o777 == 0o700
    for path in (office.folder / "admission").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_secret_of_a_token_is_nowhere(office):
    token = office.token()
    for path in (office.folder / "admission").iterdir():
        assert token.secret not in path.read_bytes()
        assert token.text().encode() not in path.read_bytes()


def test_what_is_cancelled_is_gone(office):
    token = office.token()
    office.prove(office.token("node-5"), Machine("node-5"))
    assert office.desk.cancel(["node-4", "node-5", "node-6"], office.now) == 2
    refused("ST-ADMN-014", office.prove, token, Machine("node-4"))
    assert office.desk.waiting() == []


# The ledger.


def told(office):
    return [(one.body.event.event, one.body.event.subject) for one in office.desk.decisions()]


def test_every_decision_is_signed_and_in_order(office):
    machine = Machine("node-4")
    assert office.desk.decisions() == ()
    token = office.token(group="g", replace=True)
    office.prove(token, machine)
    office.intake.sign_by_rule(office.desk, Rule.FIRST)
    office.token("node-5")
    office.desk.cancel(["node-5", "node-6"], office.now)
    office.prove(office.token("node-7", group="g"), Machine("node-7"))
    office.intake.sign(office.desk, office.desk.waiting())
    assert told(office) == [
        ("fleet-token-made", "node-4"),
        ("machine-proven", "node-4"),
        ("machine-enrolled", "node-4"),
        ("fleet-token-made", "node-5"),
        ("machine-rejected", "node-5"),
        ("fleet-token-made", "node-7"),
        ("machine-proven", "node-7"),
        ("machine-enrolled", "node-7"),
    ]
    made, proven, enrolled = [one.body.event.details for one in office.desk.decisions()[:3]]
    assert made == {
        "token": token.key.key_id,
        "group": "g",
        "ends": token.ends.isoformat(),
        "replaces": "yes",
    }
    assert (proven["ek"], proven["token"]) == (machine.ek_name, token.key.key_id)
    assert (enrolled["ek"], enrolled["version"], enrolled["by"]) == (machine.ek_name, 1, "first")
    assert office.desk.decisions()[-1].body.event.details["by"] == "person"


@pytest.mark.forgery
@pytest.mark.parametrize("how", ["edit", "strike", "swap", "other key"])
def test_a_ledger_that_was_changed(office, how):
    for name in ("node-1", "node-2", "node-3"):
        office.token(name)
    path = office.folder / "admission" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "edit":
        lines[2] = lines[2].replace(b"node-2", b"node-9")
    elif how == "strike":
        del lines[1]
    elif how == "swap":
        lines[1:] = lines[:0:-1]
    else:
        office.desk._ledger = Decisions(path, PrivateKey.generate(KeyKind.P256))
    path.write_bytes(b"".join(lines))
    code = "ST-LEDG-003" if how in {"edit", "other key"} else "ST-LEDG-002"
    vocabulary.refused(IntegrityError, code, office.desk.decisions)


def cut_off(path, _state):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def cut_inside(path, _state):
    os.truncate(path, path.stat().st_size - 9)


def delete(path, _state):
    path.unlink()


def empty(path, _state):
    path.write_bytes(b"")


def begin_anew(path, _state):
    """By whoever holds the key: as many entries, and each of them is whole."""
    key = PrivateKey.load(path.parent / "key.pem")
    path.unlink()
    for name in ("node-1", "node-2", "node-9"):
        Ledger(path, key, "desk", lambda: NOW).begin().write(events.MachineRejected(subject=name))


def cut_off_and_the_record_edited(path, _state):
    """The record says that the ledger was never longer."""
    cut_off(path, _state)
    lines = path.read_bytes().splitlines()
    last = {"end": path.stat().st_size, "digest": hashlib.sha256(lines[-1]).hexdigest()}
    with sqlite3.connect(path.parent / "desk.sqlite") as db:
        db.execute("UPDATE settings SET value = ? WHERE name = 'ledger'", (json.dumps(last),))


def deleted_and_the_record_edited(path, _state):
    path.unlink()
    with sqlite3.connect(path.parent / "desk.sqlite") as db:
        db.execute("DELETE FROM settings WHERE name = 'ledger'")


LOST = (
    cut_off, cut_inside, delete, empty, begin_anew, cut_off_and_the_record_edited,
    deleted_and_the_record_edited)  # fmt: skip


@pytest.mark.forgery
@pytest.mark.parametrize("attack", LOST)
def test_a_ledger_that_has_lost_entries(office, attack, monkeypatch):
    """The attack: somebody takes away what was decided. A signed chain alone does not show it."""
    for name in ("node-1", "node-2", "node-3"):
        office.token(name)
    office.desk.close()
    folder = office.folder / "admission"
    attack(folder / LEDGER, office.state)
    with monkeypatch.context() as off:
        off.setattr(Desk, "_require_newest", lambda _: None)
        plain = Desk(folder, office.state)
        if attack is not cut_inside:
            off.setattr(Decisions, "check", lambda *_: None)
            assert len(plain.decisions()) < 3 or attack is begin_anew, "the chain holds"
        plain.close()
    refused("ST-ADMN-023", Desk, folder, office.state)


@pytest.mark.forgery
@pytest.mark.parametrize("attack", LOST[:5])
def test_a_ledger_that_is_lost_under_an_open_desk(office, attack):
    """It takes nobody in, and shows nothing, until the ledger is back."""
    token = office.token()
    for name in ("node-1", "node-2"):
        office.token(name)
    path = office.folder / "admission" / LEDGER
    whole = path.read_bytes()
    attack(path, office.state)
    machine = Machine("node-4")
    assert LEDGER in refused("ST-ADMN-023", office.prove, token, machine).what
    vocabulary.refused(IntegrityError, "ST-LEDG-004", office.desk.decisions)
    assert not office.desk.invited(token.key.key_id).used
    path.write_bytes(whole)
    office.prove(token, machine)
    assert len(office.desk.decisions()) == 4


@pytest.mark.forgery
def test_the_whole_folder_put_back(office):
    """The attack: record, ledger and version of before a token was used. The state knows better."""
    token = office.token()
    folder, copy = office.folder / "admission", office.folder / "copy"
    copied(office, folder, copy)
    office.prove(token, Machine("node-4"))
    put_back(office, folder, copy)
    plain = Desk(folder, MemoryState())
    assert [one.used for one in plain.tokens()] == [""], "without a state the attack succeeds"
    plain.close()
    assert "before" in refused("ST-ADMN-023", Desk, folder, office.state).what


@pytest.mark.forgery
def test_a_folder_that_went_another_way(office):
    """As many changes as before, of which one is another."""
    folder, copy = office.folder / "admission", office.folder / "copy"
    office.token("node-1")
    copied(office, folder, copy)
    office.desk.cancel(["node-1"], office.now)
    put_back(office, folder, copy)
    other = Desk(folder, MemoryState())
    other.tried(other.tokens()[0].id, office.now)
    other.close()
    assert "another version" in refused("ST-ADMN-023", Desk, folder, office.state).what


@pytest.mark.forgery
def test_a_record_put_back_under_an_open_desk(office):
    """Written into the same file, which is not opened again."""
    token = office.token()
    folder = office.folder / "admission"
    before = sqlite3.connect(":memory:")
    with contextlib.closing(sqlite3.connect(folder / "desk.sqlite")) as db:
        db.backup(before)
    office.prove(token, Machine("node-4"))
    with contextlib.closing(sqlite3.connect(folder / "desk.sqlite")) as db:
        before.backup(db)
    before.close()
    assert not office.desk.invited(token.key.key_id).used
    refused("ST-ADMN-023", office.prove, token, Machine("node-4"))


def test_decisions_that_a_death_kept_from_coming_into_force_stay(office):
    """The ledger is ahead of the record, and goes on."""
    office.token("node-1")
    office.desk.close()
    folder = office.folder / "admission"
    Ledger(folder / LEDGER, PrivateKey.load(folder / "key.pem"), "desk", lambda: NOW).begin().write(
        events.MachineRejected(subject="node-1")
    )
    with (folder / LEDGER).open("ab") as file:
        file.write(b'{"bo')  # a second death
    office.desk = Desk(folder, office.state)
    office.token("node-2")
    assert told(office) == [
        ("fleet-token-made", "node-1"),
        ("machine-rejected", "node-1"),
        ("ledger-mended", "last line"),
        ("fleet-token-made", "node-2"),
    ]


def test_a_state_that_is_gone_stops_the_desk_and_one_that_was_behind_follows(office):
    token = office.token()

    def gone(_):
        raise AttestationError("ST-ATTS-015", "no server", "state")

    accept = office.state.accept
    office.state.accept = gone
    vocabulary.refused(AttestationError, "ST-ATTS-015", office.prove, token, Machine("node-4"))
    vocabulary.refused(AttestationError, "ST-ATTS-015", Desk, office.desk.folder, office.state)
    assert not office.desk.invited(token.key.key_id).used
    office.state.accept = accept
    calls = []

    def fails_afterwards(given):
        calls.append(given)
        return accept(given) if len(calls) == 1 else gone(given)

    office.state.accept = fails_afterwards
    office.desk.cancel(["node-9"], office.now)
    assert len(calls) == 2
    office.state.accept = accept
    office.reopen()
    office.prove(token, Machine("node-4"))


def test_the_desks_version_is_in_the_sealed_state_of_the_fleet(tmp_path):
    with contextlib.closing(FleetState(tmp_path / "fleet")) as state:
        with contextlib.closing(Desk(tmp_path / "admission", state)) as desk:
            desk.record(events.MachineRejected(subject="node-1"), NOW)
            document, version = f"admission:{desk.key.key_id}", desk.version
        assert [(one.document, one.version) for one in state.editions()] == [(document, version)]
    with contextlib.closing(FleetState(tmp_path / "fleet")) as state:
        (tmp_path / "admission" / LEDGER).unlink()
        refused("ST-ADMN-023", Desk, tmp_path / "admission", state)


def test_a_refusal_is_written_down_by_a_clock_that_went_back(office):
    office.token()
    before = office.now - timedelta(days=1)
    office.desk.record(events.MachineRejected(subject="node-4"), before)
    assert told(office)[-1] == ("machine-rejected", "node-4")
    refused("ST-ADMN-022", office.desk.cancel, ["node-4"], before)


@pytest.mark.forgery
def test_a_last_entry_that_was_edited(office):
    office.token()
    with sqlite3.connect(office.folder / "admission" / "desk.sqlite") as db:
        db.execute("UPDATE settings SET value = '{' WHERE name = 'ledger'")
    refused("ST-ADMN-023", office.desk.decisions)
    refused("ST-ADMN-023", office.token, "node-5")


def test_a_ledger_that_cannot_be_read(office):
    office.token()
    ledger = office.folder / "admission" / LEDGER
    ledger.unlink()
    ledger.mkdir()
    refused("ST-ADMN-023", office.desk.decisions)


def test_what_cannot_be_written_down_is_not_done(office):
    machine, token = Machine("node-4"), office.token()
    path = office.folder / "admission" / "ledger.jsonl"
    whole = path.read_bytes()
    path.unlink()
    path.mkdir()
    refused("ST-ADMN-023", office.token, "node-5")
    refused("ST-ADMN-023", office.prove, token, machine)
    assert [one.node for one in office.desk.tokens()] == ["node-4"]
    assert not office.desk.invited(token.key.key_id).used
    assert office.desk.waiting() == []
    path.rmdir()
    path.write_bytes(whole)
    office.prove(token, machine)
    path.write_bytes(whole + b"no entry\n")
    refused("ST-ADMN-023", office.desk.cancel, ["node-4"], office.now)
    assert office.desk.waiting_nodes() == ["node-4"]


# Tokens as text.


def test_a_token_as_text(office):
    token = office.token(group="g")
    assert parse_fleet_token(f" {token.text()}\n") == token
    assert token.secret.hex() not in repr(token)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_token_that_was_cut_or_mistyped(office, cut):
    text = office.token().text()
    for bad in (text[:-cut], text[cut:], "st1_" + text[4:], text[:9] + "A" + text[10:] + "A"):
        error = vocabulary.refused(IdentityError, "ST-IDEN-014", parse_fleet_token, bad)
        assert error.__context__ is None or isinstance(error.__context__, ValueError)


def test_a_token_with_a_bad_field():
    bad = FleetToken(
        host="h", port=1, pin="ab" * 32, node="a b", group="", ends=NOW, secret=bytes(16)
    )
    vocabulary.refused(IdentityError, "ST-IDEN-014", parse_fleet_token, bad.text())


# Lists of nodes.


def listed(tmp_path, text, group=""):
    path = tmp_path / "nodes.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_guests(path, group)


def test_a_list_of_nodes(tmp_path):
    ek = "000b" + "ab" * 32
    found = listed(tmp_path, f"\ufeffnode, group,ek\r\nn-1,,\r\n\r\nn-2,other,{ek.upper()}\n", "g")
    assert found == [Guest(node="n-1", group="g"), Guest(node="n-2", group="other", ek=ek)]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("node\nn-1\nn-2\nn-1\n", 4, "twice, first in"),
        (f"node,ek\nn-1,000b{'ab' * 32}\nn-2,000b{'AB' * 32}\n", 3, "the TPM"),
        ("name\nn-1\n", 1, "the head"),
        ("group\nimage\n", 1, "the head"),
        ("node,node\nn-1,n-2\n", 1, "the head"),
        ("node,rack\nn-1,7\n", 1, "the head"),
        ("node,group\nn-1\n", 2, "1 cells"),
        ("node\nn 1\n", 2, "no node's name"),
        ("node\n../n\n", 2, "no node's name"),
        ("node,group\nn-1,G!\n", 2, "image group"),
        ("node,ek\nn-1,abc\n", 2, "endorsement key"),
        ('node\n"n-1\n', 2, "unexpected end"),
        (f"node\n{'n' * 2000}\n", 2, "too long"),
        ("node\n", 0, "names no node"),
        ("", 0, "names no node"),
        (b"node\n\xff\n", 0, "UTF-8"),
    ],
    ids=range(16),
)
def test_a_list_that_is_not_one(tmp_path, text, line, said):
    error = refused("ST-ADMN-024", listed, tmp_path, text, says=said)
    if line:
        assert f"line {line}" in error.where


def test_a_list_of_more_nodes_than_a_fleet_has(tmp_path, monkeypatch):
    monkeypatch.setattr(guest_list, "MAX_NODES", 2)
    assert len(listed(tmp_path, "node\nn-1\nn-2\n")) == 2
    error = refused("ST-ADMN-024", listed, tmp_path, "node\nn-1\nn-2\nn-3\n")
    assert "more than 2 nodes" in error.what
    assert "line 4" in error.where


def test_a_list_that_is_not_there(tmp_path):
    vocabulary.refused(UsageError, "ST-USAG-002", read_guests, tmp_path / "nothing.csv")


def test_tokens_are_made_all_or_none(office):
    office.token("node-1")
    office.now -= timedelta(days=1)
    refused("ST-ADMN-022", office.tokens, Guest(node="node-2"), Guest(node="node-3"))
    assert [one.node for one in office.desk.tokens()] == ["node-1"]
