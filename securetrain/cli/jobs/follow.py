# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain follow``: tell a tracker what a run does, or did."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, TextIO

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, Output, verb


@verb("follow")
def command(
    *,
    run_dir: Path,
    trackers: Annotated[
        tuple[str, ...],
        Option("--to", "The tracker; may be repeated.", metavar="otlp|mlflow|wandb", required=True),
    ],
    live: Annotated[bool, Option("--live", "Go on until the run's ledger is closed.")],
    names: Annotated[
        bool,
        Option("--names", "Tell names of nodes, paths, messages and the command, too."),
    ],
    watch_stdin: Annotated[bool, Option("--watch-stdin", "Go on until stdin ends.", hidden=True)],
    output: Output,
) -> int:
    r"""Tell a tracker what a run does: admission, epochs, steps, saves, refusals.

    RUN_DIR is only read. Of each event the tracker is told its kind, decision, code and labels, and
    no name of a node or path unless --names is given. The figures of steps are rank 0's own word.

    Examples:
      securetrain follow runs/my-run --to mlflow
      OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 securetrain follow runs/my-run \
          --to otlp --live

    Each library finds its server and its key by its own variables: OTEL_EXPORTER_OTLP_*,
    MLFLOW_TRACKING_*, WANDB_*. Exit codes: 0 everything was delivered; 1 something was not; 2 bad
    arguments, or the library is not installed; 4 the ledger is not what was signed.
    """
    from securetrain.integrations import DEFAULTS, check_trackers, follow_run, open_tracker
    from securetrain.report import runs, written

    check_trackers(trackers)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    over = threading.Event()
    report = _watched(over) if watch_stdin else sys.stdout
    opened = [(name, open_tracker(name)) for name in dict.fromkeys(trackers)]

    def ended(closed: bool) -> bool:
        return over.is_set() if watch_stdin else closed or not live

    def pause(seconds: float) -> None:
        over.wait(seconds)

    followed = follow_run(
        run_dir,
        opened,
        names=names,
        now=now(),
        ended=ended,
        clock=time.monotonic,
        sleep=pause,
    )
    as_json = watch_stdin or output.format == "json"
    said = written(runs.followed(followed, run_dir), "json" if as_json else "text")
    click.echo(said, file=report, nl=False)
    problem = followed.problem
    if problem is not None:
        if not as_json:
            raise problem
        return int(problem.exit_code)
    return int(any(one.undelivered or one.problem for one in followed.told))


def _watched(over: threading.Event) -> TextIO:
    """Set `over` when stdin ends; the stream to report to."""
    click.echo("ready")
    # What a library prints is nobody's to read, and may be a token.
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
    os.nice(10)  # training goes first
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    return report


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()
