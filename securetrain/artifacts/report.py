# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of an artifact itself: its statements, its bytes, and what lies beside it.

Readers of every form fill the same record: a directory (`verify`), what a script saved
(`saved.judging`), a bundle (`model.oms`). The evidence of its run is another question, which
`securetrain.chain.verify` asks of the same record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from securetrain.artifacts.statement.saved_files import OpenedSave
from securetrain.artifacts.statement.statements import Opened, Predicate
from securetrain.artifacts.tree.layout import TREES, Kind, Problem, most_telling
from securetrain.artifacts.tree.storage import Place, Storage, shown, storage_of
from securetrain.core import CODES, ExitCode
from securetrain.core.errors import SecureTrainError, UsageError, reason
from securetrain.identity.log import Logged

MAX_PROBLEMS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """The words that only a bundle of OpenSSF Model Signing has."""

    bundle: Path
    signer: str = ""
    """Who signed; empty when no signature verified."""
    names: Sequence[str] = ()
    """The files that it names."""
    left_out: Sequence[str] = ()
    """Paths that are there and were not looked at, because they are left out."""
    unsigned: Sequence[str] = ()
    """Files that are there and were not looked at, because unsigned ones are ignored."""
    notes: Sequence[str] = ()
    """What else a person should know."""


NO_BUNDLE: Final = Bundled(bundle=Path())


@dataclass(slots=True, kw_only=True)
class Report:
    """The answers of an artifact itself; filled by whoever reads it, and only read afterwards."""

    path: Path | str
    root: Storage
    kind: Kind
    """A guess, for the family of an unsigned one's code, until a statement has said it."""
    problems: list[Problem] = field(default_factory=list)
    num_files: int = 0
    """Files of which every byte was checked."""
    num_bytes: int = 0
    truncated: bool = False
    """Whether there were more problems than are listed."""
    opened: Opened | None = None
    """The verified statement with who signed it; None when there is none that verifies."""
    logged: Logged | None = None
    """Where it stands in the log, if a proof was given and holds."""
    excused: list[Problem] = field(default_factory=list)
    """What operators, or the run itself, let pass."""
    saves: tuple[OpenedSave, ...] = ()
    """What a script saved: the statements that verify."""
    bundled: Bundled = NO_BUNDLE

    @classmethod
    def of(cls, place: Place, **more: object) -> Self:
        """The record of what lies at a place, of which nothing is known yet.

        Raises:
            UsageError: ST-USAG-002 when its store cannot be read; see `storage_of`.
        """
        root = storage_of(place)
        try:
            kind = Kind.DATASET if root.has(TREES) else Kind.CHECKPOINT
        except OSError as error:
            raise UsageError(
                "ST-USAG-002", f"the store is unreadable: {error}", root.name
            ) from error
        return cls(path=shown(place), root=root, kind=kind, **more)  # type: ignore[arg-type]

    def add(self, *problems: Problem) -> None:
        """Take problems that are not known yet, up to `MAX_PROBLEMS`."""
        for problem in problems:
            if problem in self.problems:
                continue
            if len(self.problems) >= MAX_PROBLEMS:
                self.truncated = True
                return
            self.problems.append(problem)

    def refuse(self, code: str, what: str, file: str = "") -> None:
        """Take a problem."""
        self.add(Problem(code=code, what=what, file=file))

    def catch(self, error: SecureTrainError, file: str) -> None:
        """Take an error of the shared readers as a problem of `file`."""
        self.refuse(error.code, reason(error), file)

    @property
    def ok(self) -> bool:
        """Tell whether everything held and something was checked."""
        return not self.problems and self.num_files > 0

    @property
    def refusal(self) -> ExitCode:
        """The exit code of the most telling problem; 0 without one."""
        return refusal_of(self.problems)

    @property
    def exit_code(self) -> ExitCode:
        """0 when ok, else the exit code of the most telling problem."""
        return ExitCode.OK if self.ok else self.refusal or ExitCode.FAILURE

    @property
    def statement(self) -> Predicate | None:
        """Its predicate; None when there is no statement that verifies."""
        return self.opened.predicate if self.opened else None

    @property
    def digest(self) -> str:
        """The digest that it names; empty without one."""
        return self.opened.digest if self.opened else ""

    @property
    def key_ids(self) -> frozenset[str]:
        """The keys that signed it."""
        return self.opened.key_ids if self.opened else frozenset()


def refusal_of(problems: Sequence[Problem]) -> ExitCode:
    """The exit code of the most telling of some problems; 0 without any."""
    return CODES[most_telling(problems).code].exit if problems else ExitCode.OK
