# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Remove security checks one at a time; a removal that no test notices is a defect.

``python tools/mutate.py [MODULE ...] [--seconds N] [--jobs N] [--seed N] [--each N]
[--tests FILE ...] [--again FILE] [--keep FILE]``

The mutants of a module, one change each:

* a ``raise`` becomes ``pass``;
* a bare call of something named check, verify, validate, require, refuse or spend becomes ``pass``;
* one operand of an ``and``/``or`` is dropped, or one link of a chained comparison;
* a ``return`` of a verdict called broken, missing or contradicts becomes ``pass``;
* one line is dropped of a table that a ``for`` goes through, or one ``yield`` of what such a loop
  compares (a name, and two values).

Left alone: texts of messages, ``x or <constant>`` (a default, not a check), and the raising default
of a ``match`` over a closed set, which is unreachable by design.

Each is run in a temporary copy of the repository against the module's own fast tests (in its room,
or in the nearest one above), then, when it survives those, against the files of its room that
import it, then against all fast tests of the room. The tree that others work in is never touched. A
test run may take several times as long as with the original, so that a busy machine kills nothing.
A time-bounded run takes the mutants in a random order and says how many it did not reach, and
``--each`` draws that many of each module. ``--tests`` names the files that judge in place of those
steps, those with swtpm too, where a whole room takes too long: what survives them may still be
killed by others. ``--again`` judges the survivors of a kept file alone. The exit
code is 1 when any survived that is not listed in ``EQUIVALENT`` with a reason. ``--keep`` writes
the counts and every survivor to a file, with the commit and the seed, so that a score which
somebody quotes can be looked up.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from securetrain.core.files import write_atomic
from tools.campaign import commit
from tools.mutants import EQUIVALENT, MODULES

ROOT: Final = Path(__file__).resolve().parent.parent
NEAR: Final = "not dist and not slow and not many and not netns and not gpu"
FAST: Final = f"{NEAR} and not tpm"
_NO_TESTS: Final = 5
"""Pytest's exit code when there is nothing to run."""
_UNCHANGED_TIMEOUT: Final = 600.0
_LEAST_TIMEOUT: Final = 120.0
_SLOWER: Final = 5.0
"""So many times the original's seconds make a time-out."""
CHECK_NAMES: Final = ("check", "verify", "validate", "require", "refuse", "spend")
VERDICTS: Final = ("broken", "missing", "contradicts")


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the source between two offsets is replaced."""

    module: str
    line: int
    start: int
    end: int
    replacement: str
    before: str
    """First line of what was replaced, for people."""

    def apply(self, source: bytes) -> bytes:
        """The mutated source."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"securetrain/{self.module}:{self.line}: {self.before}  ->  {self.replacement}"


def mutants(module: str, source: bytes) -> list[Mutant]:
    """Every mutant of a module's source that still compiles."""
    offsets = [0]
    for text in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))
    found = []
    for node, replacement in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode().splitlines()[0]
        mutant = Mutant(module, node.lineno, start, end, replacement, before)
        compile(mutant.apply(source), module, "exec")
        found.append(mutant)
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    for node in _walk(tree):
        match node:
            case ast.BoolOp(op=ast.Or(), values=[*_, ast.Constant() | ast.Lambda() | ast.List()]):
                pass
            case ast.Raise(exc=ast.expr()):
                yield node, "pass"
            case ast.Expr(value=ast.Call(func=function)) if _is_named(function, CHECK_NAMES):
                yield node, "pass"
            case ast.BoolOp(op=operator, values=values):
                word = " and " if isinstance(operator, ast.And) else " or "
                for dropped in range(len(values)):
                    kept = [v for index, v in enumerate(values) if index != dropped]
                    yield node, "(" + word.join(f"({ast.unparse(v)})" for v in kept) + ")"
            case ast.Compare(left=left, ops=[_, _, *_] as operators, comparators=comparators):
                terms = [left, *comparators]
                for dropped in range(len(operators)):
                    links = [
                        ast.unparse(ast.Compare(terms[i], [operators[i]], [terms[i + 1]]))
                        for i in range(len(operators))
                        if i != dropped
                    ]
                    yield node, "(" + " and ".join(links) + ")"
            case _:
                yield from _verdicts(node)


def _verdicts(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """What is dropped where checks are answers, and not refusals that are raised."""
    match node:
        case ast.Return(value=ast.Call(func=function)) if _is_named(function, VERDICTS):
            yield node, "pass"
        case ast.For(iter=ast.Tuple(elts=[ast.Tuple(), _, *_] as lines) as table):
            for dropped in range(len(lines)):
                kept = [ast.unparse(v) for n, v in enumerate(lines) if n != dropped]
                yield table, "(" + ", ".join(kept) + ",)"
        case ast.Expr(value=ast.Yield(value=ast.Tuple(elts=[ast.Constant(value=str()), _, _]))):
            yield node, "pass"
        case _:
            pass


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is below it, without message texts and unreachable defaults."""
    yield node
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.match_case(
                pattern=ast.MatchAs(pattern=None), guard=None, body=[ast.Raise(), *_]
            ):
                pass
            case _:
                yield from _walk(child)


def _is_named(function: ast.expr, words: Sequence[str]) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return any(word in name.lstrip("_").split("_") for word in words)


def tests_of(module: str, root: Path) -> list[tuple[Path, ...]]:
    """The module's own tests; those of its room that import it; its room: what of it exists.

    Paths are relative to `root`.
    """
    path = Path(module)
    own = _own_tests(path, root)
    rooms = [Path("tests") / room for room in path.parents if room.name]
    room = next((one for one in rooms if (root / one).is_dir()), Path(f"tests/test_{path.stem}.py"))
    # A module at the top of the package has one test file and no room.
    users = [
        file.relative_to(root)
        for file in sorted((root / room).rglob("test_*.py"))
        if file.relative_to(root) != own and _imports(file, path)
    ]
    steps = ((own,), tuple(users), (room,))
    return [s for s in dict.fromkeys(steps) if s and all((root / p).exists() for p in s)]


def _steps(module: str, root: Path, near: Sequence[Path]) -> list[tuple[Path, ...]]:
    return [tuple(near)] if near else tests_of(module, root)


def _own_tests(module: Path, root: Path) -> Path:
    """The module's own test file: in its room, or in the nearest one above that has it."""
    near = [Path("tests") / room / f"test_{module.stem}.py" for room in module.parents]
    return next((file for file in near if (root / file).exists()), near[0])


def _imports(file: Path, module: Path) -> bool:
    package = ".".join(["securetrain", *module.parent.parts])
    stem = module.stem
    line = re.compile(
        rf"^from ({package}\.{stem} import|{package} import .*\b{stem}\b)", re.MULTILINE
    )
    return line.search(file.read_text()) is not None


def run_tests(copy: Path, tests: Sequence[Path], timeout: float, which: str = FAST) -> bool:
    """Whether the tests pass in a copy; running out of time is not passing."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant has its original's time and size
        "PYTHONPATH": str(copy),
    }
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"),
        *("-m", which, *map(str, tests)),
    ]
    try:
        result = subprocess.run(
            command, cwd=copy, env=environment, timeout=timeout, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    # A file whose tests are all marked selects nothing.
    return result.returncode in {0, _NO_TESTS}


def make_copy(into: Path) -> Path:
    """A copy of all that git knows of, and of what was built in it: a test may ask for any file."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z"]
    into.mkdir(exist_ok=True)
    listed = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    for name in {path.partition("/")[0] for path in listed.split("\0")} - {""}:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, into / name)
    return into


def judge(
    mutant: Mutant, source: bytes, copy: Path, timeout: float, near: Sequence[Path] = ()
) -> Fate:
    """Run the tests against one mutant, and put the original back; `near` are all, if given."""
    target = copy / "securetrain" / mutant.module
    target.write_bytes(mutant.apply(source))
    try:
        which = NEAR if near else FAST
        steps = _steps(mutant.module, copy, near)
        if all(run_tests(copy, tests, timeout, which) for tests in steps):
            listed = (mutant.module, mutant.before) in EQUIVALENT
            return Fate.EQUIVALENT if listed else Fate.SURVIVED
        return Fate.KILLED
    finally:
        target.write_bytes(source)


def main(argv: Sequence[str] | None = None) -> int:
    """Mutate, run, print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("modules", nargs="*", help="paths below securetrain/ (default: the list)")
    parser.add_argument("--seconds", type=float, default=900.0, help="stop after this long")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--each", type=int, help="so many mutants of each module (default: all)")
    parser.add_argument("--tests", type=Path, nargs="+", default=(), help="judge by these alone")
    parser.add_argument("--again", type=Path, help="the survivors of this kept file, and no others")
    parser.add_argument("--keep", type=Path, help="write counts and survivors to this file")
    options = parser.parse_args(argv)
    head = commit()
    started = time.monotonic()
    deadline = started + options.seconds
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copies = [make_copy(Path(folder) / str(number)) for number in range(options.jobs)]
        near = tuple(options.tests)
        modules = [m for m in options.modules or MODULES if _baseline(m, copies[0], near)]
        sources = {m: (copies[0] / "securetrain" / m).read_bytes() for m in modules}
        drawn = random.Random(options.seed)  # noqa: S311 - an order, not a secret
        planned = [
            mutant for m in modules for mutant in _draw(mutants(m, sources[m]), options.each, drawn)
        ]
        if options.again is not None:
            told = {_of_no_line(one) for one in json.loads(options.again.read_text())["survivors"]}
            every = (m for module in modules for m in mutants(module, sources[module]))
            planned = [one for one in every if _of_no_line(str(one)) in told]
        drawn.shuffle(planned)
        patience = _SLOWER * max(
            (
                seconds
                for m in modules
                for step in _steps(m, copies[0], near)
                if (seconds := _unchanged_seconds(copies[0], step)) is not None
            ),
            default=0.0,
        )
        timeout = max(_LEAST_TIMEOUT, patience)
        fates = _run_all(
            planned,
            lambda mutant, copy: judge(mutant, sources[mutant.module], copy, timeout, near),
            copies,
            deadline,
        )
    if options.keep is not None:
        about = {
            "commit": head[0],
            "changed": head[1],
            "seed": options.seed,
            "each": options.each,
            "tests": sorted(map(str, near)),
            "seconds": round(time.monotonic() - started),
        }
        kept = json.dumps(about | record(modules, planned, fates), indent=2, sort_keys=True)
        write_atomic(options.keep, f"{kept}\n".encode())
    return summary(modules, planned, fates)


def _of_no_line(mutant: str) -> str:
    """A mutant as it is told, wherever its line has gone."""
    return re.sub(r":\d+: ", ": ", mutant, count=1)


def _draw(found: list[Mutant], each: int | None, drawn: random.Random) -> list[Mutant]:
    return found if each is None or each >= len(found) else drawn.sample(found, each)


def _baseline(module: str, copy: Path, near: Sequence[Path]) -> bool:
    """Only a module whose tests exist and pass unchanged can be judged."""
    if not (copy / "securetrain" / module).exists():
        print(f"securetrain/{module}: does not exist, skipped")
        return False
    tests = _steps(module, copy, near)
    if not tests:
        print(f"securetrain/{module}: HAS NO TESTS")
        return False
    if any(_unchanged_seconds(copy, step) is None for step in tests):
        print(f"securetrain/{module}: its tests fail unchanged, skipped")
        return False
    return True


@cache
def _unchanged_seconds(copy: Path, tests: tuple[Path, ...]) -> float | None:
    """How long the tests take with the original; None when they fail.

    Asked once for a room, however many of its modules are mutated.
    """
    started = time.monotonic()
    return time.monotonic() - started if run_tests(copy, tests, _UNCHANGED_TIMEOUT) else None


def _run_all(
    planned: Sequence[Mutant],
    judged: Callable[[Mutant, Path], Fate],
    copies: Sequence[Path],
    deadline: float,
) -> dict[Mutant, Fate]:
    free: Queue[Path] = Queue()
    for copy in copies:
        free.put(copy)
    fates: dict[Mutant, Fate] = {}

    def work(mutant: Mutant) -> None:
        if time.monotonic() > deadline:
            return
        copy = free.get()
        try:
            fates[mutant] = judged(mutant, copy)
        finally:
            free.put(copy)
        if fates[mutant] is Fate.SURVIVED:
            print(f"SURVIVED {mutant}", flush=True)

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(work, planned))
    return fates


def record(
    modules: Sequence[str], planned: Sequence[Mutant], fates: dict[Mutant, Fate]
) -> dict[str, object]:
    """What is kept of a run: the counts of each module, and the survivors themselves."""
    return {
        "modules": {
            module: {fate: sum(fates.get(m) is fate for m in mine) for fate in Fate}
            | {"not run": sum(m not in fates for m in mine)}
            for module in modules
            for mine in [[m for m in planned if m.module == module]]
        },
        "survivors": sorted(str(m) for m, fate in fates.items() if fate is Fate.SURVIVED),
    }


def summary(modules: Sequence[str], planned: Sequence[Mutant], fates: dict[Mutant, Fate]) -> int:
    """Print a line for each module and the score; the exit code."""
    print(f"\n{'module':32} {'killed':>7} {'survived':>9} {'equivalent':>11} {'not run':>8}")
    for module in modules:
        mine = [m for m in planned if m.module == module]
        counts = {fate: sum(fates.get(m) is fate for m in mine) for fate in Fate}
        left = sum(m not in fates for m in mine)
        print(
            f"{module:32} {counts[Fate.KILLED]:7} {counts[Fate.SURVIVED]:9}"
            f" {counts[Fate.EQUIVALENT]:11} {left:8}"
        )
    killed = sum(fate is Fate.KILLED for fate in fates.values())
    judged = sum(fate is not Fate.EQUIVALENT for fate in fates.values())
    score = 100 * killed / judged if judged else 0.0
    print(f"\n{killed} of {judged} killed ({score:.1f} %); {len(planned) - len(fates)} not reached")
    return 1 if killed < judged or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
