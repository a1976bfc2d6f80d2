# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain follow``: tell a tracker what a run does, or did."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from securetrain.cli.options import file_argument, json_option

if TYPE_CHECKING:
    from securetrain.integrations import Followed

EPILOG = """\
\b
Examples:
  securetrain follow runs/my-run --to mlflow
  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 securetrain follow runs/my-run --to otlp --live

\b
Each library finds its server and its key by its own variables: OTEL_EXPORTER_OTLP_*,
MLFLOW_TRACKING_*, WANDB_*. Exit codes: 0 everything was delivered; 1 something was not; 2 bad
arguments, or the library is not installed; 4 the ledger is not what was signed.
"""


@click.command(epilog=EPILOG)
@file_argument("run_dir")
@click.option(
    "--to",
    "trackers",
    multiple=True,
    required=True,
    metavar="otlp|mlflow|wandb",
    help="The tracker; may be repeated.",
)
@click.option("--live", is_flag=True, help="Go on until the run's ledger is closed.")
@click.option(
    "--names", is_flag=True, help="Tell names of nodes, paths, messages and the command, too."
)
@click.option("--watch-stdin", is_flag=True, hidden=True, help="Go on until stdin ends.")
@json_option
def command(
    *,
    run_dir: Path,
    trackers: tuple[str, ...],
    live: bool,
    names: bool,
    watch_stdin: bool,
    output: str,
) -> int:
    """Tell a tracker what a run does: admission, epochs, steps, saves, refusals.

    RUN_DIR is only read. Of each event the tracker is told its kind, decision, code and labels, and
    no name of a node or path unless --names is given. The figures of steps are rank 0's own word.
    """
    from datetime import UTC, datetime

    from securetrain.integrations import DEFAULTS, check_trackers, follow_run, open_tracker

    check_trackers(trackers)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    over = threading.Event()
    report = sys.stdout
    if watch_stdin:
        click.echo("ready")
        # What a library prints is nobody's to read, and may be a token.
        report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        os.nice(10)  # training goes first
        threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    opened = [(name, open_tracker(name)) for name in dict.fromkeys(trackers)]

    def ended(closed: bool) -> bool:
        return over.is_set() if watch_stdin else closed or not live

    def pause(seconds: float) -> None:
        over.wait(seconds)

    followed = follow_run(
        run_dir,
        opened,
        names=names,
        now=datetime.now(UTC),
        ended=ended,
        clock=time.monotonic,
        sleep=pause,
    )
    as_json = watch_stdin or output == "json"
    return _say(followed, run_dir, report, as_json=as_json)


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()


def _say(followed: "Followed", run_dir: Path, out: TextIO, *, as_json: bool) -> int:
    rows = [
        {
            "tracker": one.tracker,
            "delivered": one.delivered,
            "undelivered": one.undelivered,
            "problem": one.problem,
        }
        for one in followed.told
    ]
    problem = followed.problem
    if as_json:
        refused = problem.to_dict() if problem is not None else None
        click.echo(
            json.dumps(
                {
                    "trackers": rows,
                    "badLines": followed.bad_lines,
                    "ignored": followed.ignored,
                    "refused": refused,
                }
            ),
            file=out,
        )
    else:
        for one in followed.told:
            text = f"{one.tracker}: {one.delivered} items delivered"
            if one.undelivered or one.problem:
                text += (
                    f", {one.undelivered} not ({one.problem or 'the queue was full'}); they are in"
                    f" {run_dir}, and following it again tells all of it"
                )
            click.echo(text, file=out)
        if followed.bad_lines:
            click.echo(
                f"metrics.jsonl: {followed.bad_lines} lines are none, and were left out", file=out
            )
        if followed.ignored:
            click.echo(
                f"ledger: {followed.ignored} entries count for nothing, and were left out", file=out
            )
    if problem is not None:
        if not as_json:
            raise problem
        return int(problem.exit_code)
    return int(any(one.undelivered or one.problem for one in followed.told))
