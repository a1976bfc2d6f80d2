# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plugin: a test that failed among others runs once more, alone, when the others have ended.

``pytest --flaky FILE``, as `make test` says it; pytest by hand runs nothing again. Rules:

1. each test that failed runs in a process of its own, one after the other. One that passes there is
   listed under ``flaky:`` with its first error and counts as passed, beside a count of its own; one
   that fails there, skips there or ends by itself has failed. The one closing line and the exit
   code are those of the whole;
2. a time-out of pytest-timeout is a failure for good;
3. nothing runs again when a worker crashed, when collecting failed, when the run was interrupted or
   stopped early, or when more than `MOST` tests failed: those are faults;
4. where ``CI`` is not set, what passed alone is added to FILE: date of the run, commit, test, first
   error. A test that stands there in two runs is a defect, and ``python -m tests.flaky`` (a part of
   `make lint`) fails until it is mended and its lines are removed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from securetrain.core.files import write_atomic

HISTORY: Final = Path(__file__).with_suffix(".json")
MOST: Final = 20
"""Tests that may run again; where more fail, it is no matter of waits."""
PATIENCE: Final = 900.0
"""Seconds for all of them."""
_TIMED_OUT: Final = "from pytest-timeout"
_LONGEST: Final = 200
"""Characters of an error in the list."""


def first_error(report: pytest.TestReport) -> str:
    """The first line of the error that a report ends with."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return (text.strip().splitlines() or [""])[0][:_LONGEST]


def listed_twice(entries: Iterable[dict[str, str]]) -> list[str]:
    """The tests that a history lists in more than one run."""
    runs: defaultdict[str, set[str]] = defaultdict(set)
    for entry in entries:
        runs[entry["test"]].add(entry["date"])
    return sorted(test for test, dates in runs.items() if len(dates) > 1)


def passes_alone(test: str, config: pytest.Config, patience: float) -> tuple[bool, str]:
    """Run one test in a fresh process: whether it passed, and what the process said."""
    ini = ["-c", str(config.inipath)] if config.inipath else []
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.xml")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ini),
                *("--rootdir", str(config.rootpath), f"--junitxml={result}", test),
            ],
            cwd=config.rootpath, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            said = "it did not end"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == 0 and result.exists() and _is_one_pass(result), said


def _is_one_pass(result: Path) -> bool:
    suites = [
        [int(suite.get(name, -1)) for name in ("tests", "failures", "errors", "skipped")]
        for suite in ET.parse(result).getroot().iter("testsuite")
    ]
    # Each row of a test that goes through a table with `subtests` is counted as a test there.
    return len(suites) == 1 and suites[0][0] >= 1 and suites[0][1:] == [0, 0, 0]


class Flaky:
    """Runs again what failed, where the reports come together."""

    def __init__(self, history: Path) -> None:
        self.history = history
        self.date = datetime.now(UTC).isoformat(timespec="seconds")
        self.crashed = False
        self.found: list[tuple[str, str]] = []
        """Test and first error."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self.crashed = self.crashed or bool(error)

    @pytest.hookimpl(trylast=True)  # the workers have ended by then
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        terminal: Any = session.config.pluginmanager.getplugin("terminalreporter")
        if exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or session.shouldstop:
            return
        failed = failures(terminal.stats)
        terminal.write_line("")  # the end of the line of dots
        if self.crashed or not all(isinstance(r, pytest.TestReport) for r in sum_of(failed)):
            terminal.write_line("nothing runs once more: a worker crashed, or collecting failed")
            return
        if len(failed) > MOST:
            terminal.write_line(f"nothing runs once more: {len(failed)} tests failed, over {MOST}")
            return
        self._run_again(session, terminal, failed)

    def _run_again(
        self, session: pytest.Session, terminal: Any, failed: dict[str, list[pytest.TestReport]]
    ) -> None:
        end = time.monotonic() + PATIENCE
        for test, reports in failed.items():
            if any(_TIMED_OUT in report.longreprtext for report in reports):
                continue
            left = end - time.monotonic()
            passed, said = passes_alone(test, session.config, left) if left > 0 else (False, "")
            terminal.write_line(f"once more, alone: {test} {'passed' if passed else 'failed'}")
            if not passed:
                reports[-1].sections.append(("once more, alone", said))
                continue
            self.found.append((test, first_error(reports[0])))
            count_as_flaky(terminal, test, reports)
            # Without workers, pytest does not count every failed part of a test with subtests.
            session.testsfailed = max(0, session.testsfailed - len(reports))
        if not failures(terminal.stats) and not session.testsfailed:
            session.exitstatus = pytest.ExitCode.OK
        if self.found and not os.environ.get("CI"):
            self._keep()

    def _keep(self) -> None:
        from tools.campaign import commit

        entries = json.loads(self.history.read_text()) if self.history.exists() else []
        head = commit()[0]
        entries += [
            {"date": self.date, "commit": head, "test": test, "error": error}
            for test, error in self.found
        ]
        write_atomic(self.history, (json.dumps(entries, indent=1) + "\n").encode())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.found:
            terminalreporter.write_line("flaky:")
        for test, error in self.found:
            terminalreporter.write_line(f"  {test}: {error}")


def failures(stats: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The reports of every test that failed, and of every file that could not be collected."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for reports in stats.values():
        for report in reports:
            if getattr(report, "failed", False):
                found[report.nodeid].append(report)
    return dict(found)


def sum_of(failed: dict[str, list[Any]]) -> list[Any]:
    """All reports."""
    return [report for reports in failed.values() for report in reports]


def count_as_flaky(terminal: Any, test: str, reports: Sequence[pytest.TestReport]) -> None:
    """Take the failures of a test out of the counts; it has passed, and is flaky."""
    stats: dict[str, list[Any]] = terminal.stats
    gone = {id(report) for report in reports}
    for kind in [kind for kind, found in stats.items() if gone & {id(one) for one in found}]:
        stats[kind] = [one for one in stats[kind] if id(one) not in gone]
        if not stats[kind]:  # a kind that is there colours the closing line
            del stats[kind]
    kinds = ["flaky"]
    if not any(one.nodeid == test for one in stats.get("passed", [])):
        kinds.append("passed")
    for kind in kinds:
        terminal._add_stats(kind, [_passed(reports[0])])


def _passed(report: pytest.TestReport) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=report.nodeid, location=report.location, keywords=report.keywords,
        outcome="passed", longrepr=None, when="call",
    )  # fmt: skip


def main() -> int:
    """Fail when the history lists a test in two runs."""
    entries = json.loads(HISTORY.read_text()) if HISTORY.exists() else []
    found = listed_twice(entries)
    for test in found:
        print(  # noqa: T201 - a check of make lint
            f"{HISTORY.name}: {test} was flaky in two runs: mend the wait or move it to make"
            " test-slow, then remove its lines"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
