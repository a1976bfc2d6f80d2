# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The listing of a signed directory against what its statement names.

Everything below the directory must be a file that the statement leads to, of the signed size:
missing, extra and resized files, links, special files and unsafe names are problems.
"""

from typing import Final

from securetrain.artifacts.statement.statements import CheckpointPredicate, Predicate, kind_of
from securetrain.artifacts.tree.layout import LEGACY_METADATA, QUARANTINE, STATEMENT, Kind
from securetrain.artifacts.tree.problems import Problem
from securetrain.artifacts.tree.storage import Place, Source, Storage, storage_of
from securetrain.core.errors import UsageError
from securetrain.identity.dsse import ENVELOPE_LIMIT

PICKLES: Final = (LEGACY_METADATA, ".distcp", ".pkl", ".pt", ".pth")


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
        sizes.update((document.name, document.size) for document in predicate.documents)
    return sizes


def check_listing(root: Place, predicate: Predicate) -> list[Problem]:
    """Compare the directory with the statement.

    Raises:
        OSError: the directory cannot be listed.
    """
    kind = kind_of(predicate)
    expected = expected_files(predicate)
    files, unsafe = storage_of(root).survey()
    found = {entry.name: entry.size for entry in files}
    problems = [
        Problem(kind.code(142), f"{entry.reason}, which is never followed or read", entry.name)
        for entry in unsafe
    ]
    refused = {entry.name for entry in unsafe}
    problems += [
        Problem(kind.code(140), "a signed file is missing", name)
        for name in expected
        if name not in found and name not in refused
    ]
    for name, size in found.items():
        if name == STATEMENT or (name == QUARANTINE and kind is Kind.CHECKPOINT):
            continue  # judged by what is in it
        if name not in expected:
            problems.append(Problem(kind.code(141), _extra(name), name))
        elif size != expected[name]:
            problems.append(
                Problem(kind.code(131), f"{size} bytes, {expected[name]} were signed", name)
            )
    return problems


def _extra(name: str) -> str:
    if name.endswith(PICKLES):
        return "a file that was not signed, of a kind that torch would unpickle"
    return "a file that was not signed"


def read_statement(root: Place, kind: Kind) -> bytes:
    """The statement's bytes.

    Raises:
        IntegrityError: 100 when there is none, 142 when it is not a regular file, 200 when it
            cannot be read.
    """
    storage = storage_of(root)
    if reason := storage.unsafe():
        raise Problem(kind.code(142), f"the directory is {reason}").error(storage.name)
    try:
        there = storage.has(STATEMENT)
        legacy = not there and kind is Kind.CHECKPOINT and storage.has(LEGACY_METADATA)
    except OSError as error:
        raise Problem(kind.code(200), str(error), STATEMENT).error(storage.name) from error
    if not there:
        what = "there is no statement: nothing says who made this"
        if legacy:
            what += f"; {LEGACY_METADATA} is a pickle, which is never read"
        raise Problem(kind.code(100), what, STATEMENT).error(storage.name)
    source = open_file(storage, STATEMENT, kind)
    try:
        if source.size > ENVELOPE_LIMIT:
            what = f"larger than the limit of {ENVELOPE_LIMIT} bytes"
            raise Problem(kind.code(200), what, STATEMENT).error(storage.name)
        data = bytearray(source.size)
        source.read_into(memoryview(data), 0)
        return bytes(data)
    except (OSError, EOFError) as error:
        problem = Problem(kind.code(200), str(error) or "it ends early", STATEMENT)
        raise problem.error(storage.name) from error
    finally:
        source.close()


def open_file(storage: Storage, name: str, kind: Kind) -> Source:
    """Open a file that may hold signed bytes.

    Raises:
        IntegrityError: 140 missing, 142 a link or special file, 200 unreadable.
    """
    try:
        return storage.open(name)
    except FileNotFoundError as error:
        problem = Problem(kind.code(140), "a signed file is missing", name)
        raise problem.error(storage.name) from error
    except UsageError as error:
        raise Problem(kind.code(142), error.what, name).error(storage.name) from error
    except OSError as error:
        what = str(error.strerror or error)
        raise Problem(kind.code(200), what, name).error(storage.name) from error


def open_data(root: Place, name: str, size: int, kind: Kind) -> Source:
    """Open a signed file and check once more, on the open file, what it is.

    Raises:
        IntegrityError: 140 missing, 142 a link or special file, 131 another size, 200 unreadable.
    """
    storage = storage_of(root)
    source = open_file(storage, name, kind)
    problem = None
    if source.size != size:
        what = f"{source.size} bytes, {size} were signed"
        problem = Problem(kind.code(131), what, name)
    elif source.linked:
        problem = Problem(kind.code(142), "a hard link", name)
    if problem is not None:
        source.close()
        raise problem.error(storage.name)
    return source
