# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A plugin: the tests of one framework's environment, and a skip there is no pass.

``@pytest.mark.compat("NAME")`` says in which environment of tests/integrations/environments a test
runs. ``make test-compat`` starts pytest in each of them with ``--environment NAME``.
"""

from collections.abc import Generator

import pytest


class OfEnvironment:
    """Chooses the tests of an environment, and lets none of them skip."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        others = [one for one in items if self.name not in names_of(one)]
        config.hook.pytest_deselected(items=others)
        items[:] = [one for one in items if self.name in names_of(one)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.skipped:
            report.outcome = "failed"
            report.longrepr = f"skipped where it must run: {report.longrepr}"
        return report


def names_of(item: pytest.Item) -> set[str]:
    """The environments that a test runs in."""
    return {str(name) for mark in item.iter_markers("compat") for name in mark.args}
