# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The differences of two records, by part."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

WORDS: Final = ("help", "output")
"""The parts of a record that hold texts for people."""


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[str]]:
    """Part of a record -> its differences, one line each."""
    found = {
        part: list(_differences(before[part], after[part]))
        for part in before
        if part not in ("structs", "schemas")
    }
    found["structs"] = list(_struct_differences(before["structs"], after["structs"]))
    old, new = set(before["schemas"]), set(after["schemas"])
    found["schemas"] = [f"- {x}" for x in sorted(old - new)] + [f"+ {x}" for x in sorted(new - old)]
    return found


def _differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            below = f"{where} | {key}" if where else key
            if key not in after:
                yield f"- {below}: {json.dumps(before[key])[:200]}"
            elif key not in before:
                yield f"+ {below}: {json.dumps(after[key])[:200]}"
            else:
                yield from _differences(before[key], after[key], below)
    elif isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        old, new = before.splitlines(), after.splitlines()
        gone = [line for line in old if line not in new]
        come = [line for line in new if line not in old]
        if before != after:
            yield "\n".join(
                [f"~ {where}", *(f"    - {x}" for x in gone), *(f"    + {x}" for x in come)]
            )
    elif before != after:
        yield f"~ {where}: {json.dumps(before)} -> {json.dumps(after)}"


def _struct_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What a message or file of the other record would be refused for, or read otherwise."""
    old = [(name, one) for name, definitions in before.items() for one in definitions]
    new = [(name, one) for name, definitions in after.items() for one in definitions]
    for names in (True, False):  # the same under the same name, and then under another
        for mine in list(old):
            for other in new:
                if other[1]["deep"] == mine[1]["deep"] and (not names or other[0] == mine[0]):
                    old.remove(mine)
                    new.remove(other)
                    break
    for name, one in old:
        same_name = [other for other in new if other[0] == name]
        if not same_name:
            yield f"- {name}: {', '.join(one['fields'])}"
            continue
        new.remove(same_name[0])
        lines = [
            line
            for part in ("tag", "fields")
            for line in _differences(one[part], same_name[0][1][part], name)
        ]
        yield from lines or [f"~ {name}: what its fields hold"]
    yield from (f"+ {name}: {', '.join(one['fields'])}" for name, one in new)


def report(found: Mapping[str, list[str]], *, words: bool) -> int:
    """Print the differences by part; the exit code."""
    for part, lines in found.items():
        allowed = " (allowed)" if words and part in WORDS and lines else ""
        print(f"{part}: {len(lines)} differences{allowed}")
        for line in lines:
            print(f"  {line}")
    counted = [part for part, lines in found.items() if lines and not (words and part in WORDS)]
    print(f"\ndifferent: {', '.join(counted)}" if counted else "\nnothing differs that counts")
    return 1 if counted else 0
