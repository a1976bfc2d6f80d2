# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories that a dead save has left, and those of savers that live."""

import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from securetrain.artifacts.tree import lease
from securetrain.artifacts.tree.lease import GRACE, OLD, Maker, abandoned, this_process
from securetrain.artifacts.tree.storage import LocalStorage
from tests.tables import each, items

ID = "0123456789abcdef" * 2
OTHER = "f" * 32


@pytest.fixture
def make(tmp_path):
    """A staging directory with a lease as given."""

    def run(maker=None, *, name="step-1", save_id=OTHER, files=("rank-00000.bin",), age=0.0):
        folder = tmp_path / f"{name}.tmp-{save_id}"
        folder.mkdir()
        for file in files:
            (folder / file).write_bytes(b"x")
        path = lease.lease_of(folder)
        if maker is not None:
            path.write_bytes(maker if isinstance(maker, bytes) else msgspec.json.encode(maker))
        now = tmp_path.stat().st_mtime
        for changed in (*folder.iterdir(), folder, path):
            if changed.exists():
                os.utime(changed, (now - age, now - age))
        return folder

    return run


@pytest.fixture
def dead():
    """This process's place, with the number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return replace(this_process(), pid=child.pid)


def begin(tmp_path: Path):
    """What the next save does first."""
    staging = LocalStorage(tmp_path / "step-2").staging(ID)
    staging.begin()
    return staging


def left(tmp_path):
    return {path.name for path in tmp_path.iterdir()}


HERE = Maker(pid=10, start=5, pids="pid:[1]", boot="a", host="here")


@each(
    "changed, locked, age, gone",
    ({"boot": "b"}, False, OLD, True),
    ({"boot": "b"}, False, OLD - 1, False),
    ({"boot": "b"}, True, 10 * OLD, False),
    ({"boot": ""}, False, OLD - 1, False),
    ({"pids": "pid:[2]"}, False, GRACE, True),
    ({"pids": "pid:[2]"}, False, GRACE - 1, False),
    ({"pids": "pid:[2]"}, True, 10 * OLD, False),
    ({"pids": ""}, True, 10 * OLD, False),
)
def test_makers_elsewhere_count_as_alive_for_as_long_as_they_may_be(changed, locked, age, gone):
    maker = replace(HERE, **changed)
    assert abandoned(maker, HERE, locked=locked, age=age) is gone


@each("age, gone", (OLD, True), (OLD - 1, False))
def test_nobody_s_directory_goes_by_age(age, gone):
    assert abandoned(None, HERE, locked=False, age=age) is gone


def test_a_maker_here_is_looked_for_by_its_number_and_start(dead):
    here = this_process()
    assert not abandoned(here, here, locked=False, age=10 * OLD)
    assert abandoned(dead, here, locked=True, age=0)
    reused = replace(here, start=here.start + 1)
    assert abandoned(reused, here, locked=False, age=0)


def test_two_kernels_that_do_not_say_their_boot_are_not_the_same(dead):
    """Without a boot id the number of a process means nothing here."""
    nameless = replace(dead, boot="")
    assert not abandoned(nameless, nameless, locked=False, age=OLD - 1)


def test_the_next_save_removes_what_the_dead_have_left(make, dead, tmp_path):
    make(dead)
    make(dead, save_id="e" * 32, files=())
    make(dead, name="another", save_id="d" * 32, files=("anything",))
    lease.lease_of(tmp_path / f"x.tmp-{'c' * 32}").write_bytes(b"")  # died at its first step
    staging = begin(tmp_path)
    assert left(tmp_path) == {f"step-2.tmp-{ID}", f"step-2.tmp-{ID}.lease"}
    staging.discard()
    assert not left(tmp_path)


def test_what_the_living_make_is_left_alone(make, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        living = replace(this_process(), pid=child.pid, start=lease._start(child.pid))
        kept = {make(living, age=10 * OLD).name}
        elsewhere = replace(this_process(), boot="other")
        kept.add(make(elsewhere, save_id="e" * 32, age=OLD - 60).name)
        begin(tmp_path).discard()
        assert left(tmp_path) == kept | {f"{name}.lease" for name in kept}
    finally:
        child.communicate()
    begin(tmp_path).discard()
    assert left(tmp_path) == {f"step-1.tmp-{'e' * 32}", f"step-1.tmp-{'e' * 32}.lease"}


def test_a_lock_shows_that_a_container_s_saver_lives(make, tmp_path):
    """Its number means nothing here, and the kernel is the same."""
    folder = make(replace(this_process(), pids="pid:[2]"), age=10 * OLD)
    with lease.lease_of(folder).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        begin(tmp_path).discard()
        assert folder.exists()
    begin(tmp_path).discard()
    assert not left(tmp_path)


def test_what_is_not_a_save_s_is_never_removed(make, tmp_path, dead):
    """Without a lease nothing says that securetrain made it."""
    mine = make(name="data", files=("notes.txt", "rank-00000.bin"), age=10 * OLD)
    nested = make(name="deep", files=(), age=10 * OLD)
    (nested / "rank-00000.bin").mkdir()
    os.utime(nested / "rank-00000.bin", (0, 0))
    os.utime(nested, (0, 0))
    old = make(name="old", files=("rank-00000.bin", "index.json"), age=10 * OLD)
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "keep").touch()
    link = tmp_path / f"link.tmp-{OTHER}"
    link.symlink_to(target)
    lease.lease_of(link).write_bytes(msgspec.json.encode(dead))
    broken = make(b"no lease", name="broken", files=("notes.txt",), age=10 * OLD)
    short = tmp_path / f"step-1.tmp-{'a' * 8}"
    short.mkdir()
    begin(tmp_path).discard()
    assert not old.exists()
    assert all(path.exists() for path in (mine, nested, target / "keep", link, broken, short))


def test_a_lease_that_cannot_be_read_yet_belongs_to_a_save_that_begins(make, tmp_path):
    """Between the two steps of a save its directory is there and its lease may be empty."""
    young = make(b"", age=OLD / 2)
    newborn = make(b"", save_id="d" * 32, files=())
    begin(tmp_path).discard()
    assert young.exists()
    assert newborn.exists()


def test_a_file_of_a_directory_s_name_is_left_alone(dead, tmp_path):
    path = tmp_path / f"step-1.tmp-{OTHER}"
    path.write_text("somebody's")
    lease.lease_of(path).write_bytes(msgspec.json.encode(dead))
    begin(tmp_path).discard()
    assert path.read_text() == "somebody's"


def test_a_signal_waits_for_the_last_save_of_a_process(monkeypatch, tmp_path):
    """It came while one directory got its name, and another one is still made."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    monkeypatch.setattr(lease._Term, "pending", True)
    first, second = tmp_path / f"a.tmp-{ID}", tmp_path / f"b.tmp-{OTHER}"
    lease.take(first)
    lease.take(second)
    lease.release(first)
    assert sent == []
    lease.release(second)
    assert sent == [signal.SIGTERM]


def test_the_handler_is_given_back_by_the_main_thread_alone():
    """Python lets no other thread set one: a save that ends there must not fail at it."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lease._on_term)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lease._unguard).result()
        assert signal.getsignal(signal.SIGTERM) is lease._on_term
        lease._unguard()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_save_of_this_process_that_failed_is_collected(tmp_path):
    first = LocalStorage(tmp_path / "step-1").staging(OTHER)
    first.begin()
    begin(tmp_path).discard()
    assert (tmp_path / f"step-1.tmp-{OTHER}").exists()  # it may still be going on
    lease._held.pop(Path(first.name))
    begin(tmp_path).discard()
    assert not left(tmp_path)


TERMINATED = """
import os, signal, sys, threading, time
from pathlib import Path
from securetrain.artifacts.tree import lease, storage
how, root = sys.argv[1], Path(sys.argv[2])
staging = storage.LocalStorage(root / "step-1").staging("0" * 32)
if how == "handled":
    signal.signal(signal.SIGTERM, lambda *a: (print("mine"), sys.exit(7)))
staging.begin()
with staging.create("rank-00000.bin") as sink:
    sink.write(memoryview(b"x"))
if how == "forked":
    if (pid := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    print(sorted(path.name for path in staging.folder.iterdir()))
    staging.discard()
    sys.exit(0)
real = storage.commit_dir
def commit(folder, final):
    real(folder, final) if how == "committed" else None
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    real(folder, final) if how != "committed" else None
storage.commit_dir = commit
if how in ("committing", "committed"):
    staging.commit()
elif how == "thread":
    thread = threading.Thread(target=staging.commit)
    thread.start()
    thread.join()
    time.sleep(60)
else:
    os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""


@items(
    "how, rc, said, there",
    ("writing", -signal.SIGTERM, "", set()),
    ("committing", -signal.SIGTERM, "", {"step-1"}),
    ("committed", -signal.SIGTERM, "", {"step-1"}),
    ("thread", -signal.SIGTERM, "", {"step-1"}),
    ("forked", 0, "['rank-00000.bin']\n", set()),
    ("handled", 7, "mine\n", {f"step-1.tmp-{'0' * 32}", f"step-1.tmp-{'0' * 32}.lease"}),
)
def test_sigterm_removes_or_finishes(tmp_path, how, rc, said, there):
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, how, str(tmp_path)],
        check=False,
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stdout) == (rc, said)
    assert left(tmp_path) == there


def test_sigterm_is_as_before_when_a_save_has_ended(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    staging = begin(tmp_path)
    if before is signal.SIG_DFL:
        assert signal.getsignal(signal.SIGTERM) is lease._on_term
    staging.discard()
    assert signal.getsignal(signal.SIGTERM) is before
