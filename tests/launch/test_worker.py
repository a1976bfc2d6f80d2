# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The worker entry against plain Python; all scripts but one never import torch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from datetime import UTC, datetime

import pytest

from securetrain.launch.process.workerlog import WorkerReport, read_reports
from securetrain.launch.setup import prepare_run
from tests.launch.worlds import clean_environment
from tests.vocabulary import is_running, outcome
from tests.waiting import until

SCRIPT = """\
import json, multiprocessing, pickle, sys

class Local:
    pass

def child(_):
    return "securetrain.launch.worker.child" in sys.modules, __name__

if __name__ == "__main__":
    main = sys.modules["__main__"]
    seen = {
        "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0],
        "spec": None if __spec__ is None else __spec__.name, "package": __package__,
        "names": sorted(n for n in vars(main) if n.startswith("__")),
        "pickles": isinstance(pickle.loads(pickle.dumps(Local())), Local),
        "torch": "torch" in sys.modules,
    }
    with open(sys.argv[1], "w") as file:
        json.dump(seen, file)
    if sys.argv[2] == "children":
        found = []
        for method in ("spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                found += pool.map(child, [0])
        print(json.dumps(found))
    elif sys.argv[2] == "raise":
        {}["missing"]
    elif sys.argv[2] == "exit":
        sys.exit(7)
    elif sys.argv[2] == "interrupt":
        raise KeyboardInterrupt
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return prepare_run(tmp_path_factory.mktemp("run"), "dev", datetime.now(UTC)).run


@pytest.fixture
def start(run, tmp_path):
    """Runs arguments under plain Python or under the worker, in tmp_path."""

    def start(*arguments, plain=False, timeout=60):
        env = clean_environment(
            SECURETRAIN_RUN_DIR=str(run.root),
            SECURETRAIN_PROFILE="loopback",
            RANK="3",
            TORCHELASTIC_RESTART_COUNT="1",
            TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"),
        )
        entry = [] if plain else ["-u", "-P", "-m", "securetrain.launch.worker.script"]
        return outcome([sys.executable, *entry, *arguments], env=env, cwd=tmp_path, timeout=timeout)

    return start


@pytest.mark.parametrize("kind", ["script", "folder/script", "module", "package", "zip"])
def test_the_script_sees_what_plain_python_shows(start, tmp_path, kind):
    (tmp_path / "folder").mkdir()
    (tmp_path / "pkg").mkdir()
    for name in ("script.py", "folder/script.py", "mod.py", "pkg/__main__.py"):
        (tmp_path / name).write_text(SCRIPT)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SCRIPT)
    command = {
        "script": ["script.py"],
        "folder/script": ["folder/script.py"],
        "module": ["-m", "mod"],
        "package": ["pkg"],
        "zip": ["archive.zip"],
    }[kind]
    for name, plain in (("plain", True), ("ours", False)):
        done = start(*command, name, "--flag", plain=plain)
        assert done.returncode == 0, done.stderr
    plain, ours = (json.loads((tmp_path / name).read_text()) for name in ("plain", "ours"))
    plain["argv"][1] = ours["argv"][1] = ""
    assert ours == plain
    assert not ours["torch"]


def test_children_are_protected(start, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = start("script.py", "out", "children")
    assert json.loads(done.stdout) == [[True, "__mp_main__"], [True, "__mp_main__"]]
    plain = start("script.py", "out", "children", plain=True)
    assert json.loads(plain.stdout) == [[False, "__mp_main__"], [False, "__mp_main__"]]


def test_an_exception_is_shown_and_reported(start, run, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = start("script.py", "out", "raise")
    plain = start("script.py", "out", "raise", plain=True)
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
    ((_, report),) = read_reports(run)
    assert isinstance(report, WorkerReport)
    assert report.error is not None
    assert (report.attempt, report.error.kind, report.error.message) == (1, "KeyError", "'missing'")
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "KeyError: 'missing'"
    assert "script.py" in message["extraInfo"]["py_callstack"]
    assert "securetrain" not in message["extraInfo"]["py_callstack"]


def test_exit_codes_and_signals_are_pythons(start, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert start("script.py", "out", "exit").returncode == 7
    assert start("script.py", "out", "interrupt").returncode == -signal.SIGINT


# Ends with 7 while a thread of torch's is in a callback that asks for the interpreter's lock again
# and again, for longer than a busy machine needs to come to the interpreter's end.
LATE = """
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def late(done):
    end = time.monotonic() + 4
    while time.monotonic() < end:
        time.sleep(0.001)
following = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(late)
time.sleep(0.1)
sys.exit(7)
"""


@pytest.mark.slow
def test_a_thread_of_torchs_does_not_abort_a_script_that_has_ended(start, tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    for _ in range(4):  # a plain end may be too slow, or wait for the thread that waits for it
        with contextlib.suppress(subprocess.TimeoutExpired):
            plain = start("late.py", plain=True, timeout=20)
            if plain.returncode != 7:
                break
    assert plain.returncode == -signal.SIGABRT, "torch minds: is this still needed?"
    words = ("terminate called without an active exception", "Fatal Python error")
    assert any(one in plain.stderr for one in words)
    done = start("late.py")
    assert (done.returncode, done.stderr) == (7, "")


# What a script may leave to the interpreter's end; `torch` is any module of this name.
LEFT = """
import atexit, ctypes, io, sys, tempfile, threading, time, types
sys.modules["torch"] = types.ModuleType("torch")
class Last:
    def __del__(self):
        print("a global is gone", flush=True)
def thread():
    time.sleep(0.2)
    print("a thread has ended")
def wrong():
    raise ValueError("of an exit handler")
last, unclosed = Last(), open("unclosed", "w")
unclosed.write("all of it")
sys.modules["kept"] = sys.modules["kept"].file = open("elsewhere", "w")
sys.modules["kept"].file.write("that too")
temporary = tempfile.NamedTemporaryFile(dir=".", prefix="temporary-")
atexit.register(print, "the last handler")
atexit.register(wrong)
atexit.register(print, "the first handler")
threading.Thread(target=thread).start()
sys.stdout.write("no line end, ")
"""
ENDS = {"returns": "", "minus": "sys.exit(-1)"}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_under_plain_python(start, tmp_path, end):
    (tmp_path / "left.py").write_text(LEFT + ENDS[end])
    ends = []
    for plain in (True, False):
        done = start("left.py", plain=plain)
        said = [line for line in done.stderr.splitlines() if "handler" in line or line == "no"]
        files = {
            path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "error.json"
        }
        ends.append((done.returncode, done.stdout, said, files))
        for name in ("unclosed", "elsewhere"):
            assert files.pop(name)
            (tmp_path / name).unlink()
        assert set(files) == {"left.py"}
    assert ends[0] == ends[1]


DAEMON = """
import sys, threading, time, types
sys.modules["torch"] = types.ModuleType("torch")
def daemon():
    end = time.monotonic() + 4
    while time.monotonic() < end:
        time.sleep(0.001)
threading.Thread(target=daemon, daemon=True).start()
time.sleep(0.1)
"""


def test_a_daemon_thread_says_nothing_at_the_end(start, tmp_path):
    (tmp_path / "daemon.py").write_text(DAEMON)
    done = start("daemon.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_who_leaves_because_of_an_error_of_ours_has_its_code_reported(start, run, tmp_path):
    script = """
from securetrain.core.errors import IntegrityError
raise SystemExit(16) from IntegrityError("ST-CKPT-151", "older than what this node has seen")
"""
    (tmp_path / "script.py").write_text(script)
    assert start("script.py").returncode == 16
    ((_, report),) = read_reports(run)
    assert isinstance(report, WorkerReport)
    assert report.error is not None
    assert report.error.code == "ST-CKPT-151"


def test_nothing_is_run_without_a_policy(start, run, tmp_path):
    (tmp_path / "script.py").write_text("open('ran', 'w')")
    stored = run.resolved_policy.read_bytes()
    try:
        run.resolved_policy.write_bytes(b"{}")
        done = start("script.py")
    finally:
        run.resolved_policy.write_bytes(stored)
    assert done.returncode == 2
    assert "ST-PLCY-002" in done.stderr
    assert not (tmp_path / "ran").exists()


PARENT = """\
import subprocess, sys
subprocess.Popen([sys.executable, *sys.argv[1:]]).wait()
"""


def test_a_worker_dies_with_its_launcher(run, tmp_path):
    script, ready = tmp_path / "wait.py", tmp_path / "ready"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    worker = ["-P", "-m", "securetrain.launch.worker.script", str(script), str(ready)]
    env = clean_environment(
        SECURETRAIN_RUN_DIR=str(run.root), SECURETRAIN_PROFILE="loopback", RANK="0"
    )
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *worker], env=env)
    until(lambda: ready.exists() and ready.read_text())
    pid = int(ready.read_text())
    parent.kill()
    parent.wait()
    until(lambda: not is_running(pid))


@pytest.mark.parametrize("arguments", [[], ["-m"], ["missing.py"]])
def test_no_script(start, arguments):
    done = start(*arguments)
    assert done.returncode != 0
    assert "ST-USAG-00" in done.stderr


def test_it_says_who_starts_it(tmp_path):
    done = outcome(
        [sys.executable, "-m", "securetrain.launch.worker.script", "x.py"],
        env={k: v for k, v in os.environ.items() if not k.startswith("SECURETRAIN_")},
    )
    assert done.returncode == 2
    assert "securetrain run" in done.stderr
