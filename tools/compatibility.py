# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make the tables of docs/reference/compatibility.md from what the tests have kept.

``make test-compat`` runs the tests of every framework, reader and tracker (tools/frameworks.py),
which keep what passed in tests/integrations/compatibility.json, and then this. ``--check`` exits
with 1 when the page is out of date.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from securetrain.integrations import TESTED

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "tests" / "integrations" / "compatibility.json"
PAGE: Final = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN: Final = (
    "<!-- {}: made by tools/compatibility.py from tests/integrations/compatibility.json -->"
)
END: Final = "<!-- end -->"
HOOKS: Final = "frameworks"
OTHERS: Final = "readers and trackers"
FRAMEWORKS: Final = ("accelerate", "deepspeed", "lightning", "torchtitan", "transformers")
"""Those of the hooks, with a row each, whether a test has shown anything or not."""
LIBRARIES: Final = (
    "mlflow-skinny",
    "mosaicml-streaming",
    "opentelemetry-sdk",
    "wandb",
    "webdataset",
)
"""Those of the readers and trackers, likewise."""
NOT_TESTED: Final = "not tested"
COLUMNS: Final = {
    "signed": "saves signed",
    "resumed": "resume verified",
    "altered": "altered file",
    "guard": "guard",
    "run": "under `securetrain run`",
}
"""The checks, in the order of the table."""


def section_of(name: str) -> str:
    """Where the results of a framework or a library are kept."""
    return HOOKS if name in FRAMEWORKS else OTHERS


def table(results: dict[str, Any]) -> str:
    """The table of the hooks; what no test has shown is said."""
    lines = [["framework", "version", "with torch", *COLUMNS.values()]]
    for name in FRAMEWORKS:
        one = results[HOOKS].get(name, {})
        checks = [_checks(one).get(check, _instead(one)) for check in COLUMNS]
        lines.append([name, TESTED[name], _beside(one), *checks])
    return _drawn(lines)


def libraries(results: dict[str, Any]) -> str:
    """The table of readers and trackers, likewise."""
    lines = [["library", "version", "with torch", "what the tests have shown"]]
    for name in LIBRARIES:
        one = results[OTHERS].get(name, {})
        shown = "; ".join(f"{check}: {result}" for check, result in sorted(_checks(one).items()))
        lines.append([name, TESTED[name], _beside(one), shown or _instead(one)])
    return _drawn(lines)


def _checks(one: dict[str, Any]) -> dict[str, str]:
    checks: dict[str, str] = one.get("checks", {})
    return checks


def _instead(one: dict[str, Any]) -> str:
    """What stands where nothing was shown: why, if that is known."""
    return str(one.get("absent", NOT_TESTED))


def _beside(one: dict[str, Any]) -> str:
    return f"{one['torch']}, Python {one['python']}" if "torch" in one else _instead(one)


def _drawn(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(before: str, results: dict[str, Any]) -> str:
    """The page with the tables of today."""
    made = before
    for section, drawn in ((HOOKS, table(results)), (OTHERS, libraries(results))):
        begin = BEGIN.format(section)
        start, _, rest = made.partition(begin)
        _, found, end = rest.partition(END)
        if not found:
            raise SystemExit(
                f"{PAGE.relative_to(ROOT)} has no place for a table: {begin} ... {END}"
            )
        made = f"{start}{begin}\n\n{drawn}\n\n{END}{end}"
    return made


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
