# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from securetrain.network import process_identity
from securetrain.network.process_identity import Machine, Owner, kill, running, start_time
from tests.tables import each

SLEEP = "import time; print('here', flush=True); time.sleep(300)"


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def sleeper(*arguments):
    command = [sys.executable, "-S", "-c", SLEEP, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"here\n"
            yield child
        finally:
            child.kill()


def test_this_process_is_alive():
    owner, machine = Owner.current(), Machine.current()
    assert owner.pid == os.getpid()
    assert machine.can_judge(owner)
    assert machine.is_alive(owner)


OWNER = Owner(pid=7, started=100, boot="boot-1", pid_namespace="pid:[1]")


@each(
    "boot, namespace, started, judged, alive",
    ("boot-1", "pid:[1]", 100, True, True),
    ("boot-1", "pid:[1]", None, True, False),
    ("boot-1", "pid:[1]", 101, True, False),  # the number belongs to another process
    ("boot-2", "pid:[1]", 100, True, False),  # and so after a reboot
    ("boot-2", "pid:[2]", None, True, False),
    ("boot-1", "pid:[2]", None, False, False),  # somebody's container
)
def test_who_is_dead(boot, namespace, started, judged, alive):
    machine = Machine(boot=boot, pid_namespace=namespace, start_time={7: started}.get)
    assert machine.can_judge(OWNER) is judged
    assert machine.is_alive(OWNER) is alive


def test_an_owner_that_ends():
    with sleeper() as child:
        started = start_time(child.pid)
        assert started is not None
        child.kill()
        child.wait()
        assert start_time(child.pid) is None


def test_a_process_that_nobody_waited_for_has_ended(tmp_path):
    def stat(state, threads=1):
        folder = tmp_path / "5"
        folder.mkdir(exist_ok=True)
        fields = " ".join(["1"] * 16)
        (folder / "stat").write_text(f"5 (a (b) c) {state} {fields} {threads} 1 4242 0 0")
        return start_time(5, tmp_path)

    assert stat("S") == 4242
    assert stat("Z") is None
    assert stat("X") is None
    assert stat("Z", 2) == 4242  # another thread still holds what it had open
    assert start_time(6, tmp_path) is None


def test_found_by_program_and_last_word():
    with sleeper("/opt/bin/wireguard-go", "-f", "sttest123") as child:
        assert child.pid in running("wireguard-go", "sttest123")
        assert child.pid not in running("wireguard-go", "sttest12")
        assert child.pid not in running("wireguard", "sttest123")
    assert running("wireguard-go", "sttest123") == []


def test_a_name_elsewhere_in_the_command_line_is_not_meant():
    with sleeper("wireguard-go", "sttest124", "-f") as child:
        assert child.pid not in running("wireguard-go", "sttest124")


def test_a_process_that_is_becoming_another_program_is_waited_for(tmp_path):
    """Between two programs it has no command line; a kernel thread never has one."""
    (tmp_path / "self").mkdir()
    for pid, program in ((7, "/bin/sh"), (8, "")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(b"")
        if program:
            (tmp_path / str(pid) / "exe").symlink_to(program)

    def become():
        (tmp_path / "7" / "cmdline").write_bytes(b"/usr/bin/wireguard-go\0-f\0st0\0")

    late = threading.Timer(0.02, become)
    late.start()
    assert running("wireguard-go", "st0", tmp_path) == [7]
    late.join()


def test_a_process_that_never_says_what_it_is_is_nobodys(tmp_path, monkeypatch):
    monkeypatch.setattr(process_identity, "_EXEC_SECONDS", 0.01)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"")
    (tmp_path / "7" / "exe").symlink_to("/bin/sh")
    assert running("wireguard-go", "st0", tmp_path) == []


def test_killing_waits():
    with sleeper() as child:
        assert kill([child.pid]) == []
        assert start_time(child.pid) is None
        assert child.wait() == -9


def test_nobody_kills_themselves_or_who_is_gone():
    with sleeper() as child:
        child.kill()
        child.wait()
        assert kill([os.getpid(), child.pid, 1 << 22]) == []


def test_a_number_that_is_another_process_now_is_left(monkeypatch):
    with sleeper() as child:
        real = process_identity.start_time
        answers = iter([111])

        def moved(pid, proc=process_identity.PROC):
            # First asked, it was another process.
            return next(answers, real(pid, proc))

        monkeypatch.setattr(process_identity, "start_time", moved)
        assert kill([child.pid]) == []
        assert child.poll() is None


def test_what_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr(process_identity, "_PATIENCE_SECONDS", 0.02)
    monkeypatch.setattr("signal.pidfd_send_signal", lambda *_: None)
    with sleeper() as child:
        assert kill([child.pid]) == [child.pid]


def test_descriptors_are_closed():
    before = num_descriptors()
    with sleeper() as child:
        kill([child.pid])
    assert num_descriptors() == before
