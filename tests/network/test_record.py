# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import os
import stat

import pytest

from securetrain.core import canonical
from securetrain.core.errors import NetworkError, UsageError
from securetrain.network import record
from securetrain.network.process_identity import Owner
from securetrain.network.record import Record
from tests.tables import items
from tests.vocabulary import refused

OWNER = Owner(pid=7, started=8, boot="boot", pid_namespace="pid:[1]")
RECORD = Record(job="job-1", node="node-0", owner=OWNER)
NAME = RECORD.names.namespace


def test_a_claim_appears_whole_and_private(state):
    folder = record.claim(state, RECORD)
    assert folder == state / NAME
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / record.RECORD).stat().st_mode) == 0o600
    (entry,) = record.entries(state)
    assert (entry.folder, entry.record, entry.problem) == (folder, RECORD, "")
    assert not entry.is_unfinished


def test_a_claim_is_made_once(state):
    record.claim(state, RECORD)
    refused(NetworkError, "ST-NETW-020", record.claim, state, RECORD, says="node-0")
    record.release(state / NAME)
    record.claim(state, RECORD)


def test_a_claim_that_cannot_be_made(state):
    state.touch()
    with pytest.raises(UsageError):
        record.claim(state, RECORD)


def test_other_trouble_is_not_taken_for_a_claim(state, monkeypatch):
    def full(*_args, **_kwargs):
        raise UsageError("ST-USAG-006", "no space left on the device")

    monkeypatch.setattr(record, "write_atomic", full)
    refused(UsageError, "ST-USAG-006", record.claim, state, RECORD)
    assert list(record.entries(state)) == []


def test_nothing_is_recorded_where_nothing_was(state):
    assert list(record.entries(state)) == []


def write(state, data, name=NAME):
    folder = state / name
    folder.mkdir(parents=True)
    state.chmod(0o700)
    (folder / record.RECORD).write_bytes(data)
    (entry,) = record.entries(state)
    return entry


@items(
    "data",
    b"",
    b"{}",
    b"[]",
    canonical.encode(RECORD)[:-1],
    canonical.encode(RECORD) + b"\n",
    canonical.encode(RECORD).replace(b"jobnetwork/v1", b"jobnetwork/v2"),
    canonical.encode(RECORD).replace(b'"job":"job-1"', b'"job":""'),
    canonical.encode(RECORD).replace(b'"host":""', b'"host":"../x"'),
    canonical.encode(RECORD).replace(b'"pid":7', b'"pid":"7"'),
    canonical.encode(RECORD).replace(b'{"host"', b'{"device":"eth0","host"'),
    b"x" * (17 << 10),
)
def test_a_malformed_record_is_none(state, data):
    entry = write(state, data)
    assert entry.record is None
    assert entry.problem
    assert not entry.is_unfinished


def test_a_record_under_another_name_is_none(state):
    entry = write(state, canonical.encode(RECORD), "st-other-00000000")
    assert entry.record is None
    assert NAME in entry.problem


def test_a_link_is_no_record(state, tmp_path):
    folder = state / NAME
    folder.mkdir(parents=True)
    state.chmod(0o700)
    (tmp_path / "elsewhere").write_bytes(canonical.encode(RECORD))
    (folder / record.RECORD).symlink_to(tmp_path / "elsewhere")
    (entry,) = record.entries(state)
    assert entry.record is None


def unfinished(state):
    (entry,) = record.entries(state)
    return entry.is_unfinished


def test_a_folder_that_was_never_finished(state):
    entry = write(state, canonical.encode(RECORD), f"{NAME}.tmp-0123456789ab")
    assert entry.record == RECORD
    assert not unfinished(state)
    record.release(entry.folder)
    entry.folder.mkdir()
    assert unfinished(state)
    (entry.folder / ".record.json.tmp-0123").touch()  # killed while it was written
    assert unfinished(state)
    (entry.folder / record.RECORD).touch()
    assert not unfinished(state)
    (entry.folder / record.RECORD).unlink()
    # An empty folder of a final name is not ours to judge.
    entry.folder.rename(state / NAME)
    assert not unfinished(state)


def test_the_lock_is_no_job_network(state):
    with record.locked(state):
        assert list(record.entries(state)) == []


@pytest.mark.parametrize("kind", ["file", "link"])
def test_only_a_folder_can_be_unfinished(state, tmp_path, kind):
    state.mkdir(mode=0o700)
    path = state / f"{NAME}.tmp-0123456789ab"
    if kind == "file":
        path.touch()
    else:
        path.symlink_to(tmp_path)
    (entry,) = record.entries(state)
    assert not entry.is_unfinished
    assert entry.problem


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_state_folder_of_others_is_refused(state, mode):
    state.mkdir()
    state.chmod(mode)
    refused(NetworkError, "ST-NETW-022", list, record.entries(state))


def test_a_state_folder_that_is_none_is_refused(state, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch(mode=0o600)
    refused(NetworkError, "ST-NETW-022", list, record.entries(file))
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    state.symlink_to(real)
    refused(NetworkError, "ST-NETW-022", list, record.entries(state))
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    refused(NetworkError, "ST-NETW-022", list, record.entries(real))


def _hold(state, held, release):
    with record.locked(state):
        held.set()
        release.wait(20)


def test_one_at_a_time(state):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(state, held, release))
    other.start()
    try:
        assert held.wait(20)
        ours = os.open(state / record.LOCK, os.O_RDWR)
        import fcntl

        with pytest.raises(BlockingIOError):
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(ours)
    finally:
        release.set()
        other.join(20)
    with record.locked(state):
        pass


def test_a_lock_that_is_a_link_is_not_followed(state, tmp_path):
    state.mkdir(mode=0o700)
    (state / record.LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError), record.locked(state):
        pass
    assert not (tmp_path / "elsewhere").exists()
