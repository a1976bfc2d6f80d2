# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What makes a library impure is seen, and what does not is left alone."""

import ast

import pytest

from tests.tables import items
from tools.gates.rules.purity import IMPURE_MODULES, impurities

PURE = '''\
"""A pure module."""
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Final
import hashlib, struct
from house.core import canonical
__all__ = ["verify"]
LIMIT = 5
NAMES: Final = {"a": 1}
BOTH: Final[Mapping[str, int]] = {name: n for name, n in NAMES.items()}
SOME: Final = frozenset({1, 2})
class Reader:
    lock = Lock()
    @cached_property
    def parsed(self) -> object: ...
    def open(self) -> None: ...
def verify(data: bytes, now: datetime, reader: Reader) -> dict[str, int]:
    found: dict[str, int] = {}
    kept = []
    kept.append(NAMES["a"])
    found["a"] = now.timestamp() > 1
    reader.open()
    return found
'''


def looked_at(text):
    return [f"{line}: {what}" for line, what in impurities(ast.parse(text))]


def test_a_pure_module():
    assert looked_at(PURE) == []


@pytest.mark.parametrize("module", sorted(IMPURE_MODULES))
def test_every_module_that_reaches_outside(module):
    found = [f"1: imports {module}"]
    assert looked_at(f"import {module}\n") == found
    assert looked_at(f"import {module} as harmless\n") == found
    assert looked_at(f"from {module} import x\n") == found
    assert looked_at(f"import {module}.part\n") == [f"{found[0]}.part"]


@items(
    "text, what",
    ("def f():\n    import os", "imports os"),
    ("if True:\n    from os.path import join", "imports os.path"),
    ("def f(p):\n    return open(p)", "calls open()"),
    ("def f():\n    return __import__('os')", "calls __import__()"),
    ("def f():\n    return datetime.now(UTC)", "asks the clock: datetime.now(UTC)"),
    ("def f():\n    return date.today()", "asks the clock: date.today()"),
    ("seen = 0\ndef f():\n    global seen\n    seen += 1", "global seen"),
    ("CACHE = {'a': 1}", "a container that is not Final: CACHE = {'a': 1}"),
    ("SEEN = [1]", "a container that is not Final: SEEN = [1]"),
    ("SEEN = {1}", "a container that is not Final: SEEN = {1}"),
    ("SEEN: list[int] = [n for n in (1, 2)]", "a container that is not Final"),
    ("SEEN = collections.defaultdict(list)", "a container that is not Final"),
    ("if True:\n    SEEN = {1}", "a container that is not Final"),
    ("try:\n    import x\nexcept ImportError:\n    pass\nelse:\n    SEEN = {1}", "not Final"),
    ("CACHE: Final = {}", "a container to be filled"),
    ("CACHE: Final = dict()", "a container to be filled"),
    ("CACHE: Final = defaultdict(list)", "a container to be filled"),
    ("CACHE: Final = {'a': 1}\ndef f():\n    CACHE['b'] = 2", "changes CACHE"),
    ("CACHE: Final = {'a': 1}\ndef f():\n    del CACHE['a']", "changes CACHE"),
    ("SEEN: Final = [1]\ndef f():\n    SEEN.append(2)", "changes SEEN"),
    ("from threading import Thread, Lock", "imports threading"),
    ("@lru_cache(maxsize=4)\ndef f(x): ...", "a cached function"),
    ("@cache\ndef f(x): ...", "a cached function"),
    ("@functools.cache\ndef f(x): ...", "a cached function"),
    ("@lru_cache(maxsize=None)\ndef f(x): ...", "a cached function"),
    ("@lru_cache(None)\ndef f(x): ...", "a cached function"),
    ("class A:\n    @functools.cache\n    def f(self): ...", "a cached function"),
)
def test_what_is_not_pure(text, what):
    (fault,) = looked_at(f"{text}\n")
    assert what in fault
