# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words that tests of all rooms share."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import pytest

from securetrain.core.errors import SecureTrainError

E = TypeVar("E", bound=SecureTrainError)


def refused(
    kind: type[E], code: str, call: Callable[..., object], /, *args: Any, **named: Any
) -> E:
    """Call it, which must end with an error of that kind and code; give the error."""
    with pytest.raises(kind) as caught:
        call(*args, **named)
    assert caught.value.code == code, caught.value
    return caught.value


def needs(*lacking: Callable[[], list[str]]) -> pytest.MarkDecorator:
    """Skip a test where something lacks that one of `lacking` lists.

    They are asked when the first such test is about to run, since most of them start programs, and
    collecting tests must not.
    """
    return pytest.mark.needs.with_args(*lacking)


def skip_where_something_lacks(item: pytest.Item) -> None:
    """Do what `needs` promises; `conftest.py` calls it before every test."""
    lacking = [
        one for mark in item.iter_markers("needs") for ask in mark.args for one in _asked(ask)
    ]
    if lacking:
        pytest.skip(f"this needs: {'; '.join(lacking)}")


@cache
def _asked(ask: Callable[[], list[str]]) -> list[str]:
    return ask()
