# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Path patterns in RE2's syntax, where `path_patterns` has not enough: ``(/[^/]+)+``, ``x{3}``.

RE2 (the extra ``patterns``) matches in linear time and in bounded memory, and has no look-around
and no back references. Rules:

1. all patterns are one set, matched as bytes and whole; ``.`` is any byte;
2. a set that runs out of its memory while it matches has not matched: the path is not excluded;
3. a pattern that matches every one of some paths that nobody has is refused: it would switch the
   policy off. Unlike in `path_patterns` this is a trial, not a proof.

Source: R. Cox, "Regular Expression Matching in the Wild", 2010.
"""

import hashlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from securetrain.core.errors import AttestationError

MEMORY: Final = 8 << 20
"""Bytes that RE2 may use for a policy's patterns."""
_TRIALS: Final = 4


class Re2Patterns:
    """Patterns of one policy that need RE2."""

    def __init__(self, patterns: Sequence[tuple[str, str]]) -> None:
        """Compile them.

        Args:
            patterns: each behind its place, for errors.

        Raises:
            AttestationError: ST-ATTS-323 when RE2 does not read one, or it matches everything.
        """
        import re2  # noqa: PLC0415 - most policies need none of it

        for where, pattern in patterns:
            if not pattern.isascii():
                raise _bad("beyond ASCII only the simple syntax is matched", where)
            single = _compiled(re2, [pattern], where)
            if all(single.Match(path) for path in _odd_paths(pattern)):
                raise _bad("this would exclude every path", where)
        self._set = _compiled(re2, [pattern for _, pattern in patterns], patterns[0][0])

    def matches(self, path: bytes) -> bool:
        """Tell whether any pattern matches the whole path."""
        return bool(self._set.Match(path))


def installed() -> bool:
    """Tell whether the extra is there."""
    try:
        import re2  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def _compiled(re2: ModuleType, patterns: Sequence[str], where: str) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.dot_nl = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MEMORY
    made = re2.Set.FullMatchSet(options)
    try:
        for pattern in patterns:
            made.Add(pattern.encode("ascii"))
        made.Compile()
    except re2.error as error:
        raise _bad("RE2 does not read it either", where) from error
    return made


def _odd_paths(pattern: str) -> list[bytes]:
    """Paths of several depths that no machine has, and that the pattern does not name."""
    names = [
        hashlib.sha256(f"{number} {pattern}".encode()).hexdigest()[:16].encode()
        for number in range(_TRIALS)
    ]
    return [b"/" + b"/".join(names[: depth + 1]) for depth in range(_TRIALS)]


def _bad(what: str, where: str) -> AttestationError:
    return AttestationError(
        "ST-ATTS-323", f"not a path pattern that is safe to match: {what}", where
    )
