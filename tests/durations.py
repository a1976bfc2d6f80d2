# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plugin: what every file and test costs is kept beside it, and the fast tests follow from it.

CPU seconds, not seconds of a clock: they are the same on a busy machine. Those of child processes
count, and of the ranks that the fork server starts. `make durations` keeps new ones; a run of a
few files with ``--keep-durations`` keeps theirs. Nothing fails for being slow: a file that grew and
a test that is too long for ``--fast`` are named when a run ends.

``--fast``, as `make test-fast` says it, leaves out the tests that were measured to start a process,
to need more CPU than `LIMIT` or to sleep for longer than `ASLEEP`. A test that was never measured
is fast until it is. A file that holds no other test is not even imported.
"""

import json
import multiprocessing.forkserver
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from functools import cached_property
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from securetrain.core.files import write_atomic

KEPT = Path(__file__).with_suffix(".json")
ROOT: Final = KEPT.parent.parent
PROPERTY = "cpu"
COST: Final = "cost"
LEAST = 0.5
"""Seconds of CPU; files with less are not kept."""
GROWN = 1.5
"""A file that needs so many times what it needed is named ..."""
AT_LEAST = 3.0
"""... when it is so many seconds more."""
LIMIT: Final = 0.05
"""Seconds of CPU that a fast test may need ..."""
ASLEEP: Final = 0.25
"""... and seconds that it may sleep: for a silence, a lease or a time-out."""
A_MODULE: Final = 0.003
"""Seconds of CPU that an import takes; the first test to need a module pays for all others."""
SLOW_MARKS: Final = frozenset({"gpu", "dist", "slow", "netns", "tpm", "many", "compat"})
_STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
_TEST: Final = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def cpu() -> float:
    """CPU seconds of this process, its children that ended, and the fork server's."""
    total = sum(os.times()[:4])
    server = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    try:
        # utime, stime, cutime, cstime: fields 14 to 17, counted after the name in brackets.
        fields = Path(f"/proc/{server}/stat").read_bytes().rpartition(b")")[2].split()[11:15]
    except OSError:
        return total
    return total + sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def awake() -> float:
    """Seconds that this thread ran or was ready to: a busy machine puts nobody to sleep."""
    try:
        return sum(map(int, Path("/proc/thread-self/schedstat").read_bytes().split()[:2])) / 1e9
    except OSError:  # a kernel without it: no sleep is seen
        return time.monotonic()


def grown(found: Mapping[str, float], kept: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Files that need much more than what was kept: name, seconds now, seconds then.

    A machine of another speed is allowed for by the median over all files.
    """
    shared = [found[name] / kept[name] for name in kept if found.get(name, 0.0) >= LEAST]
    speed = median(shared) if shared else 1.0
    return [
        (name, seconds, kept.get(name, 0.0) * speed)
        for name, seconds in sorted(found.items(), key=lambda one: -one[1])
        if seconds > GROWN * (then := kept.get(name, 0.0) * speed) and seconds > then + AT_LEAST
    ]


class Cost:
    """What one test takes for itself: no import, and of a shared fixture its share."""

    def __init__(self) -> None:
        self.cpu, self.awake, self.clock = cpu(), awake(), time.monotonic()
        self.modules = len(sys.modules)

    def spent(self) -> tuple[float, float]:
        """Seconds of CPU and asleep."""
        imports = A_MODULE * (len(sys.modules) - self.modules)
        asleep = time.monotonic() - self.clock - (awake() - self.awake)
        return max(0.0, cpu() - self.cpu - imports), max(0.0, asleep)


class Durations:
    """Measures in every worker, sums up where the reports come together."""

    def __init__(self, config: pytest.Config) -> None:
        self.keep: bool = config.getoption("--keep-durations")
        self.fast: bool = config.getoption("--fast")
        self.found: defaultdict[str, float] = defaultdict(float)
        self.costs: defaultdict[str, float] = defaultdict(float)
        self.last = cpu()
        self.before = Cost()
        self.starts = 0
        self.shared: dict[int, tuple[float, float]] = {}
        """Of a fixture that tests share: what it cost."""
        self.paid = (0.0, 0.0)
        """By the test that runs, for others too."""
        self.users: Counter[int] = Counter()

    @cached_property
    def slow(self) -> frozenset[str]:
        """The tests that were measured to be no fast ones."""
        return frozenset(read(KEPT)["tests"])

    def pytest_sessionstart(self) -> None:
        if not (self.keep or self.fast):
            return
        sys.addaudithook(self._audit)
        start = BaseProcess.start  # the fork server's and spawned ones make no event

        def counted(process: BaseProcess) -> None:
            self.starts += 1
            start(process)

        setattr(BaseProcess, "start", counted)  # noqa: B010 - a method is no variable to mypy

    def _audit(self, event: str, _: object) -> None:
        self.starts += event in _STARTS

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """A file of slow tests only is not imported."""
        if not (self.fast and collection_path.match("test_*.py")):
            return None
        names = set(_TEST.findall(collection_path.read_text("utf-8")))
        known = {one.rpartition("::")[2] for one in self.slow_of(collection_path)}
        return True if names and names <= known else None

    def slow_of(self, path: Path) -> list[str]:
        """The slow tests of a file."""
        if not path.is_relative_to(ROOT):
            return []
        return [one for one in self.slow if one.startswith(f"{path.relative_to(ROOT)}::")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self.fast:
            slow = [
                one
                for one in items
                if function_of(one.nodeid) in self.slow
                or any(map(one.get_closest_marker, SLOW_MARKS))
            ]
            gone = set(slow)
            config.hook.pytest_deselected(items=slow)
            items[:] = [one for one in items if one not in gone]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.users.update(id(one) for item in session.items for one in shared_by(item))
        self.last = cpu()  # to collect is no test's cost

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before, paid = Cost(), self.paid
        try:
            return (yield)
        finally:
            seconds, asleep = before.spent()
            inner = (self.paid[0] - paid[0], self.paid[1] - paid[1])
            self.shared[id(fixturedef)] = (seconds - inner[0], asleep - inner[1])
            self.paid = (paid[0] + seconds, paid[1] + asleep)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.before, self.paid, self.starts = Cost(), (0.0, 0.0), 0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu()
        report.user_properties.append((PROPERTY, now - self.last))
        self.last = now
        if call.when == "teardown":
            report.user_properties.append((COST, self._cost(item)))
        return report

    def _cost(self, item: pytest.Item) -> float:
        """How many times it needs what a fast test may; a process is once more than that."""
        seconds, asleep = self.before.spent()
        seconds, asleep = seconds - self.paid[0], asleep - self.paid[1]
        for one in shared_by(item):
            paid = self.shared.get(id(one), (0.0, 0.0))
            seconds += paid[0] / self.users[id(one)]
            asleep += paid[1] / self.users[id(one)]
        return max(seconds / LIMIT, asleep / ASLEEP) + 2 * bool(self.starts)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, float):
                self.found[report.nodeid.partition("::")[0]] += value
            elif name == COST and isinstance(value, float):
                test = function_of(report.nodeid)
                self.costs[test] = max(self.costs[test], value)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not KEPT.exists():
            return
        kept = read(KEPT)
        if self.keep:
            write_atomic(KEPT, written(merged(kept, self.found, self.costs)).encode())
            return
        for name, now, then in grown(self.found, kept["files"]):
            terminalreporter.write_line(
                f"grown: {name} needs {now:.1f} s of CPU, and needed {then:.1f} s"
            )
        over = sorted(((cost, test) for test, cost in self.costs.items() if cost > 1), reverse=True)
        if self.fast and over:
            terminalreporter.write_line(
                f"no fast tests (over {LIMIT} s of CPU, asleep for {ASLEEP} s, or with a process;"
                " make durations leaves them to make test):"
            )
            for cost, test in over:
                terminalreporter.write_line(f"  {test}: {cost:.1f} times that")


Kept = dict[str, dict[str, float]]


def read(path: Path) -> Kept:
    """CPU seconds of files, and the tests that are no fast ones."""
    kept: Kept = json.loads(path.read_text())
    return kept


def merged(kept: Kept, files: Mapping[str, float], costs: Mapping[str, float]) -> Kept:
    """What is kept after a run: what ran has its new figures, what is gone has none."""
    old = {one: cost for one, cost in kept["tests"].items() if one not in costs}
    old = {one: cost for one, cost in old.items() if (ROOT / one.partition("::")[0]).exists()}
    new = {one: round(cost, 1) for one, cost in costs.items() if cost > 1}
    seconds = {one: s for one, s in kept["files"].items() if (ROOT / one).exists()} | {
        one: round(s, 1) for one, s in files.items()
    }
    return {"files": {n: s for n, s in seconds.items() if s >= LEAST}, "tests": old | new}


def written(kept: Kept) -> str:
    """A line for each."""
    return json.dumps(kept, indent=0, sort_keys=True) + "\n"


def function_of(test: str) -> str:
    """A test's id without its row: all rows of a matrix are of one tier."""
    return test.partition("[")[0]


def shared_by(item: pytest.Item) -> list[pytest.FixtureDef[Any]]:
    """The fixtures that a test shares with others."""
    known: Mapping[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return [one[-1] for one in known.values() if one[-1].scope != "function"]
