# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Path patterns that need RE2, and what happens where it is not installed."""

import re

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import re2_patterns
from securetrain.evidence.tpm.path_patterns import PathPatterns
from tests import vocabulary
from tests.tables import each, forgeries

needs_re2 = pytest.mark.skipif(
    not re2_patterns.installed(), reason="NO PATTERN WAS MATCHED BY RE2: pip install '.[patterns]'"
)
BEYOND = [
    "/(a+)+",
    "/(a|b)*c",
    "/a{2,3}",
    "/(ab){2}",
    "/a*?b",
    "(/[^/]+)+\\.pyc",
    "(?i)/CACHE/.*",
    "/a\\b/.*",
    "/run/user/[[:digit:]]+/.*",
]
PATHS = [
    *("", "/", "/a", "/aa", "/aaa", "/aaaa", "/aab", "/ab", "/abab", "/ababab", "/c", "/abc"),
    *("/x/y/z.pyc", "/x/y/z.pyc/w", "/cache/x", "/Cache/x", "/cachet", "/a/x", "/ab/x"),
    *("/run/user/1000/x", "/run/user/root/x", "/tmp/x"),
]


@needs_re2
@each("pattern", *BEYOND)
def test_a_pattern_means_what_it_means_to_python(pattern):
    ours = PathPatterns([pattern, "/tmp/.*"])
    theirs = re.compile(pattern.replace("[[:digit:]]", "[0-9]"), re.DOTALL)
    assert [path for path in PATHS if ours.matches(path.encode())] == [
        path for path in PATHS if theirs.fullmatch(path) or path == "/tmp/x"
    ]


@needs_re2
@pytest.mark.forgery
def test_a_pattern_on_which_matchers_go_back_ends():
    """Python's own matcher does not end here in a lifetime."""
    pattern = PathPatterns(["/(a+)+", "/((a|aa)+)+$"])
    assert not pattern.matches(b"/" + b"a" * 4000 + b"!")
    assert pattern.matches(b"/" + b"a" * 4000)


@needs_re2
@forgeries("pattern", "(.*)*", "/(.|x)*", "(/[^/]*)+", "(?s)/.*", "[^\\n]{0,900}")
def test_a_pattern_for_every_path_is_refused(pattern):
    error = vocabulary.refused(AttestationError, "ST-ATTS-323", PathPatterns, ["/fine", pattern])
    assert "every path" in error.what
    assert error.where.startswith("excludes[1]")


@needs_re2
@forgeries(
    "pattern",
    *("/(?=a)", "/(?!usr).*", "/(a)\\1", "/a*+b", "/(a", "/a)", "/[ab", "/[b-a]", "*a", "/a\\"),
    *("/((a{100}){100}){100}", "/(\u00e9)+"),
)
def test_what_re2_does_not_read_is_refused(pattern):
    vocabulary.refused(AttestationError, "ST-ATTS-323", PathPatterns, ["/fine", pattern])


@needs_re2
def test_any_byte_is_a_byte():
    pattern = PathPatterns(["(/[^/]+)+\\.log", "/(.)+x"])
    assert pattern.matches(b"/\xff\xfe/\n.log")
    assert pattern.matches(b"/\xc3x")
    assert not pattern.matches(b"\xff/a.log/")


@pytest.mark.forgery
@pytest.mark.parametrize("pattern", BEYOND)
def test_without_the_extra_such_a_policy_is_refused(pattern, monkeypatch):
    monkeypatch.setattr(re2_patterns, "installed", lambda: False)
    assert PathPatterns(["/tmp/.*"]).matches(b"/tmp/x")
    error = vocabulary.refused(AttestationError, "ST-ATTS-325", PathPatterns, ["/tmp/.*", pattern])
    assert "[patterns]" in error.fix
    assert error.where.startswith("excludes[1]")
