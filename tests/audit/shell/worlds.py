# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scripts of every construct, run by bash with programs that write down their arguments.

The program ``p`` has a number as its first argument, by which its calls are found again in what
our evaluator says. A script is `closed` where its text decides every word.
"""

import os
import random
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from securetrain.audit.facts import Location
from securetrain.audit.shell.evaluator import evaluate
from securetrain.audit.shell.values import HOLE, Arg, Segment, script_text

NAMES: Final = ("A", "B", "C", "LONG_NAME")
ARRAYS: Final = ("ARGS", "LIST")
PLAIN: Final = ("x", "--flag", "a.b/c", "k=v", "c10d", "-n", "4", "u:1,2", "%s", "a#b", "@", "+")
IN_QUOTES: Final = (*PLAIN, "two words", " lead", "trail ", "", "a;b", "x|y", "(z)", "# no", "&")
STUB: Final = "#!/bin/sh\nprintf '%s\\0' \"$@\" >&9\nprintf '\\001\\0' >&9\n"
AS_FUNCTION: Final = "p() { printf '%s\\0' \"$@\" $'\\001' >&9; }; export -f p"
"""The same without a process."""
RUNNER: Final = """#!/bin/bash
while [ $# -gt 0 ]; do case $1 in -n) shift 2 ;; -*) shift ;; *) break ;; esac; done
exec "$@"
"""
FAR: Final = '#!/bin/bash\nshift\nexec env -i PATH="$PATH" bash -c "$*"\n'


@dataclass(slots=True)
class Writer:
    """Writes one script."""

    rng: random.Random
    closed: bool
    number: int = 0
    names: list[str] = field(default_factory=list)
    """Variables that are set wherever the script goes."""
    arrays: list[str] = field(default_factory=list)
    functions: int = 0
    in_function: bool = False
    in_loop: bool = False

    def script(self) -> str:
        lines = [f"{name}={self.word()}" for name in NAMES[: self.rng.randint(1, 4)]]
        self.names = [line.partition("=")[0] for line in lines]
        for name in ARRAYS:
            lines.append(f"{name}=({' '.join(self.word() for _ in range(self.rng.randint(1, 3)))})")
            self.arrays.append(name)
        lines += [self.statement(2) for _ in range(self.rng.randint(3, 8))]
        return "\n".join(lines) + "\n"

    # --- words -------------------------------------------------------------------------------

    def word(self) -> str:
        return "".join(self.part() for _ in range(self.rng.choice((1, 1, 1, 2, 3))))

    def part(self) -> str:
        pick = self.rng.choice
        makers = [
            lambda: pick(PLAIN),
            lambda: pick(PLAIN),
            lambda: "'" + pick((*IN_QUOTES, "$A", '"', "\\")) + "'",
            lambda: '"' + pick(IN_QUOTES) + self.inner() + pick(IN_QUOTES) + '"',
            lambda: pick(("\\ ", "\\$", "\\;", "\\'", "a\\\nb", "$'t\\tb'", "$'q\\''")),
            self.parameter,
            self.parameter,
        ]
        if not self.closed:
            makers += [
                lambda: pick(("$(echo a b)", "`echo c`", "$((1 + 2))", '"$(echo d)"', "$UNSET")),
                lambda: pick(("${A%x}", "${A/x/y}", "${#A}", "${A^^}", "{a,b}", "~/z", "${!A}")),
            ]
        return str(pick(makers)())

    def inner(self) -> str:
        """Something between double quotes."""
        pick = self.rng.choice
        if not self.closed and self.rng.random() < 0.1:
            return "$(echo 'x y')"
        return pick(("", "\\$A", '\\"', "'", "\\n", self.parameter(quoted=True)))

    def parameter(self, *, quoted: bool = False) -> str:
        pick = self.rng.choice
        if not self.names:
            return "y"
        name = pick(self.names)
        array = pick(self.arrays) if self.arrays else name
        kinds = ["$" + name, f"${{{name}}}", f"${{{name}:-{pick(PLAIN)}}}", f"${{{name}:+z}}"]
        kinds += [f"${{{name}-w}}", f"${{{array}[0]}}", f"${{{array}[*]}}"]
        if not self.closed:
            kinds += [f"${{UNSET:-{pick(PLAIN)}}}", "${UNSET-a b}"]
        if self.in_function:
            kinds += ["$1", "$@", "$2", "${1:-d}"]
        text = pick(kinds)
        return text if quoted else pick((text, f'"{text}"', f'"${{{array}[@]}}"'))

    # --- commands ----------------------------------------------------------------------------

    def call(self) -> str:
        self.number += 1
        return f"p {self.number} " + " ".join(self.word() for _ in range(self.rng.randint(0, 3)))

    def block(self, depth: int) -> str:
        return "\n".join(self.statement(depth - 1) for _ in range(self.rng.randint(1, 2)))

    def condition(self) -> str:
        return self.rng.choice(("true", "false", '[ -n "$A" ]', "[[ $A == x* ]]", "! true"))

    def assignment(self) -> str:
        name = self.rng.choice(self.names)
        signs = ("=", "=", "+=")
        return self.rng.choice(("", "", "export ")) + name + self.rng.choice(signs) + self.word()

    def statement(self, depth: int) -> str:
        simple: list[Callable[[], str]]
        simple = [self.call, self.call, self.call, self.assignment, self.assignment, self.array]
        simple += [self.prefixed, self.wrapped, self.nested, self.here_document]
        if self.in_function:
            simple += [
                lambda: f"local {self.rng.choice(self.names)}={self.word()}",
                lambda: "shift",
            ]
        if self.in_function and self.rng.random() < 0.1:
            return "return 0"
        if self.in_loop and self.rng.random() < 0.1:
            return self.rng.choice(("break", "continue"))
        compound = [self.conditional, self.loop, self.case, self.function, self.grouped]
        if depth:
            simple += [partial(one, depth) for one in compound]
        return self.rng.choice(simple)()

    def array(self) -> str:
        name = self.rng.choice(self.arrays)
        words = "\n  ".join(self.word() for _ in range(self.rng.randint(1, 3)))
        return f"{name}{self.rng.choice(('=', '+='))}({words}) # {name}"

    def prefixed(self) -> str:
        return f"A={self.word()} {self.call()}"

    def wrapped(self) -> str:
        before = ("env Z=1", "timeout 9", "nohup", "nice -n 1", "srun -n 2", "srun", "command")
        return f"{self.rng.choice(before)} {self.call()}"

    def nested(self) -> str:
        self.number += 1
        name = self.rng.choice(self.names)
        return self.rng.choice(
            (
                f"export {name}; bash -c 'p {self.number} ${name} \"$1\"' _ {self.word()}",
                f"bash -c \"p {self.number} '$NONE{self.number}' k\"",
                f"eval p {self.number} '${name}'",
                f"eval 'p {self.number} \"${name}\"; E{self.number}=1'",
                f"ssh host p {self.number} x",
                f"CMD='p {self.number} a b'; $CMD c",
                f"CMD=(p {self.number} 'a b'); \"${{CMD[@]}}\" c",
                f"srun bash -c 'srun p {self.number} q'",
            )
        )

    def here_document(self) -> str:
        self.number += 1
        name = self.rng.choice(self.names)
        return self.rng.choice(
            (
                f"export {name}\nbash <<'EOF'\np {self.number} \"${name}\"\nEOF",
                f"bash <<-E\n\tp {self.number} x\n\tE",
                f"read -r -d '' TEXT <<'EOF'\na b\nc\nEOF\np {self.number} \"$TEXT\" $TEXT",
                f'TEXT=$(cat <<EOF\n--k ${name}\nEOF\n)\np {self.number} "$TEXT"',
                f"cat >/dev/null <<X\n$(p {self.number} s)\nX",
            )
        )

    def conditional(self, depth: int) -> str:
        shapes = (
            f"if {self.condition()}; then\n{self.block(depth)}\nfi",
            f"if {self.condition()}; then\n{self.block(depth)}\nelse {self.call()}; fi",
            f"if {self.condition()}\nthen {self.call()}\n{self.otherwise(depth)}\nfi",
            f"{self.condition()} && {self.assignment()}",
            f"{self.condition()} || {self.call()}",
        )
        return self.rng.choice(shapes)

    def otherwise(self, depth: int) -> str:
        first, second = self.block(depth), self.block(depth)
        return f"elif {self.condition()}; then\n{first}\nelse\n{second}"

    def loop(self, depth: int) -> str:
        before, self.in_loop = self.in_loop, True
        body = self.block(depth)
        self.in_loop = before
        self.number += 1
        i = f"i{self.number}"  # a loop around it has another one
        words = " ".join(self.word() for _ in range(self.rng.randint(1, 3)))
        shapes = (
            f"for V in {words}; do\n{self.call()} $V\n{body}\ndone",
            f"while false; do {self.call()}; done",
            f"for (({i} = 0; {i} < 2; {i}++)); do {body}\ndone; {self.call()}",
        )
        return self.rng.choice(shapes)

    def case(self, depth: int) -> str:
        first, second = self.call(), self.block(depth)
        return f"case $A in\n  x|--*) {first} ;;\n  (c10d) {second}\n ;;\n  *) {self.call()}\nesac"

    def function(self, depth: int) -> str:
        before = self.in_function, self.in_loop
        self.in_function, self.in_loop = True, False
        self.functions += 1
        name = f"f{self.functions}"
        body = self.block(depth)
        self.in_function, self.in_loop = before
        head = self.rng.choice((f"{name}()", f"function {name}", f"function {name} ()"))
        arguments = " ".join(self.word() for _ in range(self.rng.randint(0, 3)))
        return f"{head} {{\n{body}\n}}\n{name} {arguments}"

    def grouped(self, depth: int) -> str:
        shapes = (
            f"( {self.block(depth)}\n)",
            f"{{ {self.block(depth)}\n}}",
            f"{self.call()} | cat",
            f"true | {{ {self.block(depth)}\n}}",
            f"{self.call()} > /dev/null 2>&1 &\nwait",
        )
        return self.rng.choice(shapes)


def generated(rng: random.Random) -> tuple[str, bool]:
    """A script, and whether its text decides every word."""
    closed = rng.random() < 0.6
    return Writer(rng, closed).script(), closed


def run_by_bash(scripts: Sequence[str], folder: Path) -> list[list[tuple[str, ...]]]:
    """The calls of ``p`` that bash makes of each script, with nothing in its environment."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("p", STUB), ("srun", RUNNER), ("ssh", FAR)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    empty = folder / "empty"
    empty.mkdir()
    lines = [
        "ulimit -v 500000",
        "unset OLDPWD SHLVL _ PWD",
        f"cd {empty}",
        "export PATH",
        AS_FUNCTION,
    ]
    for number, script in enumerate(scripts):
        (folder / f"{number}.sh").write_text(script)
        lines.append(
            f"( ulimit -t 5; set --; . {folder}/{number}.sh ) 9>{folder}/{number}.out </dev/null"
        )
    subprocess.run(
        ["/bin/bash", "-c", "\n".join(lines)],
        env={"PATH": f"{programs}:{os.defpath}"},
        check=False,
        capture_output=True,
        timeout=120,
    )
    found = []
    for number in range(len(scripts)):
        said = (folder / f"{number}.out").read_text().split("\0\1\0")
        found.append([tuple(one.split("\0")) for one in said if one])
    return found


@dataclass(slots=True)
class Compared:
    """What bash does beside what we say."""

    words: int = 0
    holes: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(script: str, calls: Sequence[tuple[str, ...]]) -> Compared:
    """Each call of bash against ours of the same number: equal words, or holes."""
    result = Compared()
    ours: dict[str, list[tuple[Arg, ...]]] = defaultdict(list)
    found = evaluate(script_text(script, lambda i: Location(path="s", column=i + 1)))
    for call in found.calls:
        if call.program == "p" and call.args:
            ours[call.args[0].text].append(call.args)
    for said_by_bash in calls:
        fits = [args for args in ours[said_by_bash[0]] if _matches(args, said_by_bash)]
        result.words += len(said_by_bash)
        if fits:
            result.holes += min(sum(HOLE in arg.text for arg in args) for args in fits)
        else:
            said = [[arg.text for arg in args] for args in ours[said_by_bash[0]]]
            result.wrong.append(f"bash {list(said_by_bash)}, we {said[:4]}")
    return result


def _matches(args: Sequence[Arg], call: tuple[str, ...]) -> bool:
    """A hole that splits may be no word at all: what stands on both sides then comes together."""
    pattern = ""
    for arg, following in zip(args, [*args[1:], None], strict=True):
        if arg.rest:
            pattern += ".*" if len(arg.segments) > 1 else r"(?:[^\x00]*\x00)*"
            continue
        pattern += "".join(_of_segments(arg)) + r"\x00"
        joins = following is not None and not following.rest and _splits(following.segments[:1])
        if _splits(arg.segments[-1:]) or joins:
            pattern += "?"
    return bool(re.fullmatch(pattern, "".join(f"{word}\0" for word in call), re.DOTALL))


def _splits(segments: Sequence[Segment]) -> bool:
    return any(one.splits for one in segments)


def _of_segments(arg: Arg) -> Iterator[str]:
    for one in arg.segments:
        if one.name:
            yield ".*" if one.splits else r"[^\x00]*"
        else:
            yield re.escape(one.text)
