# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What runs once more, and what must not: each by a pytest of its own over planted tests."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import flaky

pytestmark = pytest.mark.slow  # each starts pytest, and that starts it again

ROOT = Path(__file__).resolve().parent.parent

CONFTEST = """
from pathlib import Path
import pytest
from tests.flaky import Flaky

def pytest_addoption(parser):
    parser.addoption("--flaky", type=Path)

def pytest_configure(config):
    if (history := config.getoption("--flaky")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Flaky(history))

@pytest.fixture
def turn(request):
    '''How often a test has run before, in whatever process.'''
    place = Path(request.config.rootpath, "turns")
    place.mkdir(exist_ok=True)
    file = place / request.node.name.encode().hex()
    before = file.stat().st_size if file.exists() else 0
    file.write_bytes(bytes(before + 1))
    return before
"""

SOMETIMES = """
import pytest

@pytest.mark.parametrize("word", ["a b", "x::y[z]"])
def test_call(turn, word):
    assert turn, "too early: " + word

@pytest.fixture
def prepared(turn):
    if not turn:
        raise TimeoutError("it never began")

def test_parts(turn, subtests):
    for number in range(3):
        with subtests.test(number=number):
            assert turn or number, "too early in a part"

def test_setup(prepared):
    pass

@pytest.fixture
def cleared(turn):
    yield
    if not turn:
        raise TimeoutError("it never ended")

def test_teardown(cleared):
    pass
"""

ROWS = """
def test_rows(turn, subtests):
    for n in range(3):
        with subtests.test(f"row {n}"):
            assert turn or n != 1, "too early"
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    history: Path
    turns: int
    """How often tests ran that count this, in all."""

    @property
    def closing(self) -> dict[str, int]:
        """The counts of the last line."""
        counts = self.out.strip().splitlines()[-1].rpartition(" in ")[0]
        return {kind: int(number) for number, kind in re.findall(r"(\d+) ([a-z]+)", counts)}

    @property
    def entries(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.history.read_text())
        return found


def run(folder: Path, code: str, *options: str, history: str = "flaky.json", **env: str) -> Ran:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "test_planted.py").write_text(code)
    (folder / "test_good.py").write_text("def test_good(): pass\n")
    base = {name: value for name, value in os.environ.items() if name != "CI"}
    base = {name: value for name, value in base.items() if not name.startswith("PYTEST_")}
    # Each start without the plugins that are not needed is a second less.
    base |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout"}
    flags = ["--flaky", history] if history else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, *options],
        cwd=folder, env={**base, "PYTHONPATH": str(ROOT), **env},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    turns = sum(file.stat().st_size for file in folder.glob("turns/*"))
    return Ran(done.returncode, done.stdout, folder / history, turns)


def test_what_passes_alone_is_flaky_and_fails_nothing(tmp_path):
    ran = run(tmp_path, SOMETIMES, "-n", "2")
    assert ran.code == 0, ran.out
    assert ran.closing == {"passed": 6, "flaky": 5, "subtests": 2}
    listed = ran.out.partition("flaky:\n")[2].splitlines()[:5]
    errors = {
        "test_call[a b]": "AssertionError: too early: a b",
        "test_call[x::y[z]]": "AssertionError: too early: x::y[z]",
        "test_parts": "AssertionError: too early in a part",
        "test_setup": "TimeoutError: it never began",
        "test_teardown": "TimeoutError: it never ended",
    }
    assert sorted(listed) == sorted(
        f"  test_planted.py::{name}: {error}" for name, error in errors.items()
    )
    assert {entry["test"].split("::", 1)[1]: entry["error"] for entry in ran.entries} == errors
    assert {len(entry["commit"]) for entry in ran.entries} == {40}
    assert ran.turns == 10
    assert not re.search("[Ff]ailed|FAIL", ran.out), "nothing that reads as a failure"


def test_a_table_of_rows_runs_once_more_as_one_test(tmp_path):
    ran = run(tmp_path, ROWS, "-n", "1", "-o", "verbosity_subtests=0")
    assert ran.code == 0, ran.out
    assert ran.closing == {"passed": 2, "flaky": 1}
    assert [entry["test"] for entry in ran.entries] == ["test_planted.py::test_rows"]
    ran = run(tmp_path, ROWS.replace("turn or n", "n"), "-n", "1", "-o", "verbosity_subtests=0")
    assert ran.code == 1
    assert ran.closing == {"failed": 2, "passed": 1}, "the row, and the test that it is of"
    assert "SUBFAILED[row 1]" in ran.out


def test_the_history_grows_and_a_test_in_two_runs_of_it_is_a_defect(tmp_path, monkeypatch, capsys):
    one = {"date": "2026-01-01T00:00:00+00:00", "commit": "0" * 40, "error": "e"}
    before = [one | {"test": "test_planted.py::test_setup"}, one | {"test": "other"}] * 2
    (tmp_path / "flaky.json").write_text(json.dumps(before))
    monkeypatch.setattr(flaky, "HISTORY", tmp_path / "flaky.json")
    assert flaky.main() == 0
    ran = run(tmp_path, SOMETIMES)
    assert ran.entries[:4] == before
    assert len(ran.entries) == 9
    assert flaky.listed_twice(ran.entries) == ["test_planted.py::test_setup"]
    assert flaky.main() == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "test_setup was flaky in two runs: mend the wait or move it to make test-slow" in said


def test_the_history_of_this_tree_names_no_test_twice():
    assert flaky.main() == 0


def test_in_ci_nothing_is_kept(tmp_path):
    ran = run(tmp_path, ROWS, CI="true")
    assert (ran.code, ran.closing["flaky"], ran.history.exists()) == (0, 1, False)


def test_by_hand_nothing_runs_again(tmp_path):
    ran = run(tmp_path, SOMETIMES, history="")
    assert (ran.code, ran.turns) == (1, 5)
    assert "flaky" not in ran.out


FOR_GOOD = """
import os, time
import pytest

def test_twice(turn):
    assert False, f"wrong {turn}"

def test_skips(turn):
    if turn:
        pytest.skip("alone")
    assert False

def test_dies(turn):
    if turn:
        os._exit(0)
    assert False

@pytest.mark.timeout(0.2)
def test_times_out(turn):
    if not turn:
        time.sleep(20)

def test_once(turn):
    assert turn
"""


def test_what_fails_alone_and_what_timed_out_has_failed(tmp_path):
    ran = run(tmp_path, FOR_GOOD)
    assert ran.code == 1
    assert ran.closing["failed"] == 4, ran.out
    assert (ran.closing["passed"], ran.closing["flaky"]) == (2, 1)
    assert [entry["test"] for entry in ran.entries] == ["test_planted.py::test_once"]
    assert ran.turns == 9, "what timed out did not run again"
    assert 'assert False, f"wrong {turn}"' in ran.out
    assert "wrong 1" in ran.out, "how it failed alone is shown"


ENDED = {
    "a worker crashed": "import os\ndef test_x(turn):\n    turn or os._exit(1)\n",
    "collecting failed": "import nowhere\n",
    "interrupted": "def test_x(turn):\n    if not turn: raise KeyboardInterrupt\n",
    "an internal error": "import pytest\ndef test_x(turn):\n    turn or pytest.exit('x')\n",
}


@pytest.mark.parametrize("kind", ENDED)
def test_a_run_that_did_not_end_well_never_passes(tmp_path, kind):
    (tmp_path / "test_another.py").write_text(SOMETIMES)
    workers = () if kind == "interrupted" else ("-n", "2")  # an interrupt is for all of them
    ran = run(tmp_path, ENDED[kind], *workers, "--continue-on-collection-errors")
    assert ran.code != 0, ran.out
    assert "flaky:" not in ran.out
    assert "once more, alone" not in ran.out
    assert not ran.history.exists()


@pytest.mark.parametrize(("number", "code"), [(2, 0), (3, 1)])
def test_where_many_fail_it_is_a_fault(tmp_path, number, code):
    ran = run(
        tmp_path,
        "import pytest\nfrom tests import flaky\nflaky.MOST = 2\n"
        f"@pytest.mark.parametrize('n', range({number}))\n"
        "def test_x(turn, n):\n    assert turn\n",
    )
    assert ran.code == code, ran.out
    assert ran.turns == number * (2 - code)
    assert ("nothing runs once more: 3 tests failed" in ran.out) == bool(code)


def test_a_run_that_was_stopped_early_has_failed(tmp_path):
    ran = run(tmp_path, SOMETIMES, "--maxfail=2")
    assert ran.code == 1
    assert ran.turns == 2
    assert "flaky" not in ran.out
