# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run the pairs and figures: ``python benchmarks/run.py [NAME ...] [--pairs N] [--json OUT]``.

NAME keeps the benchmarks whose name contains it, or is a group: ``artifacts`` is all that saving,
loading and verifying promise. At the end stands what was asked and what was measured. The exit code
is 0 whether goals are met or not: the table says so, and a busy machine is no reason for a red
build.
"""

import argparse
import compileall
import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab

MODULES: Final = (
    *(
        "step",
        "guard",
        "guard_alone",
        "checkpoint",
        "dataset",
        "verify",
        "recording",
        "startup",
        "sandbox",
        "attest",
    ),
    *("hardware", "join", "link", "job", "trainer", "frameworks"),
)
FIGURES: Final = (
    "figures",
    "dataset",
    "overlay",
    "joinparts",
    "link",
    "checkpoint",
    "reshard",
    "verify",
    "chain",
    "recording",
    "plan",
    "audit_fleet",
    "corpus",
    "recall",
)
GROUPS: Final = {
    "artifacts": (
        *("checkpoint-save", "checkpoint-load", "verify-2048MB", "verify-tiny", "verify-small"),
        *("verify-many", "chain-ranks", "chain-ancestors", "dataset-read-cold"),
    )
}


def benchmarks(names: list[str]) -> list[ab.Benchmark]:
    """All benchmarks whose name contains one of `names` (all when there are none)."""
    every: list[ab.Benchmark] = [
        benchmark
        for module in MODULES
        for benchmark in importlib.import_module(f"benchmarks.{module}").BENCHMARKS
    ]
    return [b for b in every if not names or any(name in b.name for name in names)]


def figures(names: list[str]) -> dict[str, Callable[[], ab.Figure | None]]:
    """All figures whose name contains one of `names`, as what measures them."""
    every: dict[str, Callable[[], ab.Figure | None]] = {}
    for module in FIGURES:
        every |= importlib.import_module(f"benchmarks.{module}").FIGURES
    return {name: f for name, f in every.items() if not names or any(n in name for n in names)}


def asked(summaries: Sequence[ab.Summary], found: Sequence[ab.Figure]) -> str:
    """What was asked, what was measured, and whether it is enough, a line each."""
    rows = [("asked of", "asked", "measured", "")]
    for one in summaries:
        ratio = f"ratio {one.ratio:.3f} ({one.ratio_low:.3f}-{one.ratio_high:.3f})"
        measured = f"{ratio}, {one.difference_seconds:+.3g} s, {one.ours_seconds:.3g} s"
        rows.append((one.name, one.goal, measured, "met" if one.goal_met else "NOT MET"))
    for figure in found:
        measured = ", ".join(f"{name} {value:.4g}" for name, value in figure.values.items())
        rows.append((figure.name, figure.goal, measured, "met" if figure.goal_met else "NOT MET"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(
        f"{name.ljust(widths[0])}  {goal.ljust(widths[1])}  {verdict.ljust(7)}  {measured}"
        for name, goal, measured, verdict in rows
    )


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="run the benchmarks whose name contains this")
    parser.add_argument("--pairs", type=int, help="A/B pairs (and as many A/A pairs) each")
    parser.add_argument("--seed", type=int, default=0, help="of the random order")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args(argv)
    ab.clean_up_when_terminated()
    names = [one for name in options.names for one in GROUPS.get(name, (name,))]
    chosen, wanted = benchmarks(names), figures(names)
    if not chosen and not wanted:
        parser.error(f"no benchmark is called {' or '.join(options.names)}")
    # Workers may not write byte code: they would compile what changed at every start.
    compileall.compile_dir(Path(__file__).parent.parent / "securetrain", quiet=1)
    rng = random.Random(options.seed)  # noqa: S311 - the order of samples is no secret
    before = os.getloadavg()
    summaries = []
    for benchmark in chosen:
        print(f"{benchmark.name}: {benchmark.title} ...", flush=True)
        summaries.append(ab.measure(benchmark, options.pairs or benchmark.pairs, rng))
    found = []
    for name, measure in wanted.items():
        print(f"{name} ...", flush=True)
        if (figure := measure()) is not None:
            found.append(figure)
    after = os.getloadavg()
    print()
    print(ab.table(summaries))
    for figure in found:
        print(figure)
    print(f"\n{asked(summaries, found)}")
    print(f"\nload average {before[0]:.2f} before, {after[0]:.2f} after; medians of pairs")
    if options.json:
        document: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": ab.machine(),
            "load_average": {"before": list(before), "after": list(after)},
            "results": [
                {**asdict(summary), "within_noise": summary.within_noise} for summary in summaries
            ],
            "figures": [asdict(figure) for figure in found],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
        print(f"written to {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
