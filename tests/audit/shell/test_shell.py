# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words of shell scripts, beside what bash makes of them: equal, or holes, and never others."""

import random
from bisect import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.audit.facts import Location
from securetrain.audit.shell import syntax
from securetrain.audit.shell.evaluator import evaluate
from securetrain.audit.shell.values import HOLE, Arg, Text, container_word, script_text
from tests.audit.shell.worlds import Compared, compare, generated, run_by_bash
from tests.tables import each

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


EXACT = r"""
set -- a "b c"; p 1 "$*"; p 2 "$@"; p 3 x"$@"y; A="$@"; p 4 "$A"; p 5 $*

set -- '' a; p 1 "$@"; set b c; p 2 $1; set -e; p 3 "$@"; set; set -; p 4 "$@"

set --; p 1 "$@"; p 2 a"$@" "$@" ''; p 3 "$1"; p 4 ''$1; p 5 "$@"
A=$(cat <<<"$@"); p 6 "$A"; p 7 "$@$A"

set --; A=; L=(); p 1 "$@"''; p 2 ''"$@"; p 3 "$@""$A" "$@"$A; p 4 $A"$@" "${A}$@"; p 5 "${L[@]}"''
p 6 $@'' $*"" "$*"; p 7 "$@""$@" "${L[@]}"; unset U; p 8 "$U" "$@$U" "${L[@]:-}"; p 9 $''"$@"
set -- '' a; A=' y'; p 10 "$@"'' ''$A; p 11 "$@$A" ${A:+''} ${A:+"$@"}

set -e -o pipefail x y; p 1 "$@"; set - z; p 2 "$@"; set -- -a; B=1; bash -c 'p 3 "${B-w}"'

set -- a b c; shift; p 1 "$@"; shift 3; p 2 "$@"; shift 2; p 3 "$@"

B='a b'; A=$B; p 1 "$A" $A; L=(a 'b c' d); p 2 ${L[1]} "${L[2]}" "${L[*]}" "${L[@]}" $L

A=; p 1 ${A:-b} "${A-b}" "${A+c}"; unset A; p 2 ${A-w x} "${A+z}" "${A:-"a b"}"

A=x; p 1 ${A:-"a b"} ${A:+"a b"} ${A:+c d} "${A:+${A:-b}}" i${A:+"j k" l}m
B=; p 2 ${B:=y z} "$B"

A=a; A+=b; L=(a); L+=(b c); L+=d; p 1 $A "${L[@]}"
L=(e); p 2 "${L[@]}"; unset A; A+=x; p 3 $A

set --; A=x; p 1 ''${A:+} ${A:+} "${A:+}"
B=${A:+"a b"  c}; p 2 "$B" ${A:+"$B" $B}; p 3 ${A:+"$@"}

A=1; bash -c 'p 1 "${A-w}"'; set -a; A=x; bash -c 'p 2 "$A"'; set +a; B=y; bash -c 'p 3 "${B-w}"'

set -o allexport; A=x; bash -c 'p 1 "$A"'
set +o allexport; set -o; B=y; bash -c 'p 2 "${B-w}"'

declare -x A=1; declare B=2; C=3; declare -x C; bash -c 'p 1 "$A" "${B-w}" "$C"'

A=1 bash -c 'p 1 "$A"'; p 2 "${A-w}"; export A=2; bash -c 'p 3 "$A"'

bash -e -c 'p 1 "$@"' _ a 'b c'; bash -c; bash -x -o pipefail -c 'p 2'

. ./none; read -r -d '' A <<E
x
E
p 1 "$A"; read -d '' <<<x; read -d '' B

env; p 1; A=b && B=c; p 2 $A$B; while false; do A=c; done; for i in; do p 3; done
""".strip().split("\n\n")
"""What no text decides is ``w`` to bash, and a hole to us."""


def calls_of(script):
    calls = evaluate(script_text(script, lambda _: Location(path="x"))).calls
    return [call for call in calls if call.program == "p"]


def test_each_word_is_the_one_of_bash(tmp_path, subtests):
    for script, found in zip(EXACT, run_by_bash(EXACT, tmp_path), strict=True):
        with subtests.test(script):
            words = [[arg.text.replace(HOLE, "w") for arg in one.args] for one in calls_of(script)]
            assert [list(one) for one in found] == words


LONG = "A=" + "a" * (33 << 10) + "; p 1 $A; L=(" + "a " * 1001 + ")\np 2 ${L[@]}"
TURNS = f"for x in {'a ' * 33}; do p $x; done; for x in a $X; do p $x; done"
PASTE = "A=$(cat <<E\nx\nE\nb); p $A; A=$(tr <<E\nx\nE\n); p $A; A=$(cat x <<E\nx\nE\n); p $A\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('set -- a $X b; p "$*"; shift; p $1', ["a?b", "?"]),
        ("shift; p $1; set -- a b; shift $N; p $1", ["?", "?"]),
        ("set -- a b; shift \u00b2; p $1; p ${L[\u00b2]}", ["?", "?"]),
        ("L=(a$X b); p $L; p ${L[1]}; L=(a b); p ${L[i]}; L[1]=z; p ${L[1]}", ["a?", *"???"]),
        ("A=a$X; p ${A:-b}; A=$X; p ${A:-b}; p ${U:-b}", ["a?", "?", "?"]),
        ("A=a; if t; then A=b; fi; A+=c; p $A", ["?"]),
        ("L=(a); if t; then L=(b); fi; L+=(c); p ${L[@]}", ["?"]),
        ("A=a; true || A=b; p $A", ["b", "a"]),
        ("A=a; [ x ] && A=b; p $A", ["b", "a"]),
        ("A=a; $X && A=b; p $A", ["b", "a"]),
        ("A=a; (x) && A=b; p $A", ["b", "a"]),
        ("A=a; cd x && A=b; p $A; A=c && A=d; p $A", ["b", "d"]),
        ('read A <<E\nx\ny\nE\np "$A"', ["?"]),
        (PASTE + "p <(cat <<E\nx\nE\n)", ["?"] * 4),
        ("A=x; set -- ${A:+$B} b; p $2", ["?"]),
        (TURNS, ["?", "?"]),
        (LONG, ["1?", "2?"]),
    ],
)
def test_what_the_text_does_not_decide_is_a_hole(script, words):
    found = ["".join(arg.text for arg in call.args) for call in calls_of(script)]
    assert [one.replace(HOLE, "?") for one in found] == words


@pytest.mark.parametrize(
    ("script", "opened"),
    [
        ("bash x; bash - x; bash -- x; sh -x x", ["x is not there"] * 4),
        ("./x.sh; . ./x", ["./x.sh is not there", "./x is not there"]),
        ("bash; env; ssh host; script a b c; ./x; x.sh; bash -c; su - user p", []),
        ("a | bash; a | bash <<<b", ["bash runs what it reads from a pipe"]),
        ("a | bash -; a | bash -s", ["bash runs what it reads from a pipe"] * 2),
        ("source $F; bash $F", ["$F decides which file is run"] * 2),
        ('set -- "$(pick)"; bash "$1"', ["$(pick) decides which file is run"]),
        (") a", ["')' closes nothing"]),
    ],
)
def test_a_file_that_is_not_there_and_a_pipe_are_open(script, opened):
    text = script_text(script, lambda _: Location(path="x"))
    said = evaluate(text, lambda _: "is not there").open
    assert [one.why.replace(": ", " ") for one in said] == opened
    alone = evaluate(text).open
    assert [one.why.replace("read", "there") for one in alone if "pipe" not in one.why] == [
        one for one in opened if "pipe" not in one
    ]


@pytest.mark.parametrize(
    ("script", "programs"),
    [
        ("time a; ! b; !c; / d; srun; a <%= x %>", ["a", "b", "!c", "/", "srun", "a"]),
        ("timeout '' a; timeout \"$T\" b; timeout - c; timeout $T d e", [*"abce"]),
        ("docker -- run i a; ssh host b torchrun; srun c --with python x", [*"abc"]),
        ("srun --new x torchrun", ["torchrun"]),
        ("if a; then time b; fi; for x in; do c; done; [[ $(d) ]] && e", [*"abde"]),
    ],
)
def test_the_programs_that_run(script, programs):
    calls = evaluate(script_text(script, lambda _: Location(path="x"))).calls
    wrappers = {"timeout", "docker", "ssh"} | ({"srun"} if "srun;" not in script else set())
    assert [one.program for one in calls if one.program not in wrappers] == programs


def test_a_word_of_a_container_names_variables_of_its_own():
    known = container_word(text_at("a $(B) $C", 2), {"B": text_at("x", 1)})
    assert (known.text, known.opens) == ("a x $C", ())
    assert [getattr(known.place(i).written, "line", 0) for i in (0, 2, 3)] == [0, 1, 0]
    assert container_word(text_at("$C", 2), {"C": text_at("x", 1)}).opens == ("C",)


def text_at(text: str, line: int) -> Text:
    return Text(text, lambda _: Location(path="x", line=line))


@each(
    "id, script, place",
    ("where it is used", "p c10d", (1, 0)),
    ("an assignment", "A=x\nB=c10d\np $B", (3, 2)),
    ("one inside of another", 'A=c10d\nB="x $A y"\np $B', (3, 1)),
    ("an array", "A=(\nx\nc10d)\np ${A[@]}", (4, 3)),
    ("a shell's argument", "A=c10d\nset -- x $A\np $2", (3, 1)),
    ("a function's argument", "f() { p $1; }\nf c10d", (1, 2)),
    ("a text that a shell reads", "A='p c10d'\nbash -c \"$A\"", (2, 1)),
    ("a script in a variable", "A='\np c10d'\nbash -c \"$A\"", (2, 0)),
    ("a here-document", "A=$(cat <<E\nx\nc10d\nE\n)\np $A", (6, 3)),
    ("a default", "A=\np ${A:-c10d}", (2, 0)),
    ("a file", "source v\np $V", (2, 7)),
    ("a hole of a text", "A='B=$(x)'\neval \"$A\"\np $B", (3, 1)),
)
def test_a_word_says_where_it_is_used_and_where_it_is_written(script, place):
    def in_file(name: str) -> Arg:
        return script_text("V=c10d", lambda _: Location(path=name, line=7))

    lines = [0, *(at + 1 for at, one in enumerate(script) if one == "\n")]
    text = script_text(script, lambda i: Location(path="x", line=bisect(lines, i)))
    call = next(one for one in evaluate(text, in_file).calls if one.program == "p")
    word = next(one for one in call.args if one.text in {"c10d", HOLE})
    assert (word.at.line, getattr(word.at.written, "line", 0)) == place


def test_what_nobody_writes_has_no_place_of_its_own():
    (call,) = calls_of("p $X")
    assert not call.args[0].at.written
    assert [one.shown for one in call.args[0].segments] == ["$X"]
    (call,) = calls_of('A=$(pick); p "a$A$(b)"')
    assert [one.shown for one in call.args[0].segments] == ["a", "$A", "$(b)"]


def test_too_many_commands_are_one_problem(monkeypatch):
    monkeypatch.setattr(syntax, "MAX_COMMANDS", 3)
    assert [one.why for one in syntax.parse("a; b\nc\n").problems] == []
    assert [one.why for one in syntax.parse("a; b\nc\nd\ne\n").problems] == ["more than 3 commands"]


def test_the_files_and_pipes_of_a_call():
    text = "a | { b $(g); h; }; c > out 2>&1 < in >> b; d <(e) $(f)"
    calls = evaluate(script_text(text, lambda _: Location(path="x"))).calls
    by_name = {one.program: one for one in calls}
    assert by_name["c"].targets == ("out", "b")
    assert by_name["a"].pipeline == by_name["h"].pipeline != by_name["c"].pipeline != 0
    assert by_name["d"].fed_by == by_name["e"].pipeline


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
