# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A bar on standard error while something long is done, when somebody is looking."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    doing: str, *, counts: bool = False, quiet: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for how much is done and how much there is; None when nobody is looking.

    Args:
        doing: What is done.
        counts: Whether that is things, and no bytes.
        quiet: Whether nothing is to be shown.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    bytes_, things = (DownloadColumn(), TransferSpeedColumn()), (MofNCompleteColumn(),)
    columns = (doing, BarColumn(), *(things if counts else bytes_), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
