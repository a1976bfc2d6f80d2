# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ledger against an attacker who can write the file but has no key of the run."""

import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, IntegrityError, SecureTrainError, UsageError
from securetrain.core.vocabulary import Boundary, Decision, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import (
    GENESIS,
    LINE_LIMIT,
    Body,
    Entry,
    Event,
    Ledger,
    events,
    verify_ledger,
)
from tests import vocabulary
from tests.tables import items

KEY, SECOND, STRANGER = (PrivateKey.generate() for _ in range(3))
KEYS = {key.key_id: key.public for key in (KEY, SECOND)}
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def make(path, key=KEY, writer="agent") -> Ledger:
    return Ledger(path, key, writer, lambda: NOW).begin()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def lines(path):
    """A closed ledger of two writers, as lines."""
    agent, worker = make(path), make(path, SECOND, "rank-0")
    agent.write(events.NodeAdmitted(subject="node-0", tier=NodeTier.SELF_ASSERTED))
    worker.write(events.CheckpointSeen(subject="step-1", step=1, digest="ab"))
    error = AdmissionError("ST-ADMN-002", "no certificate" + "x" * 1000)
    agent.write(events.ConnectionRefused.of(error, "192.0.2.1"))
    agent.close()
    return path.read_bytes().splitlines(keepends=True)


def refused(code, data, *, keys=KEYS, require_closed=False):
    vocabulary.refused(
        IntegrityError,
        code,
        verify_ledger,
        data,
        keys,
        require_closed=require_closed,
        where="ledger.jsonl",
    )


def test_an_honest_ledger(lines):
    found = verify_ledger(b"".join(lines), KEYS, require_closed=True)
    assert [e.body.seq for e in found.entries] == [0, 1, 2, 3, 4]
    assert [e.body.writer for e in found.entries] == ["agent", "agent", "rank-0", "agent", "agent"]
    assert found.entries[0].body.prev == GENESIS
    assert found.closed
    assert found.counts == {Decision.ALLOW: 1, Decision.OBSERVE: 3, Decision.REFUSE: 1}
    refusal = found.entries[3].body.event
    assert (refusal.code, refusal.subject) == ("ST-ADMN-002", "192.0.2.1")
    assert len(str(refusal.details["what"])) == 500, "what an attacker sends is cut"


def test_an_empty_ledger():
    found = verify_ledger(b"", KEYS)
    assert (found.entries, found.head, found.closed) == ((), GENESIS, False)
    refused("ST-LEDG-004", b"", require_closed=True)


def test_the_file_is_private(lines, path):
    assert path.stat().st_mode & 0o777 == 0o600


# Tampering.


@pytest.mark.parametrize("number", range(4))
def test_a_changed_entry(lines, number):
    for old, new in ((b'"seq":', b'"seq":9'), (b"2026", b"2027"), (b"agent", b"sgent")):
        changed = lines[number].replace(old, new, 1)
        if changed == lines[number]:
            continue
        with pytest.raises(IntegrityError) as caught:
            verify_ledger(b"".join([*lines[:number], changed, *lines[number + 1 :]]), KEYS)
        assert caught.value.code in {"ST-LEDG-002", "ST-LEDG-003"}


def test_a_refusal_made_an_allow(lines):
    lines[3] = lines[3].replace(b'"decision":"refuse"', b'"decision":"allow"')
    refused("ST-LEDG-003", b"".join(lines))


@pytest.mark.parametrize("number", range(3))
def test_a_removed_line_is_named(lines, number):
    del lines[number]
    with pytest.raises(IntegrityError, match=f"ST-LEDG-002: entries {number} to {number} are"):
        verify_ledger(b"".join(lines), KEYS)


@items("count", 0, 2, 10**9, -1)
def test_a_writer_that_counts_otherwise_than_its_ledger(path, count):
    """Its own entries are missing: nobody else can have taken them out but a key of the run."""
    ledger = make(path)
    ledger.memory.last = msgspec.structs.replace(
        ledger.memory.last, counts={KEY.key_id: count, SECOND.key_id: 0}
    )
    ledger.write(events.NodeLeft())
    with pytest.raises(IntegrityError, match=f"ST-LEDG-002: its key has signed {count} entries"):
        verify_ledger(path.read_bytes(), KEYS)
    vocabulary.refused(IntegrityError, "ST-LEDG-002", make, path)


def test_entries_of_earlier_versions_have_no_counts_and_go_on(path):
    """Before the first entry with one only; the control is an entry without one behind it."""
    event = events.encode_event(events.NodeLeft())
    body = Body(seq=0, prev=GENESIS, time=NOW, writer="desk", event=event)
    old = Entry(body, KEY.key_id, base64.b64encode(KEY.sign(canonical.encode(body))).decode())
    path.write_bytes(canonical.encode(old) + b"\n")
    path.chmod(0o600)
    ledger = Ledger(path, KEY, "desk", lambda: NOW)
    ledger.write(events.NodeLeft())
    found = verify_ledger(path.read_bytes(), KEYS).entries
    assert [entry.body.count for entry in found] == [msgspec.UNSET, 1]


def test_reordered_lines(lines):
    lines[1], lines[2] = lines[2], lines[1]
    refused("ST-LEDG-002", b"".join(lines))


def test_a_repeated_line(lines):
    refused("ST-LEDG-002", b"".join([*lines[:2], lines[1], *lines[2:]]))


def test_lines_of_another_ledger_with_the_same_keys(lines, tmp_path):
    other = make(tmp_path / "other")
    for _ in range(4):
        other.write(events.NodeLost())
    foreign = (tmp_path / "other").read_bytes().splitlines(keepends=True)
    refused("ST-LEDG-002", b"".join([*lines[:2], *foreign[2:]]))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_lines_cut_off_the_end_of_a_closed_ledger(lines, count):
    data = b"".join(lines[:count])
    assert not verify_ledger(data, KEYS).closed, "only the missing end shows it"
    refused("ST-LEDG-004", data, require_closed=True)


@given(st.integers(1, 200))
def test_a_cut_in_the_middle_of_a_line(cut):
    line = LINE[:-cut] if cut < len(LINE) else LINE[:-1]
    refused("ST-LEDG-004", line)


def test_a_foreign_key(path):
    make(path, STRANGER).write(events.NodeLeft())
    refused("ST-LEDG-003", path.read_bytes())


def test_a_strangers_entry_behind_an_honest_ledger(lines, path):
    make(path, STRANGER).write(events.NodeAdmitted(subject="evil"))
    refused("ST-LEDG-003", path.read_bytes())


def test_a_stranger_who_claims_a_known_key(lines, path):
    make(path, STRANGER).write(events.NodeAdmitted(subject="evil"))
    data = path.read_bytes().replace(STRANGER.key_id.encode(), KEY.key_id.encode())
    refused("ST-LEDG-003", data)


def test_a_number_that_does_not_follow_although_the_chain_does():
    """Signed with a key of the run: a writer that is wrong, or an insider who hides entries."""
    event = Event(boundary=Boundary.HOST, decision=Decision.OBSERVE, event="hello")
    for seq, code in ((0, None), (1, "ST-LEDG-002")):
        body = Body(seq=seq, prev=GENESIS, time=NOW, writer="agent", event=event)
        signature = base64.b64encode(KEY.sign(canonical.encode(body))).decode()
        line = canonical.encode(Entry(body, KEY.key_id, signature)) + b"\n"
        if code is None:
            assert len(verify_ledger(line, KEYS).entries) == 1
        else:
            refused(code, line)


@items(
    "line",
    b"\n",
    b"{}\n",
    b"null\n",
    b"\x80\x04.\n",
    b"[" * 100_000 + b"\n",
    b'{"body":' + b"1" * LINE_LIMIT + b"}\n",
)
def test_a_line_that_is_no_entry(lines, line):
    refused("ST-LEDG-001", b"".join([*lines, line]))
    refused("ST-LEDG-001", line)


def test_another_spelling_of_an_entry(lines):
    refused("ST-LEDG-001", lines[0].replace(b":", b": ", 1))
    refused("ST-LEDG-001", b" " + lines[0])
    twice = lines[0].replace(b'{"body"', b'{"keyid":"x","body"', 1)
    refused("ST-LEDG-001", twice)


def _one_line() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "l").write(events.NodeLeft())
        return (Path(folder) / "l").read_bytes()


LINE = _one_line()


@given(st.integers(0, len(LINE) - 2), st.integers(1, 255))
def test_no_byte_of_a_line_can_change(position, flip):
    data = bytearray(LINE)
    data[position] ^= flip
    with pytest.raises(IntegrityError):
        verify_ledger(bytes(data), KEYS)


# Writing.


@pytest.mark.parametrize("kept", [1, 100, -1])
def test_what_a_death_left_of_a_line_is_cut_off_and_said(lines, path, kept):
    part = lines[-1][:kept]
    path.write_bytes(b"".join(lines[:-1]) + part)
    make(path).write(events.NodeLeft())
    data = path.read_bytes()
    assert data.startswith(b"".join(lines[:-1]))
    found = verify_ledger(data, KEYS).entries[len(lines) - 1 :]
    said = events.LedgerMended(
        subject="last line", bytes=len(part), digest=hashlib.sha256(part).hexdigest()
    )
    assert [entry.body.event for entry in found] == [
        events.encode_event(said),
        events.encode_event(events.NodeLeft()),
    ]


def test_a_death_in_the_first_line_leaves_an_empty_ledger(lines, path):
    path.write_bytes(lines[0][:50])
    make(path).write(events.NodeLeft())
    assert [e.body.event.event for e in verify_ledger(path.read_bytes(), KEYS).entries] == [
        "ledger-started",
        "ledger-mended",
        "node-left",
    ]


def test_nothing_is_appended_to_a_damaged_file(lines, path):
    """A whole line that is no entry, before a part of one too, and more than any line's part."""
    whole = b"".join(lines)
    for data in (
        whole + b"{}\n",
        whole + b"{}\n" + lines[0][:50],
        whole + b"\0" * (LINE_LIMIT + 1),
    ):
        path.write_bytes(data)
        with pytest.raises(SecureTrainError, match=r"ST-LEDG-00[14]"):
            make(path).write(events.NodeLeft())
        assert path.read_bytes() == data


def test_a_link_is_not_followed(tmp_path, path):
    (tmp_path / "target").touch()
    path.symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="ST-USAG-002"):
        make(path).write(events.NodeLeft())
    assert (tmp_path / "target").read_bytes() == b""


def test_refusals_and_the_end_are_on_the_disk_before_the_call_returns(monkeypatch, path):
    synced: list[int] = []
    ledger = make(path)
    monkeypatch.setattr(os, "fsync", synced.append)
    ledger.write(events.NodeLeft())
    assert len(synced) == 0
    ledger.write(events.NodeRefused.of(AdmissionError("ST-ADMN-001", "bad")))
    assert len(synced) == 1
    ledger.close()
    assert len(synced) == 2


@items(
    "said",
    events.CheckpointSigned(step=1, digest=""),
    events.CheckpointSeen(step=1, digest=""),
    events.CheckpointRecovered(step=1, digest=""),
    events.CheckpointRemoved(step=1, digest=""),
    events.RolledBack(to=1, ranks="", evidence=""),
    events.RestartPoint(step=1, digest=""),
)
def test_what_a_run_finds_its_way_by_is_on_the_disk_too(monkeypatch, path, said):
    synced: list[int] = []
    ledger = make(path)
    monkeypatch.setattr(os, "fsync", synced.append)
    ledger.write(said)
    assert len(synced) == 1


def test_a_full_disk_is_one_clear_error(monkeypatch, path):
    """A short write is what a full disk looks like."""
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(UsageError, match="ST-USAG-006"):
        make(path).write(events.NodeLeft())


def test_threads_of_one_process(path):
    def write(number):
        ledger = make(path, (KEY, SECOND)[number % 2], f"rank-{number}")
        for step in range(20):
            ledger.write(events.CheckpointSeen(step=step, digest=""))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = verify_ledger(path.read_bytes(), KEYS)
    assert len(found.entries) == 121
    for number in range(6):
        own = [e for e in found.entries[1:] if e.body.writer == f"rank-{number}"]
        assert [e.body.event.details["step"] for e in own] == list(range(20))


_WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger, events
ledger = Ledger(Path(sys.argv[1]), PrivateKey.load(Path(sys.argv[2])), sys.argv[3],
                lambda: datetime.now(UTC)).begin()
for step in range(30):
    ledger.write(events.CheckpointSeen(step=step, digest=""))
"""


def test_several_processes(path, tmp_path):
    KEY.save(tmp_path / "key.pem")
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, path, tmp_path / "key.pem", f"rank-{n}"])
        for n in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = verify_ledger(path.read_bytes(), KEYS)
    assert len(found.entries) == 91
    assert {e.body.writer for e in found.entries} == {"rank-0", "rank-1", "rank-2"}


def test_a_full_disk_leaves_a_ledger_that_goes_on(path, monkeypatch):
    ledger = make(path)
    ledger.write(events.NodeLost(subject="before"))
    whole = os.write
    with monkeypatch.context() as patch:
        patch.setattr("securetrain.ledger.log.os.write", lambda fd, line: whole(fd, line[:20]))
        with pytest.raises(UsageError) as caught:
            ledger.write(events.NodeLost(subject="lost"))
    assert caught.value.code == "ST-USAG-006"
    ledger.write(events.NodeLost(subject="after"))
    entries = verify_ledger(path.read_bytes(), KEYS).entries
    assert [entry.body.event.subject for entry in entries] == ["", "before", "after"]


# The beginning.


class Begun:
    """A ledger that a process has begun, written and left, with what its machine keeps."""

    def __init__(self, folder: Path) -> None:
        self.path, self.kept = folder / "ledger.jsonl", folder / "kept.json"
        self.process().write(events.CheckpointSeen(step=1, digest=""))
        self.lines = self.path.read_bytes().splitlines(keepends=True)

    def process(self, run: str = "run-1", policy: str = "") -> Ledger:
        """The next process; it knows what is kept."""
        return Ledger(self.path, KEY, "agent", lambda: NOW, self.kept).begin(run, policy=policy)


@pytest.fixture
def begun(tmp_path):
    return Begun(tmp_path)


def test_it_goes_on_where_it_ended_and_is_begun_once(begun):
    begun.process().close()
    names = [e.body.event.event for e in verify_ledger(begun.path.read_bytes(), KEYS).entries]
    assert names == ["ledger-started", "checkpoint-seen", "close"]
    vocabulary.refused(IntegrityError, "ST-LEDG-005", begun.process, "run-2")
    vocabulary.refused(IntegrityError, "ST-LEDG-005", begun.process, "run-1", "another's")


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_is_appended_to_what_another_process_made_of_it(data, tmp_path_factory):
    """Whole lines are removed, repeated or exchanged, or the file is; without what is kept, a
    shorter chain would go on, which is the control.
    """
    begun = Begun(tmp_path_factory.mktemp("begun"))
    lines = data.draw(st.lists(st.sampled_from(begun.lines), max_size=4))
    begun.path.unlink()
    if data.draw(st.booleans()) or lines:
        begun.path.write_bytes(b"".join(lines))
    left = begun.path.read_bytes() if begun.path.exists() else None
    if lines == begun.lines:
        begun.process()
        return
    with pytest.raises(IntegrityError) as caught:
        begun.process()
    assert caught.value.code in {"ST-LEDG-002", "ST-LEDG-004", "ST-LEDG-005"}
    assert (begun.path.read_bytes() if begun.path.exists() else None) == left
    begun.kept.unlink()
    if not lines or lines == begun.lines[:1]:
        begun.process()


@items("how, code", ("gone", "ST-LEDG-005"), ("empty", "ST-LEDG-005"), ("cut", "ST-LEDG-004"))
def test_a_writer_never_takes_another_file_for_its_own(begun, how, code):
    ledger = begun.process()
    ledger.write(events.NodeLeft())
    match how:
        case "gone":
            begun.path.unlink()
        case "empty":
            begun.path.write_bytes(b"")
        case _:
            begun.path.write_bytes(b"".join(begun.lines))
    left = begun.path.read_bytes() if begun.path.exists() else None
    vocabulary.refused(IntegrityError, code, ledger.write, events.NodeLeft())
    assert (begun.path.read_bytes() if begun.path.exists() else None) == left


_DISK = """
import os, subprocess, sys
from datetime import UTC, datetime
from pathlib import Path
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import write_atomic
from securetrain.core.held import hold
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger, events, verify_ledger
place, key = Path(sys.argv[1]), PrivateKey.load(Path(sys.argv[2]))
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], check=True)
run, said, told = hold(place), [], 1
def opened():
    return Ledger(run / "ledger.jsonl", key, "agent", lambda: datetime.now(UTC),
                  run / "state" / "kept.json").begin("r")
def coded(act):
    try:
        act()
    except SecureTrainError as error:
        said.append(error.code)
        return False
    return True
ledger = opened()
while coded(lambda: ledger.write(events.CheckpointSeen(step=told, digest=""))):
    told += 1
coded(lambda: write_atomic(run / "run.json", b"x" * 65536))
(run / "state" / "kept.json").unlink()
before = (run / "ledger.jsonl").read_bytes()
subprocess.run(["mount", "-o", "remount,ro", place], check=True)
for act in (opened, ledger.close, lambda: write_atomic(run / "run.json", b"x")):
    coded(act)
assert (run / "ledger.jsonl").read_bytes() == before
subprocess.run(["mount", "-o", "remount,rw,size=1m", place], check=True)
ledger.close()
opened().close()
found = verify_ledger((run / "ledger.jsonl").read_bytes(), {key.key_id: key.public})
steps = [e.body.event.details["step"] for e in found.entries if "step" in e.body.event.details]
assert found.closed and steps[: told - 1] == list(range(1, told)) and told > 9, (steps, told)
print(*said)
"""


def test_a_disk_that_is_full_and_one_that_is_read_only(tmp_path):
    """Of the run directory, by its handle: each is one code, and what had returned is there."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    KEY.save(tmp_path / "key.pem")
    (tmp_path / "run").mkdir()
    command = ["unshare", "--mount", sys.executable, "-c", _DISK]
    done = subprocess.run(
        [*command, tmp_path / "run", tmp_path / "key.pem"],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    full, read_only = "ST-USAG-006", "ST-USAG-002"
    assert done.stdout.split() == [full, full, read_only, read_only, read_only]
