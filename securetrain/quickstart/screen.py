# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The screen while the story runs: a sentence, a bar and a result for each step.

Text that comes from a run is printed as it is, never as markup. The quiet screen shows nothing; it
stands in when the output is JSON.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from securetrain.core import printable

if TYPE_CHECKING:
    from rich.progress import TaskID


class Bar(Protocol):
    """The progress of one step."""

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Show how far it is; `total` None means that nobody knows."""


class Screen(Protocol):
    """The place where the story is told."""

    def opening(self, run_dir: str) -> None:
        """Say what is about to happen, and where."""

    def step(self, number: int, count: int, title: str, sentence: str) -> None:
        """Begin a step."""

    def bar(self) -> AbstractContextManager[Bar]:
        """A progress bar for the step."""

    def result(self, text: str) -> None:
        """One thing that the step found."""

    def warn(self, text: str) -> None:
        """Something that is not as it should be on a better machine."""

    def finding(self, head: str, text: str, fix: str) -> None:
        """Something that an audit found, and what to do about it."""

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Several things that the step found."""

    def closing(self, report: str, commands: Sequence[tuple[str, str]]) -> None:
        """Say where the report is, and what to try next."""


class _QuietBar:
    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Nothing."""


class QuietScreen:
    """Shows nothing."""

    def opening(self, run_dir: str) -> None:
        """Nothing."""

    def step(self, number: int, count: int, title: str, sentence: str) -> None:
        """Nothing."""

    @contextmanager
    def bar(self) -> Iterator[Bar]:
        """Nothing."""
        yield _QuietBar()

    def result(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""

    def finding(self, head: str, text: str, fix: str) -> None:
        """Nothing."""

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Nothing."""

    def closing(self, report: str, commands: Sequence[tuple[str, str]]) -> None:
        """Nothing."""


class _RichBar:
    def __init__(self, progress: Progress, task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Show it."""
        self._progress.update(self._task, completed=done, total=total, note=escape(printable(note)))


class RichScreen:
    """A terminal, or a file: then without bars and colours."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def opening(self, run_dir: str) -> None:
        """Say what is about to happen, and where."""
        self._console.print()
        self._console.print(Text("securetrain quickstart", style="bold"))
        self._line(
            "A model is trained under a policy, proven, and attacked. About two minutes.", "dim"
        )
        self._line(f"Everything is kept in {run_dir}", "dim")

    def step(self, number: int, count: int, title: str, sentence: str) -> None:
        """Begin a step."""
        self._console.print()
        self._console.print(Text.assemble((f"{number}/{count}  ", "dim"), (title, "bold")))
        self._line(sentence)

    @contextmanager
    def bar(self) -> Iterator[Bar]:
        """A bar that goes away when the step is done; none when nobody watches."""
        if not self._console.is_terminal:
            yield _QuietBar()
            return
        with Progress(
            TextColumn("    "),
            SpinnerColumn(),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        ) as progress:
            yield _RichBar(progress, progress.add_task("", total=None, note=""))

    def result(self, text: str) -> None:
        """A line with a tick."""
        self._marked(Text("\u2713", "green"), text)

    def warn(self, text: str) -> None:
        """A line with a mark."""
        self._marked(Text("!", "yellow"), text)

    def finding(self, head: str, text: str, fix: str) -> None:
        """Two lines: what, and how to mend it."""
        style = _style(head.partition("  ")[2])
        line = Text.assemble((printable(head), style), "  ", printable(text))
        self._console.print(Padding(line, (0, 0, 0, 7)))
        self._console.print(Padding(Text(f"fix: {printable(fix)}", style="dim"), (0, 0, 0, 9)))

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A small table."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
        for number, heading in enumerate(headings):
            table.add_column(heading, overflow="fold", no_wrap=number == 0)
        for row in rows:
            table.add_row(*(Text(printable(cell), style=_style(cell)) for cell in row))
        self._console.print(Padding(table, (0, 0, 0, 5)))

    def closing(self, report: str, commands: Sequence[tuple[str, str]]) -> None:
        """Say where the report is, and what to try next."""
        self._console.print()
        self._console.print(
            Text.assemble(("Report  ", "bold"), (printable(report), "underline")), soft_wrap=True
        )
        self._console.print()
        self._console.print(Text("Try next", style="bold"))
        for command, why in commands:
            self._line(why, "dim")
            self._console.print(Text(printable(f"     {command}"), style="cyan"), soft_wrap=True)

    def _marked(self, mark: Text, text: str) -> None:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(mark, Text(printable(text), overflow="fold"))
        self._console.print(Padding(grid, (0, 0, 0, 5)))

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(f"     {text}"), style=style), soft_wrap=True)


def _style(cell: str) -> str:
    match cell.split(" ", maxsplit=1)[0]:
        case "fail" | "succeeded":
            return "red"
        case "unknown" | "waived":
            return "yellow"
        case "pass" | "refused":
            return "green"
        case _:
            return ""
