# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make the table of frameworks in docs/reference/compatibility.md from what the tests have kept.

``make test-compat`` runs the tests in every framework, which keep what passed in
tests/integrations/compatibility.json, and then this. ``--check`` exits with 1 when the page is out
of date.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from securetrain.integrations import TESTED

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "tests" / "integrations" / "compatibility.json"
PAGE: Final = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN: Final = "<!-- made by tools/compatibility.py from tests/integrations/compatibility.json -->"
END: Final = "<!-- end -->"
FRAMEWORKS: Final = ("accelerate", "deepspeed", "lightning", "torchtitan", "transformers")
"""Those of the hooks, with a row each, whether a test has shown anything or not."""
COLUMNS: Final = {
    "signed": "saves signed",
    "resumed": "resume verified",
    "altered": "altered file",
    "guard": "guard",
    "run": "under `securetrain run`",
}
"""The checks, in the order of the table."""


def table(results: dict[str, Any]) -> str:
    """The table; what no test has shown is said."""
    head = ["framework", "version", "with torch", *COLUMNS.values()]
    lines = [head, ["---"] * len(head)]
    for name in FRAMEWORKS:
        one = results["frameworks"].get(name, {"checks": {}})
        checks = [one["checks"].get(check, "not tested") for check in COLUMNS]
        beside = f"{one['torch']}, Python {one['python']}" if "torch" in one else "not tested"
        lines.append([name, TESTED[name], beside, *checks])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(before: str, results: dict[str, Any]) -> str:
    """The page with the table of today."""
    start, _, rest = before.partition(BEGIN)
    _, found, end = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} has no place for the table: {BEGIN} ... {END}")
    return f"{start}{BEGIN}\n\n{table(results)}\n\n{END}{end}"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with ``--check``."""
    before = PAGE.read_text("utf-8")
    made = page(before, json.loads(RESULTS.read_text("utf-8")))
    if arguments == ["--check"]:
        if made == before:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is out of date: run python tools/compatibility.py")
        return 1
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
