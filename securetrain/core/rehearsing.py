# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that is thrown away: nobody has to watch, judge or count them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_REHEARSING: Final = ContextVar("rehearsing", default=False)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Whatever model is wrapped and stepped in here is none that anybody trains."""
    token = _REHEARSING.set(True)
    try:
        yield
    finally:
        _REHEARSING.reset(token)


def is_rehearsal() -> bool:
    """Tell whether this thread is in a `rehearsal`."""
    return _REHEARSING.get()
