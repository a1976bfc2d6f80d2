# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words of shell scripts, beside what bash makes of them: equal, or holes, and never others."""

import random

from hypothesis import given
from hypothesis import strategies as st

from securetrain.audit.facts import Location
from securetrain.audit.shell.evaluator import evaluate
from securetrain.audit.shell.values import script_text
from tests.audit.shell.worlds import Compared, compare, generated, run_by_bash

SCRIPTS = 150


def test_no_word_differs_from_the_one_of_bash(tmp_path):
    made = [generated(random.Random(f"0:{number}")) for number in range(SCRIPTS)]
    calls = run_by_bash([script for script, _ in made], tmp_path)
    closed = Compared()
    for (script, is_closed), found in zip(made, calls, strict=True):
        one = compare(script, found)
        assert one.wrong == [], script
        if is_closed:
            closed.words += one.words
            closed.holes += one.holes
    assert closed.words > 5 * SCRIPTS
    assert closed.holes <= 0.05 * closed.words


def test_a_wrong_word_is_seen():
    script = "A=x\np 1 $A\np 2"
    assert compare(script, [("1", "x"), ("2",)]).wrong == []
    assert len(compare(script, [("1", "y"), ("2", ""), ("3",)]).wrong) == 3


TOKENS = (
    *"ab $\n;&|<>(){}[]'\"\\`#=!-@*~",
    *("$(", "${", "((", "<<E\n", "E\n", "if ", "then ", "fi\n", "for a in ", "do ", "done\n"),
    *("case a in ", "esac\n", "f() {", "eval ", "bash -c ", "{{ x }}"),
)


@given(st.lists(st.sampled_from(TOKENS), max_size=60))
def test_any_text_ends(tokens):
    evaluate(script_text("".join(tokens), lambda i: Location(path="x", column=i + 1)))
