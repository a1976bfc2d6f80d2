# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain quickstart``: the whole story on one machine."""

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Output, verb
from securetrain.cli.jobs.options import QuickstartOptions


@verb("quickstart", json="Print the result as JSON, and nothing else.")
def command(*, given: QuickstartOptions, output: Output) -> int:
    """Train a real model under a policy, prove its checkpoint, and attack it.

    Takes about two minutes and no root. Everything is kept in the run directory, also when a step
    fails or you press Ctrl-C.
    """
    import msgspec
    from rich.console import Console

    from securetrain.quickstart import STEPS, Options, QuietScreen, RichScreen, Story, tell

    # a closed terminal or a polite kill ends the children as Ctrl-C does
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    chosen = given.run_dir or Path("runs") / f"quickstart-{now():%Y%m%d-%H%M%S}"
    options = Options(
        run_dir=chosen.absolute(),
        steps=given.steps or STEPS,
        nproc_per_node=given.nproc_per_node,
        drills=not given.no_drills,
        tpm=given.tpm,
    )
    existed, as_json = options.run_dir.exists(), output.format == "json"
    story = Story(
        options=options,
        screen=QuietScreen() if as_json else RichScreen(Console()),
        clock=now,
        environ=dict(os.environ),
        program=_program(),
        here=Path.cwd(),
    )
    try:
        result = tell(story)
    except BaseException:
        if options.run_dir.exists() and not existed:
            click.echo(f"what was made is kept in {options.run_dir}", err=True)
        raise
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _program() -> str:
    """Return the command line that starts this program again: it may not be on the PATH."""
    beside = Path(sys.executable).with_name("securetrain")
    if shutil.which("securetrain") is not None:
        return "securetrain"
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m securetrain"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))
