# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""This verifier beside an earlier commit's, in one run.

    python -m benchmarks.attest_before BASE

Each measures with its own copy of `benchmarks.attest`, in a process of its own, and takes turns:
what else the machine does meets both. Shown are the best rounds, and the median of the rounds'
ratios, which a busy machine changes least.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

HERE: Final = Path(__file__).parents[1]
CASES: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "renewal": ("renewals", {"shared": True}),
    "join, RSA-2048": ("joins", {}),
    "join, P-384": ("joins", {"template": "H-3"}),
    "join, 5,000 IMA entries": ("joins", {"entries": 5000, "nodes": 6}),
}
_CHILD: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
from benchmarks import attest
import securetrain
assert securetrain.__file__.startswith(sys.argv[1]), securetrain.__file__
name, options, rounds = json.loads(sys.argv[2])
with getattr(attest, name)(rounds + 1, **options) as sample:
    sample()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(sample(), flush=True)
"""


class _Side:
    """One commit's verifier, waiting to be asked for a round."""

    def __init__(self, root: Path, case: tuple[str, dict[str, object]], rounds: int) -> None:
        asked = json.dumps([*case, rounds])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, str(root), asked],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready":
            raise RuntimeError(f"{root} cannot be measured")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def sample(self) -> float:
        """Processor seconds of one operation."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def compare(base: Path, name: str, rounds: int) -> str:
    """One row: operations a second and core, before and now."""
    before, now = (_Side(root, CASES[name], rounds) for root in (base, HERE))
    pairs = [(before.sample(), now.sample()) for _ in range(rounds)]
    before.close()
    now.close()
    first, second = (min(column) for column in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    return f"{name:<26}{1 / first:>10,.0f}{1 / second:>10,.0f}{ratio:>9.2f}"


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=CASES, action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="base-") as folder:
        base = Path(folder) / "base"
        worktree = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", str(base), options.base], check=True)
        try:
            print(f"{'operations/s/core':<26}{'before':>10}{'now':>10}{'ratio':>9}")
            for name in options.only or CASES:
                print(compare(base, name, options.rounds), flush=True)
        finally:
            subprocess.run([*worktree, "remove", "--force", str(base)], check=True)


if __name__ == "__main__":
    main()
