# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How the tests themselves are collected and timed, what they share, and what is kept of them."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.testing.cluster import missing
from tests import durations, flaky
from tests.own_place import PASSED
from tests.vocabulary import free_port, needs, ran
from tools import campaign
from tools.gates import violations
from tools.gates.rules.budgets import Budgets

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_first_collection_sees_programs_and_torch(tmp_path):
    """In a process of its own each: what is seen is what was imported there."""
    (tmp_path / "test_good.py").write_text("def test(): pass")
    (tmp_path / "test_broken.py").write_text("1 / 0")
    torch = "import sys\nsys.modules['torch'] = sys\ndef test(): pass"
    (tmp_path / "test_torch.py").write_text(torch)
    program = "import subprocess\nsubprocess.run(['true'])\ndef test(): pass"
    (tmp_path / "test_program.py").write_text(program)
    code = "import sys; from tests.collection import main; main(sys.argv[1:2], sys.argv[2:])"

    def said(*names: str) -> str:
        command = [sys.executable, "-c", code, *(str(tmp_path / f"test_{n}.py") for n in names)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    assert said("good", "torch") == ""
    assert said("torch", "good") == "torch was imported for rooms that need none\n"
    assert said("good", "program") == "collecting tests started a program\n"
    assert "ZeroDivisionError" in said("broken")


def test_what_grew_is_named_whatever_the_machines_speed():
    kept = {"a": 10.0, "b": 10.0, "c": 10.0, "gone": 50.0}
    assert durations.grown({"a": 20.0, "b": 20.0, "c": 20.0}, kept) == []
    assert durations.grown({"a": 10.0, "b": 10.0, "c": 40.0}, kept) == [("c", 40.0, 10.0)]
    assert durations.grown({**kept, "new": 4.0}, kept) == [("new", 4.0, 0.0)]
    assert durations.grown({"a": 1.0, "b": 1.0, "c": 4.0}, kept) == []


PLANTED = """
import multiprocessing, subprocess, time
def test_fast(): pass
def test_child(): multiprocessing.get_context("spawn").Process(target=print).start()
def test_busy():
    end = time.process_time() + 0.2
    while time.process_time() < end: pass
def test_asleep(): time.sleep(1.0)
def test_process(): subprocess.run(["true"], check=True)
"""


@pytest.mark.slow
def test_what_is_not_fast_is_named_once_and_left_out_when_it_is_kept(tmp_path):
    """A pytest of its own, whose root is a folder with the plugin and its record."""
    (tmp_path / "tests").mkdir()
    for name in ("durations.py", "conftest.py"):
        text = (ROOT / "tests" / name).read_text()
        (tmp_path / "tests" / name).write_text(text)
    for name in ("environments.py", "flaky.py", "own_place.py", "vocabulary.py"):
        (tmp_path / "tests" / name).symlink_to(ROOT / "tests" / name)
    record = tmp_path / "tests" / "durations.json"
    record.write_text('{"files": {}, "tests": {"tests/gone.py::test_gone": 9.0}}')
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers = needs: of tests"
    )
    planted = tmp_path / "tests" / "test_planted.py"
    planted.write_text(PLANTED)

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = ran(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        return done.stdout

    slow = ["test_asleep", "test_busy", "test_child", "test_process"]
    said = run("--fast")
    assert "5 passed" in said
    assert [name for name in slow if f"test_planted.py::{name}: " in said] == slow
    assert "test_planted.py::test_fast: " not in said
    run("--keep-durations", "-n", "1")
    kept = durations.read(record)["tests"]
    assert sorted(kept) == [f"tests/test_planted.py::{name}" for name in slow]
    assert "1 passed, 4 deselected" in run("--fast")
    planted.write_text(PLANTED.replace("def test_fast(): pass", "raise SystemExit(7)"))
    (tmp_path / "tests" / "test_other.py").write_text("def test_other(): pass")
    assert "1 passed" in run("--fast"), "a file of slow tests only is not imported"


@pytest.mark.slow
def test_a_run_has_its_own_home_caches_and_state(tmp_path):
    """Shown with a machine that is full of what changes results, and that stays as it is."""
    home = tmp_path / "home"
    for name in (
        ".ssh/config",
        ".cache/huggingface/token",
        "state/fleet/version",
        "state/floors/x",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("Host *\n  StrictHostKeyChecking no\n")
        (home / name).chmod(0o666)
    (home / ".cache" / "huggingface").chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "RANK": "3", "NCCL_NET": "x"}
    env |= {"A_VARIABLE_OF_NOBODY": "1", "PIP_INDEX_URL": "https://index/simple"}
    env |= {"HF_HOME": str(home / ".cache" / "huggingface"), "SECURETRAIN_STATE": f"{home}/state"}
    (tmp_path / "test_alien.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from securetrain.launch import this_node\n"
        "def test_alien():\n"
        f"    assert {str(home)!r} not in str(dict(os.environ))\n"
        "    came = set(os.environ)\n"
        "    assert not {'RANK', 'NCCL_NET', 'HF_HOME', 'A_VARIABLE_OF_NOBODY'} & came\n"
        "    assert os.environ['PIP_INDEX_URL'] == 'https://index/simple'\n"
        "    this_node(os.environ).root.joinpath('x').write_text('y')\n"
        "    Path.home().joinpath('x').write_text('y')\n"
    )
    tests = [str(tmp_path / "test_alien.py"), "tests/quickstart/test_story.py"]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", ROOT, "-m", "not slow"]
    ran([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, env=env)
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_what_comes_in_is_named_and_nothing_that_begins_so():
    for name in ("PATH", "LC_ALL", "PIP_CERT", "no_proxy", "PYTEST_XDIST_WORKER", "CRASH_FIRST"):
        assert PASSED.fullmatch(name), name
    for name in ("PATHS", "MY_PATH", "RANK", "PYTHONSTARTUP", "GIT_DIR", "LD_PRELOAD", "COLUMNS"):
        assert not PASSED.fullmatch(name), name


def test_a_port_is_nobodys_on_any_address_and_given_once(monkeypatch):
    with socket.create_server(("127.0.0.77", 0)) as other:
        taken = other.getsockname()[1]
        first, second = free_port(), free_port()
        assert first != second
        asked = [taken, first, second, spare := free_port() + 1]
        monkeypatch.setattr(
            random, "SystemRandom", lambda: SimpleNamespace(sample=lambda *_: asked)
        )
        assert free_port() == spare


@pytest.mark.netns
@needs(missing)
def test_two_suites_have_lists_of_their_own():
    """Both make the same network namespace, and each finds its own; the machine lists neither."""
    code = (
        "import os, subprocess, sys\n"
        "from tests.own_place import leave, take_own_place\n"
        "place = take_own_place()\n"
        "subprocess.run(['ip', 'netns', 'add', 'st-of-two-suites'], check=True)\n"
        "print(*os.listdir('/run/netns'), *os.listdir('/run/securetrain/network'), flush=True)\n"
        "sys.stdin.read()\n"
        "leave(place, os.getpid())\n"
    )
    suites = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        for suite in suites:
            assert suite.stdout is not None
            assert suite.stdout.readline() == "st-of-two-suites\n"
        assert not Path("/run/netns/st-of-two-suites").exists()
    finally:
        assert [suite.communicate("", timeout=30)[0] for suite in suites] == ["", ""]
    assert [suite.returncode for suite in suites] == [0, 0]


def test_a_kill_while_a_record_is_written_leaves_the_one_before(tmp_path, monkeypatch, subtests):
    """Killed when all is written and nothing is on the disk: the worst moment."""
    kept = tmp_path / "kept.json"
    reporter = SimpleNamespace(write_line=print)
    config: Any = SimpleNamespace(getoption=lambda _: True)
    monkeypatch.setattr(durations, "KEPT", kept)
    run_again = flaky.Flaky(kept)
    run_again.found = [("test", "error")]
    writers = {
        "flaky": run_again._keep,
        "durations": lambda: durations.Durations(config).pytest_terminal_summary(reporter),
        "violations": lambda: violations.write(kept, {}),
        "budgets": lambda: Budgets({}).write(kept),
        "campaign": lambda: campaign._write({}, kept),
    }

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    before = {"flaky": "[]", "durations": '{"files": {}, "tests": {"tests/gone.py": 2}}'}
    for name, write in writers.items():
        with subtests.test(name):
            kept.write_text(before.get(name, "before"))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", killed)
                with pytest.raises(KeyboardInterrupt):
                    write()
            assert kept.read_text() == before.get(name, "before")
            write()
            assert json.loads(kept.read_text()) is not None
            assert kept.read_text() != before.get(name, "before")
            assert list(tmp_path.iterdir()) == [kept]
