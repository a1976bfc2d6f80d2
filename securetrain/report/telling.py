# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The end of ``securetrain follow``: what trackers were told of a run, and what not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from securetrain.core import printable

if TYPE_CHECKING:
    from securetrain.integrations import Followed


def render(followed: "Followed", run_dir: Path, *, as_json: bool) -> str:
    """Say what was delivered, a line for each tracker, or as one JSON document.

    Args:
        followed: The end of it.
        run_dir: The run, for people.
        as_json: For machines.
    """
    if as_json:
        return _document(followed)
    return "\n".join(printable(line, keep="") for line in _lines(followed, run_dir))


def _document(followed: "Followed") -> str:
    problem = followed.problem
    return json.dumps(
        {
            "trackers": [
                {
                    "tracker": one.tracker,
                    "delivered": one.delivered,
                    "undelivered": one.undelivered,
                    "problem": one.problem,
                }
                for one in followed.told
            ],
            "badLines": followed.bad_lines,
            "ignored": followed.ignored,
            "refused": None if problem is None else problem.to_dict(),
        }
    )


def _lines(followed: "Followed", run_dir: Path) -> Iterator[str]:
    for one in followed.told:
        text = f"{one.tracker}: {one.delivered} items delivered"
        if one.undelivered or one.problem:
            text += (
                f", {one.undelivered} not ({one.problem or 'the queue was full'}); they are in"
                f" {run_dir}, and following it again tells all of it"
            )
        yield text
    if followed.bad_lines:
        yield f"metrics.jsonl: {followed.bad_lines} lines are none, and were left out"
    if followed.ignored:
        yield f"ledger: {followed.ignored} entries count for nothing, and were left out"
