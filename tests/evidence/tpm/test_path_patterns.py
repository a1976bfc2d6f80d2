# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Path patterns against Python's own matcher, and every construct that is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import path_patterns, re2_patterns
from securetrain.evidence.tpm.path_patterns import PathPatterns
from tests.tables import each
from tests.vocabulary import refused

SUPPORTED = [
    "/tmp/.*",
    "/tmp(/.*)?",
    "^/var/log/[^/]*\\.log$",
    "/proc/[0-9]+/.*",
    "/a?b+c*",
    "/(usr|opt)/(lib|lib64)/x",
    "(?:/a|/b)?c",
    "^/a|/b$|/c",
    "/[a-c_-]x",
    "/[-a]x",
    "/[\\]-]x",
    "/\\d\\w\\s\\.\\*\\[",
    "/x\\{",
    "/a.c",
    "/(a(b|c)?)?d",
    "/a|",
]
PATHS = [
    *("", "c", "/", "/a", "/b", "/c", "/ac", "/bc", "/abc", "/axc", "/bbcc", "/d", "/ad", "/abd"),
    *("/acd", "/tmp", "/tmp/", "/tmp/x/y", "/tmp-evil", "/x/tmp/", "/var/log/a.log"),
    *("/var/log/b/a.log", "/var/log/alog", "/proc/12/x", "/proc//x", "/usr/lib/x"),
    *("/opt/lib64/x", "/usr/lib64x", "/bx", "/_x", "/-x", "/]x", "/dx", "/1_ .*[", "/x{", "/a\nc"),
]


@each("pattern", *SUPPORTED)
def test_a_pattern_means_what_it_means_to_python(pattern):
    ours = PathPatterns([pattern])
    theirs = re.compile(pattern, re.DOTALL)
    assert [p for p in PATHS if ours.matches(p.encode())] == [
        p for p in PATHS if theirs.fullmatch(p)
    ]


ATOMS = st.sampled_from(["a", "b", "/", ".", "[ab]", "[^a]", "\\."])
QUANTIFIED = st.tuples(ATOMS, st.sampled_from(["", "", "*", "+", "?"])).map("".join)
GROUPS = st.recursive(
    QUANTIFIED,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(st.lists(inner, min_size=1, max_size=3), st.sampled_from(["", "?"])).map(
            lambda pair: f"({'|'.join(pair[0])}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(GROUPS.map(lambda tail: "/a" + tail), st.text(alphabet="ab/.", max_size=8))
def test_random_patterns_mean_what_they_mean_to_python(pattern, path):
    matches = re.compile(pattern, re.DOTALL).fullmatch(path) is not None
    assert PathPatterns([pattern]).matches(path.encode()) is matches


def test_several_patterns_are_alternatives():
    both, paths = PathPatterns(["/a", "/b.*"]), (b"/a", b"/b", b"/bc", b"/ab", b"/c")
    assert [both.matches(path) for path in paths] == [True, True, True, False, False]


def test_without_patterns_nothing_matches():
    assert not PathPatterns([]).matches(b"")
    assert not PathPatterns([]).matches(b"/a")


def test_characters_outside_ascii():
    pattern = PathPatterns(["/caf\u00e9", "/."])
    assert pattern.matches("/caf\u00e9".encode())
    assert pattern.matches(b"/\xff")
    assert not pattern.matches(b"/caf\xc3")


REFUSED = {
    "empty": ("", "1 to 512"),
    "too long": ("/" + "a" * 512, "1 to 512"),
    "everything": (".*", "every path"),
    "every absolute path": ("^/.*$", "every path"),
    "every path with a character": ("/.+", "every path"),
    "one alternative is everything": ("/tmp|.*", "every path"),
    "group not closed": ("/(a", "without its )"),
    "group not opened": ("/a)", "without its ("),
    "a repeated group": ("/(a+)+", "a group"),
    "a starred group": ("/(a|b)*", "a group"),
    "a counted group": ("/(a){3}", "a group"),
    "counted": ("/a{3}", "counted"),
    "lazy": ("/a*?b", "two quantifiers"),
    "possessive": ("/a*+b", "two quantifiers"),
    "look-ahead": ("/(?=a)", "(?"),
    "negative look-ahead": ("/(?!usr).*", "(?"),
    "flags": ("(?i)/a", "(?"),
    "back reference": ("/(a)\\1", "\\1"),
    "word boundary": ("/a\\b", "\\b"),
    "nothing to repeat": ("*a", "not supported here"),
    "a brace": ("/a/}", "not supported here"),
    "$ inside": ("/a$b", "$ stands at the end"),
    "$ in a group": ("/(a$)", "not supported here"),
    "^ inside": ("/a^b", "not supported here"),
    "a trailing backslash": ("/a\\", "ends too early"),
    "class not closed": ("/[ab", "ends too early"),
    "empty class": ("/[]", "empty character class"),
    "a class in a class": ("/[[a]", "character class"),
    "class outside ASCII": ("/[\u00e9]", "character class"),
    "range backwards": ("/[b-a]", "range"),
    "range from a set": ("/[\\d-z]", "range"),
    "range to a set": ("/[!-\\d]", "range"),
    "quantifier outside ASCII": ("/\u00e9*", "outside ASCII"),
    "too many combinations": ("/" + "(a|b)" * 7, "combinations"),
    "nested too deep": ("/" + "(" * 9 + "a" + ")" * 9, "nested"),
}


@pytest.mark.forgery
@pytest.mark.parametrize(("pattern", "what"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_safe_or_not_understood_is_refused(pattern, what, monkeypatch):
    monkeypatch.setattr(re2_patterns, "installed", lambda: False)
    with pytest.raises(AttestationError) as error:
        PathPatterns(["/fine", pattern])
    ours = what in {"1 to 512", "every path"}
    assert error.value.code == ("ST-ATTS-323" if ours else "ST-ATTS-325")
    assert what in error.value.what
    assert error.value.where.startswith("excludes[1]")


def test_the_limits_themselves_are_allowed():
    assert PathPatterns(["/" + "a" * 511]).matches(b"/" + b"a" * 511)
    assert PathPatterns(["/" + "(a|b)" * 6]).matches(b"/ababab")
    assert PathPatterns(["/" + "(" * 8 + "a" + ")" * 8]).matches(b"/a")
    assert PathPatterns(["/x"] * path_patterns.MAX_PATTERNS).matches(b"/x")


@each(
    "patterns, what",
    (["/x"] * 1001, "1001 patterns"),
    (["/" + "a" * 500] * 17, "too large together"),
)
def test_too_many_patterns_and_too_much_together(patterns, what):
    refused(AttestationError, what, PathPatterns, patterns)


def test_a_path_that_makes_matchers_go_back_costs_no_more(monkeypatch):
    """The number of steps is the path's length, whatever the pattern: counted, not timed."""
    pattern = PathPatterns(["/" + ".*a" * 20 + "b"])
    steps = 0
    closure = PathPatterns._closure

    def counting(self, active):
        nonlocal steps
        steps += 1
        return closure(self, active)

    monkeypatch.setattr(PathPatterns, "_closure", counting)
    assert not pattern.matches(b"/" + b"a" * 4000)
    assert steps == 4001
