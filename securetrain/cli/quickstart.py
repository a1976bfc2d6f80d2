# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain quickstart``: the whole story on one machine."""

from pathlib import Path

import click

from securetrain.cli.options import FILE


@click.command()
@click.option(
    "--run-dir",
    type=FILE,
    help="The run directory; must be new. Default: runs/quickstart-TIME.",
)
@click.option(
    "--steps",
    type=click.IntRange(4, 100_000),
    default=None,
    help="Optimizer steps. The default takes about a minute on two idle cores.",
)
@click.option(
    "--nproc-per-node",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Worker processes.",
)
@click.option(
    "--tpm",
    is_flag=True,
    help="Let a software TPM (swtpm) speak for this machine: the whole exchange, TEST-ONLY.",
)
@click.option("--no-drills", is_flag=True, help="Leave the four attacks out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
def command(  # noqa: PLR0917 - click passes options by name
    run_dir: Path | None,
    steps: int | None,
    nproc_per_node: int,
    tpm: bool,
    no_drills: bool,
    as_json: bool,
) -> int:
    """Train a real model under a policy, prove its checkpoint, and attack it.

    Takes about two minutes and no root. Everything is kept in the run directory, also when a step
    fails or you press Ctrl-C.
    """
    import os
    import signal
    from datetime import UTC, datetime
    from types import FrameType

    import msgspec
    from rich.console import Console

    from securetrain.quickstart import STEPS, Options, QuietScreen, RichScreen, Story, tell

    def clock() -> datetime:
        return datetime.now(UTC)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # a closed terminal or a polite kill ends the children as Ctrl-C does
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    chosen = run_dir or Path("runs") / f"quickstart-{clock():%Y%m%d-%H%M%S}"
    options = Options(
        run_dir=chosen.absolute(),
        steps=steps or STEPS,
        nproc_per_node=nproc_per_node,
        drills=not no_drills,
        tpm=tpm,
    )
    existed = options.run_dir.exists()
    screen = QuietScreen() if as_json else RichScreen(Console())
    story = Story(
        options=options,
        screen=screen,
        clock=clock,
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


def _program() -> str:
    """Return the command line that starts this program again: it may not be on the PATH."""
    import shlex
    import shutil
    import sys

    beside = Path(sys.executable).with_name("securetrain")
    if shutil.which("securetrain") is not None:
        return "securetrain"
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m securetrain"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))
