# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from securetrain.core.rundir import RUN_DIR_VARIABLE
from securetrain.launch.process.descendants import (
    Interrupted,
    end_stragglers,
    ignoring_signals,
    interruptible,
    stragglers,
    subreaper,
)
from tests.vocabulary import is_running

# Starts a sleeper in a session of its own, says its pid, and is gone.
PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid)
"""


def start_orphan(env):
    out = subprocess.run(
        [sys.executable, "-c", PARENT], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(out.stdout)


def test_orphans_of_the_run_are_found_and_ended_and_others_are_not(tmp_path):
    with subreaper():
        ours = start_orphan({**os.environ, RUN_DIR_VARIABLE: str(tmp_path)})
        other = start_orphan({**os.environ, RUN_DIR_VARIABLE: "/another/run"})
        try:
            assert stragglers(tmp_path) == {ours}
            assert end_stragglers(tmp_path) == 1
            assert not is_running(ours)
            assert is_running(other)
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
    assert end_stragglers(tmp_path) == 0


# The same, under a name that is not UTF-8 and looks like the rest of the line.
HIDDEN = """
import ctypes, os
out, told = os.pipe()
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).prctl(15, b"\\xff) Z 1 ", 0, 0, 0)
    os.write(told, b"x")
    os.close(1)
    import time
    time.sleep(300)
os.read(out, 1)
print(pid)
"""


def test_a_name_that_nobody_can_read_hides_no_process(tmp_path):
    with subreaper():
        env = {**os.environ, RUN_DIR_VARIABLE: str(tmp_path)}
        out = subprocess.run(
            [sys.executable, "-c", HIDDEN], env=env, stdout=subprocess.PIPE, text=True, check=True
        )
        hidden = int(out.stdout)
        try:
            assert end_stragglers(tmp_path) == 1
            assert not is_running(hidden)
        finally:
            with suppress(ProcessLookupError):
                os.kill(hidden, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_become_an_exception(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught, interruptible():
        os.kill(os.getpid(), number)
    assert caught.value.name == number.name
    assert signal.getsignal(number) is before


def test_cleaning_up_is_not_disturbed():
    steps = []
    with interruptible():
        with ignoring_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("cleaned")
        steps.append("went on")
    assert steps == ["cleaned", "went on"]


def test_outside_the_main_thread_nothing_changes():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with interruptible(), ignoring_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
