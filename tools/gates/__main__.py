# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.gates`: judge the tree; `--shrink`: lower what is listed to today's."""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.gates import violations
from tools.gates.history import History
from tools.gates.rules import budgets, commits, modules
from tools.gates.table import GATES, Gate
from tools.gates.tree import ROOT, Tree
from tools.gates.violations import SHRINK, Fault

LIST = "tools/gates/violations.json"


def main(arguments: Sequence[str] | None = None, tree: Tree | None = None) -> int:
    """Run every gate; the exit code is 1 when one of them fails, and 2 without a list to read."""
    parser = argparse.ArgumentParser(prog="python -m tools.gates", description=__doc__)
    parser.add_argument("--shrink", action="store_true", help="write lower figures, never higher")
    parser.add_argument("--introduce", metavar="GATE", help="list the violations of a new gate")
    parser.add_argument("--warnings", action="store_true", help="name the files that are long")
    options = parser.parse_args(arguments)
    tree = tree or Tree(ROOT)
    tree.parse()
    path = tree.root / LIST
    try:
        listed = violations.read(path.read_text("utf-8"))
        budgets.read(tree)
    except ValueError as error:
        print(f"{LIST} or {budgets.FILE}: {error}: take either side of a conflict, then {SHRINK}")
        return 2
    found = {gate.name: list(gate.check(tree)) for gate in GATES}
    if History(tree.root).blind:  # what is listed is neither there nor gone: it was not looked at
        found["commit"] = [Fault(where, "", n) for where, n in listed.get("commit", {}).items()]
    if options.introduce:
        return _introduce(options.introduce, found, listed, path)
    if options.shrink:
        now = {gate: violations.shrunk(found[gate], places) for gate, places in listed.items()}
        violations.write(path, now)
        budgets.lowered(tree).write(tree.root / budgets.FILE)
        print(f"{LIST}: {_count(listed)} -> {_count(now)} violations")
        listed = now
    return _judge(tree, found, listed, long=options.warnings)


def _judge(
    tree: Tree,
    found: Mapping[str, Sequence[Fault]],
    listed: violations.Listed,
    *,
    long: bool,
) -> int:
    history = History(tree.root)
    lines = [line for gate in GATES for line in faults_of(gate, found[gate.name], listed)]
    lines += list(grown(history, listed, tree))
    for line in lines:
        print(line)
    warned = list(modules.long(tree))
    for fault in warned if long else ():
        print(f"warning: {fault.where}: {fault.says}: split it by noun")
    if spare := budgets.under(tree):
        left = ", ".join(f"{room} {budget - lines_}" for room, (lines_, budget) in spare.items())
        print(f"gates: lines under their budget ({SHRINK} takes them): {left}")
    if history.blind:
        print(f"gates: commits and earlier lists were not looked at: {history.blind}")
    else:
        print(f"gates: {len(commits.since(history))} commits were looked at")
    if warned:
        long_ones = f"{len(warned)} files have more than {modules.LONG} lines"
        print(f"gates: warning: {long_ones}: split them by noun (--warnings names them)")
    first = history.first(LIST)
    once = f" (once {_count(violations.read(first))})" if first else ""
    print(
        f"gates: {len(GATES)} gates over {len(tree.sources)} files, {_count(listed)} listed"
        f" violations{once}, {len(lines)} faults, {time.process_time():.1f} s of CPU"
    )
    return int(bool(lines))


def faults_of(gate: Gate, found: Sequence[Fault], listed: violations.Listed) -> Iterator[str]:
    """The lines that one gate prints, each with what to do."""
    if not gate.listed:
        yield from (f"{gate.name}: {f.where}: {f.says}\n    {gate.do}" for f in found)
        if gate.name in listed:
            yield f"{gate.name}: nothing may be listed for it: take it out of {LIST}"
        return
    verdict = violations.compare(found, listed.get(gate.name, {}))
    yield from (f"{gate.name}: {f.where}: {f.says}\n    {gate.do}" for f in verdict.new)
    for fault, before in verdict.grown:
        yield f"{gate.name}: {fault.where}: {fault.says}, listed with {before}\n    {gate.do}"
    for where in verdict.gone:
        yield f"{gate.name}: {where} is listed and gone: take it off: {SHRINK}"
    for old, new in (verdict.moved or {}).items():
        yield f"{gate.name}: {old} is listed and moved to {new}: {SHRINK}"


def grown(history: History, listed: violations.Listed, tree: Tree) -> Iterator[str]:
    """The lines about lists and budgets that grew against what git has."""
    since: dict[str, list[str]] = defaultdict(list)
    for name, text in history.earlier(LIST).items():
        for line in violations.growth(listed, violations.read(text)):
            since[f"list: {line} grew, and {LIST} only shrinks: mend it"].append(name)
    now = budgets.read(tree)
    for name, text in history.earlier(budgets.FILE).items():
        for line in budgets.growth(now, budgets.Budgets.parse(text)):
            since[f"budget: {line}: {budgets.RAISE}"].append(name)
    yield from (f"{line} (since {', '.join(names)})" for line, names in since.items())


def _introduce(
    name: str, found: Mapping[str, Sequence[Fault]], listed: violations.Listed, path: Path
) -> int:
    if name in listed:
        print(f"{name} has a list already, which only shrinks")
        return 1
    new = dict(listed) | {name: {f.where: f.figure for f in found[name]}}
    violations.write(path, new)
    print(f"{LIST}: {len(new[name])} violations of {name}")
    return 0


def _count(listed: violations.Listed) -> int:
    return sum(map(len, listed.values()))


if __name__ == "__main__":
    sys.exit(main())
