# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plugin: CPU seconds of every file of tests, kept beside it, so that what grew is seen.

CPU seconds, not seconds of a clock: they are the same on a busy machine. Those of child processes
count, and of the ranks that the fork server starts. A machine of another speed is allowed for by
the median over all files. Nothing fails for being slow; `make durations` keeps new ones.
"""

import json
import multiprocessing.forkserver
import os
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

KEPT = Path(__file__).with_suffix(".json")
PROPERTY = "cpu"
LEAST = 0.5
"""Seconds of CPU; files with less are not kept."""
GROWN = 1.5
"""A file that needs so many times what it needed is named ..."""
AT_LEAST = 3.0
"""... when it is so many seconds more."""


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


def grown(found: Mapping[str, float], kept: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Files that need much more than what was kept: name, seconds now, seconds then."""
    shared = [found[name] / kept[name] for name in kept if found.get(name, 0.0) >= LEAST]
    speed = median(shared) if shared else 1.0
    return [
        (name, seconds, kept.get(name, 0.0) * speed)
        for name, seconds in sorted(found.items(), key=lambda one: -one[1])
        if seconds > GROWN * (then := kept.get(name, 0.0) * speed) and seconds > then + AT_LEAST
    ]


class Durations:
    """Measures in every worker, sums up where the reports come together."""

    def __init__(self, config: pytest.Config) -> None:
        self.keep: bool = config.getoption("--keep-durations")
        self.found: defaultdict[str, float] = defaultdict(float)
        self.last = cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu()
        report.user_properties.append((PROPERTY, now - self.last))
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, float):
                self.found[report.nodeid.partition("::")[0]] += value

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.keep:
            rows = {name: round(s, 1) for name, s in sorted(self.found.items()) if s >= LEAST}
            KEPT.write_text(json.dumps(rows, indent=0) + "\n")
        elif KEPT.exists():
            for name, now, then in grown(self.found, json.loads(KEPT.read_text())):
                terminalreporter.write_line(
                    f"grown: {name} needs {now:.1f} s of CPU, and needed {then:.1f} s"
                )
