# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import datetime, timedelta

import pytest

from securetrain.testing.clock import START, SettableClock


def test_stands_still_until_it_is_moved():
    clock = SettableClock()
    assert clock() == clock() == START
    clock.advance(1.5)
    clock.sleep(0.5)
    clock.advance(timedelta(seconds=-1))
    assert clock() == START + timedelta(seconds=1)
    assert clock.seconds() == 1.0
    clock.set(START)
    assert clock() == START


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="timezone"):
        SettableClock().set(datetime(2026, 1, 1))  # noqa: DTZ001 - the point of the test
