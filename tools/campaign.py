# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run many random cases of one attack, and keep what came of them.

``python tools/campaign.py NAME [--count N] [--seed N] [--case N] [--fresh] [--out FILE]``

A campaign is a module of `tools.campaigns`: how many cases, and what one does. Rules:

1. a case depends on the seed and its number alone, so that ``--case`` runs one of them again;
2. a case ends with a word for what happened, or misses: the defence failed, and why is kept;
3. the result is written after every case, whole or not at all, to
   ``benchmarks/results/campaigns/NAME.json``: seed, commit, whether the tree was changed, the cases
   asked for and done, the words counted, the misses. A campaign that was interrupted goes on there;
   one of another seed or commit is refused unless ``--fresh`` begins anew;
4. the exit code is 1 when any case missed. A figure in the documentation names its campaign, and a
   test fails when there is no such file, or it says another number.
"""

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from securetrain.core.files import write_atomic
from tools.campaigns import Campaign, Missed

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results" / "campaigns"
NAMES: Final = (
    "audit-opaque",
    "audit-shell",
    "bars",
    "damage",
    "kills",
    "members",
    "mutation",
    "objectstore",
    "paths",
    "properties",
    "readers",
    "replay",
)
KEPT_MISSES: Final = 50


def find(name: str) -> Campaign:
    """The campaign of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in NAMES:
        raise ValueError(f"no campaign {name!r}: {', '.join(NAMES)}")
    found = importlib.import_module(f"tools.campaigns.{name.replace('-', '_')}").CAMPAIGN
    assert isinstance(found, Campaign)
    return found


def commit() -> tuple[str, bool]:
    """The commit of this tree, and whether something in it was changed since."""
    head = _git("rev-parse", "HEAD").strip()
    changed = _git("status", "--porcelain", "--untracked-files=no").splitlines()
    # The results are what a campaign changes itself.
    return head, any("benchmarks/results/" not in line for line in changed)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout


def begin(name: str, count: int, seed: int, out: Path, *, fresh: bool) -> dict[str, Any]:
    """The record to go on with (rule 3).

    Raises:
        ValueError: it was begun with another seed or commit.
    """
    head, changed = commit()
    record: dict[str, Any] = {
        "campaign": name,
        "seed": seed,
        "commit": head,
        "changed": changed,
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "asked": count,
        "done": 0,
        "seconds": 0.0,
        "outcomes": {},
        "misses": [],
    }
    if fresh or not out.exists():
        return record
    found: dict[str, Any] = json.loads(out.read_text())
    for key in ("campaign", "seed", "commit"):
        if found[key] != record[key]:
            raise ValueError(
                f"{out.name} was begun with {key} {found[key]}, not {record[key]}: give --fresh to"
                " begin anew"
            )
    return found | {"asked": max(count, found["done"]), "changed": found["changed"] or changed}


def run_case(campaign: Campaign, seed: int, number: int) -> str:
    """One case (rule 1).

    Raises:
        Missed: the defence failed.
    """
    rng = random.Random(f"{seed}:{number}")  # noqa: S311 - the cases of a test are no secret
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        if campaign.walk is not None:
            return campaign.walk(number, Path(folder))
        return campaign.case(rng, Path(folder))


def run(campaign: Campaign, record: dict[str, Any], out: Path) -> int:
    """Run what is left of a campaign; how many cases missed in all."""
    while record["done"] < record["asked"]:
        number, started = record["done"], time.monotonic()
        try:
            word = run_case(campaign, record["seed"], number)
        except Missed as miss:
            word = "missed"
            if len(record["misses"]) < KEPT_MISSES:
                record["misses"].append({"case": number, "what": str(miss)})
            print(f"case {number}: MISSED: {miss}", flush=True)
        record["outcomes"][word] = record["outcomes"].get(word, 0) + 1
        record["done"] = number + 1
        record["seconds"] = round(record["seconds"] + time.monotonic() - started, 3)
        _write(record, out)
    return int(record["outcomes"].get("missed", 0))


def _write(record: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())


def _named(word: str) -> str:
    return word.replace("_", "-")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign, or one case of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("name", type=_named, help=", ".join(NAMES))
    parser.add_argument("--count", type=int, help="cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this one again, and keep nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--out", type=Path, help="keep the result in this file")
    options = parser.parse_args(argv)
    try:
        campaign = find(options.name)
    except ValueError as error:
        parser.error(str(error))
    if options.case is not None:
        try:
            print(run_case(campaign, options.seed, options.case))
        except Missed as miss:
            print(f"MISSED: {miss}")
            return 1
        return 0
    out = options.out or RESULTS / f"{options.name}.json"
    try:
        record = begin(
            options.name, options.count or campaign.count, options.seed, out, fresh=options.fresh
        )
    except ValueError as error:
        parser.error(str(error))
    print(f"{options.name}: {campaign.title}: {record['done']} of {record['asked']} cases are done")
    missed = run(campaign, record, out)
    words = ", ".join(f"{count} {word}" for word, count in sorted(record["outcomes"].items()))
    print(f"{record['done']} cases in {record['seconds']:.0f} s: {words}; kept in {out}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
