# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import ctypes
import os
import subprocess
import threading

import pytest

from securetrain.core.process_stat import all_stats, environment_of, read_stat
from tests.vocabulary import refused

_PR_SET_NAME = 15
NAMES = [b"plain", b"a b", b") Z 1 ", b"(((", b"\xff\xfe", b"", b"\n) S 1 1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_process_is_read_whatever_its_name(name):
    out, told = os.pipe()
    wait, waited = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)
        os.close(waited)
        os.write(told, b"x")
        os.read(wait, 1)
        os._exit(0)
    os.read(out, 1)
    found = read_stat(pid)
    assert found is not None
    assert found.parent == os.getpid()
    assert found.state in {"R", "S"}
    assert found.num_threads == 1
    own = read_stat(os.getpid())
    assert own is not None
    assert found.started >= own.started
    assert dict(all_stats())[pid].parent == os.getpid()
    for end in (out, told, wait, waited):
        os.close(end)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    dead = read_stat(pid)
    assert dead is not None
    assert dead.has_ended
    os.waitpid(pid, 0)
    assert read_stat(pid) is None


def test_what_is_not_the_kernels(tmp_path):
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"
    for text in ("", "7 (x) S 1", "7 (x) S " + "y " * 40):
        stat.write_text(text)
        refused(ValueError, r"fields after the name|invalid literal", read_stat, 7, tmp_path)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "stat").mkdir()
    with pytest.raises(IsADirectoryError):
        read_stat(8, tmp_path)
    stat.write_text("7 (x) S 3 " + "0 " * 15 + "2 0 99")
    assert [(pid, found.parent) for pid, found in all_stats(tmp_path)] == [(7, 3)]
    assert [(f.num_threads, f.started) for _, f in all_stats(tmp_path)] == [(2, 99)]


def test_the_environment_is_asked_for_again_in_the_middle_of_an_execve(tmp_path):
    entry = tmp_path / "7"
    entry.mkdir()
    (entry / "environ").touch()
    (entry / "exe").symlink_to("program")
    shown = threading.Timer(0.003, (entry / "environ").write_bytes, [b"A=1\0B=2\0"])
    shown.start()
    assert b"B=2" in environment_of(7, tmp_path)
    shown.join()


def test_what_has_no_program_has_no_environment_to_come(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises((ProcessLookupError, FileNotFoundError)):
            environment_of(ended.pid)
    with subprocess.Popen(["sleep", "60"], env={}) as without:
        assert environment_of(without.pid) == []
        without.kill()
