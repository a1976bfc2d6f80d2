# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""No test remembers anything on the machine that it runs on, or fails because that one is slow."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from securetrain.core.nodestate import STATE_VARIABLE
from tests.durations import Durations
from tests.environments import OfEnvironment
from tests.flaky import Flaky
from tests.vocabulary import skip_where_something_lacks

# MKL's products depend in their last bit on where in memory the numbers are, unless told not to;
# it reads this once, with its first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-durations", action="store_true", help="keep what the files and tests of it need"
    )
    parser.addoption(
        "--fast",
        action="store_true",
        help="leave out what was measured to be slow, or is marked so",
    )
    parser.addoption(
        "--keep-compatibility",
        action="store_true",
        help="keep what passed with other frameworks",
    )
    parser.addoption(
        "--flaky",
        type=Path,
        metavar="FILE",
        help="run what failed once more, alone, and keep what passes there in FILE",
    )
    parser.addoption(
        "--environment", help="run the tests marked compat with this name, of which none may skip"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(config))
    if (history := config.getoption("--flaky")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Flaky(history))
    if name := config.getoption("--environment"):
        config.pluginmanager.register(OfEnvironment(name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_where_something_lacks(item)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without a garbage collector: nothing of twelve thousand tests is garbage yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _state_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs keep on their machine goes into a folder of this session of tests."""
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ[STATE_VARIABLE]
    else:
        os.environ[STATE_VARIABLE] = before
