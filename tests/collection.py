# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect every test once, alone, before several workers do it side by side. Rules:

1. collecting starts no program: who asks for one test pays for no other;
2. the tests of rooms that start without torch collect without it, too;
3. what this process has compiled, no worker compiles again. Workers compare what they have
   collected themselves, each with another order of sets.
"""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
WITHOUT_TORCH: Final = (
    *("attest", "audit", "core", "evidence", "identity", "ledger", "network", "policy"),
    *("quickstart", "report", "threats"),
)
_OPTIONS: Final = ("--collect-only", "-q", "-p", "no:cacheprovider")


def collected(paths: Sequence[Path]) -> str:
    """Collect what is there; what pytest said, where it failed."""
    said = io.StringIO()
    with redirect_stdout(said):
        status = pytest.main([*_OPTIONS, *map(str, paths)])
    return "" if status == pytest.ExitCode.OK else said.getvalue()[-3000:] or str(status)


def main(without_torch: Sequence[Path], rest: Sequence[Path]) -> int:
    """Collect both, in this order; 1 when a rule was broken."""
    started: list[str] = []
    sys.addaudithook(
        lambda event, _: started.append(event) if event == "subprocess.Popen" else None
    )
    faults = [collected(without_torch)]
    if "torch" in sys.modules:
        faults.append("torch was imported for rooms that need none")
    faults.append(collected(rest) if rest else "")
    if started:
        faults.append("collecting tests started a program")
    for fault in filter(None, faults):
        print(fault)  # noqa: T201 - a step of make test
    return 1 if any(faults) else 0


if __name__ == "__main__":
    rooms = [TESTS / name for name in WITHOUT_TORCH]
    others = [path for path in sorted(TESTS.iterdir()) if path not in rooms]
    sys.exit(main(rooms, [p for p in others if p.match("test_*.py") or any(p.rglob("test_*.py"))]))
