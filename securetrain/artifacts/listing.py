# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The listing of a signed directory against what its statement names.

Everything below the directory must be a file that the statement leads to, of the signed size:
missing, extra and resized files, links, special files and unsafe names are problems.
"""

import os
from pathlib import Path
from typing import Final

from securetrain.artifacts.layout import LEGACY_METADATA, QUARANTINE, STATEMENT, Kind
from securetrain.artifacts.problems import Problem
from securetrain.artifacts.statements import CheckpointPredicate, Predicate, kind_of
from securetrain.core.errors import UsageError
from securetrain.core.files import open_regular, read_file, survey
from securetrain.identity.dsse import ENVELOPE_LIMIT

_PICKLES: Final = (LEGACY_METADATA, ".distcp", ".pkl", ".pt", ".pth")


def expected_files(predicate: Predicate) -> dict[str, int]:
    """Name and size of every file that the statement leads to; the statement itself is left out."""
    kind = kind_of(predicate)
    params = predicate.tree.params
    sizes = {}
    for file in predicate.files:
        sizes[file.name] = file.size
        sizes[kind.table_of(file.name)] = kind.table_size(params, file.size)
    if isinstance(predicate, CheckpointPredicate):
        sizes[predicate.index.name] = predicate.index.size
    return sizes


def check_listing(root: Path, predicate: Predicate) -> list[Problem]:
    """Compare the directory with the statement.

    Raises:
        OSError: the directory cannot be listed.
    """
    kind = kind_of(predicate)
    expected = expected_files(predicate)
    files, unsafe = survey(root)
    found = {entry.name: entry.size for entry in files}
    problems = [
        Problem(
            code=kind.code(142),
            what=f"{entry.reason}, which is never followed or read",
            file=entry.name,
        )
        for entry in unsafe
    ]
    refused = {entry.name for entry in unsafe}
    problems += [
        Problem(code=kind.code(140), what="a signed file is missing", file=name)
        for name in expected
        if name not in found and name not in refused
    ]
    for name, size in found.items():
        if name == STATEMENT or (name == QUARANTINE and kind is Kind.CHECKPOINT):
            continue  # judged by what is in it
        if name not in expected:
            problems.append(Problem(code=kind.code(141), what=_extra(name), file=name))
        elif size != expected[name]:
            problems.append(
                Problem(
                    code=kind.code(131),
                    what=f"{size} bytes, {expected[name]} were signed",
                    file=name,
                )
            )
    return problems


def _extra(name: str) -> str:
    if name.endswith(_PICKLES):
        return "a file that was not signed, of a kind that torch would unpickle"
    return "a file that was not signed"


def read_statement(root: Path, kind: Kind) -> bytes:
    """The statement's bytes.

    Raises:
        IntegrityError: 100 when there is none, 142 when it is not a regular file, 200 when it
            cannot be read.
    """
    path = root / STATEMENT
    if root.is_symlink():
        raise Problem(
            code=kind.code(142), what="the directory is a symbolic link, which is never followed"
        ).error(str(root))
    if path.is_symlink():
        raise Problem(code=kind.code(142), what="a symbolic link", file=STATEMENT).error(str(root))
    if not path.exists():
        what = "there is no statement: nothing says who made this"
        if kind is Kind.CHECKPOINT and (root / LEGACY_METADATA).exists():
            what += f"; {LEGACY_METADATA} is a pickle, which is never read"
        raise Problem(code=kind.code(100), what=what, file=STATEMENT).error(str(root))
    try:
        return read_file(path, ENVELOPE_LIMIT)
    except UsageError as error:
        raise Problem(code=kind.code(200), what=error.what, file=STATEMENT).error(
            str(root)
        ) from error


def open_data(root: Path, name: str, size: int, kind: Kind) -> int:
    """Open a signed file and check once more, on the open file, what it is; returns a descriptor.

    Raises:
        IntegrityError: 140 missing, 142 a link or special file, 131 another size, 200 unreadable.
    """
    path = root / name
    try:
        fd = open_regular(path)
    except FileNotFoundError as error:
        problem = Problem(code=kind.code(140), what="a signed file is missing", file=name)
        raise problem.error(str(root)) from error
    except (OSError, UsageError) as error:
        number = 142 if isinstance(error, UsageError) or path.is_symlink() else 200
        what = error.what if isinstance(error, UsageError) else str(error.strerror or error)
        raise Problem(code=kind.code(number), what=what, file=name).error(str(root)) from error
    info = os.fstat(fd)
    if info.st_size != size or info.st_nlink != 1:
        os.close(fd)
        number, what = (
            (131, f"{info.st_size} bytes, {size} were signed")
            if info.st_size != size
            else (142, "a hard link")
        )
        raise Problem(code=kind.code(number), what=what, file=name).error(str(root))
    return fd
