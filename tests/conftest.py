# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""No test remembers anything on the machine that it runs on, or fails because that one is slow."""

import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.durations import Durations
from tests.environments import OfEnvironment
from tests.flaky import Flaky
from tests.own_place import leave, take_own_place
from tests.vocabulary import skip_where_something_lacks

# MKL's products depend in their last bit on where in memory the numbers are, unless told not to;
# it reads this once, with its first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_PLACE, _PID = take_own_place(), os.getpid()

# The same cases every time, and none that a machine has found before: a red run is a fault of the
# change. `make campaign NAME=properties` draws new ones.
UNHURRIED = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", UNHURRIED, derandomize=True)
settings.register_profile("drawn", UNHURRIED, print_blob=True)
settings.load_profile("same")


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


def pytest_unconfigure() -> None:
    leave(_PLACE, _PID)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_where_something_lacks(item)
    draw_from_the_same_seed()


def draw_from_the_same_seed() -> None:
    """Seed the generators that a test may draw from, whichever tests ran before it."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without a garbage collector: nothing of twelve thousand tests is garbage yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
