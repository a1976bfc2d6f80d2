# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect facts about shared storage from files, each a document of its own.

Rules:

1. a file is recognized by its name, a file of Ansible by an export in it; of a folder every file is
   looked at, in the order of names, without following links;
2. a file that has the name of one with exports, and cannot be read or understood, is a document
   whose section says why: its checks are unknown. A link, a pipe and a device are such files;
3. a file of YAML that cannot be understood is one when it speaks of exports;
4. a host that serves nothing has no document.
"""

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from securetrain import __version__
from securetrain.audit.facts import Collected, Outcome, Section
from securetrain.audit.ledger import entry_of
from securetrain.audit.subjects.node.collect.host import FILE_LIMIT, outcome_of, reading
from securetrain.audit.subjects.node.collect.node import host_of
from securetrain.audit.subjects.storage.collect.exports import parse_exports
from securetrain.audit.subjects.storage.collect.saved import (
    parse_exportfs,
    parse_gpfs,
    parse_lustre,
    parse_showmount,
)
from securetrain.audit.subjects.storage.facts import Export, Storage, StorageFacts
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file

MAX_FILES: Final = 20_000
MAX_DOCUMENTS: Final = 2_000

_Parser: TypeAlias = Callable[[str, str], tuple[Export, ...]]
_NAMES: Final[tuple[tuple[re.Pattern[str], _Parser], ...]] = (
    (re.compile(r"showmount"), parse_showmount),
    (re.compile(r"exportfs"), parse_exportfs),
    (re.compile(r"nodemap|lctl|root_squash"), parse_lustre),
    (re.compile(r"mmauth"), parse_gpfs),
    (
        re.compile(
            r"^(?:[^.].*[-_.])?exports(?:\.j2|\.erb|\.txt)?$|^[^.].*\.exports(?:\.j2)?$|^etab$"
        ),
        parse_exports,
    ),
)
_CODE: Final = re.compile(r"\.(?:ya?ml|py|sh|json|md|rst|html|c|h|go|js|ts)$")
_YAML: Final = re.compile(r"\.ya?ml$")
_SPEAKS_OF_EXPORTS: Final = re.compile(r"_squash\b|\bnfs_export|/etc/exports\b")
_HOSTS_FOLDER: Final = "/etc/exports.d"


def collect_storage(paths: Iterable[Path], *, now: datetime) -> list[StorageFacts]:
    """A document for each file of shared storage at or below `paths`.

    Raises:
        UsageError: ST-USAG-002 when a path is not there, or there is too much below it.
    """
    found: dict[str, StorageFacts] = {}
    files = 0
    for path in paths:
        for file in files_below(path):
            files += 1
            if files > MAX_FILES:
                raise UsageError("ST-USAG-002", f"more than {MAX_FILES} files", str(path))
            facts = _of_file(file, now)
            if facts is not None:
                found.setdefault(facts.asset, facts)
            if len(found) > MAX_DOCUMENTS:
                what = f"more than {MAX_DOCUMENTS} files with exports"
                raise UsageError("ST-USAG-002", what, str(path))
    return [found[asset] for asset in sorted(found)]


def collect_exports(*, now: datetime, root: Path = Path("/")) -> list[StorageFacts]:
    """Collect what this host itself hands out over the network; nothing on most nodes."""
    host = host_of({}, (), root)
    listed = reading(lambda: host.names(_HOSTS_FOLDER))
    found = []
    for path in ("/etc/exports", *(f"{_HOSTS_FOLDER}/{name}" for name in listed.value or ())):
        if path.startswith(_HOSTS_FOLDER) and not re.search(r"/[^./][^/]*\.exports$", path):
            continue  # exports(5): other names are not read
        text = reading(lambda path=path: host.text(path))  # type: ignore[misc]
        if text.outcome is Outcome.ABSENT:
            continue
        if text.value is None:
            section = Section[tuple[Export, ...]](outcome=text.outcome, reason=text.reason)
        else:
            section = _parsed(parse_exports, text.value, path)
        found.append(_document(f"{socket.gethostname()}{path}", section, now))
    if listed.outcome not in (Outcome.OK, Outcome.ABSENT):
        section = Section(outcome=listed.outcome, reason=listed.reason)
        found.append(_document(f"{socket.gethostname()}{_HOSTS_FOLDER}", section, now))
    return found


def files_below(path: Path) -> Iterator[Path]:
    """A file, or every file below a folder.

    Raises:
        UsageError: ST-USAG-002 when it is not there, or a folder cannot be listed.
    """
    if not path.is_dir() or path.is_symlink():
        if not path.exists() and not path.is_symlink():
            raise UsageError("ST-USAG-002", "does not exist", str(path))
        yield path
        return
    for folder, folders, names in os.walk(path, followlinks=False, onerror=_unlisted):
        folders[:] = sorted(name for name in folders if name not in {".git", "node_modules"})
        yield from (Path(folder) / name for name in sorted(names))


def _unlisted(error: OSError) -> None:
    raise UsageError("ST-USAG-002", f"cannot be listed: {error.strerror}", str(error.filename))


def _of_file(file: Path, now: datetime) -> StorageFacts | None:
    path = str(file)
    parser = _parser(file.name)
    if parser is None and not _YAML.search(file.name):
        return None
    try:
        data = read_file(file, FILE_LIMIT)
    except UsageError as error:
        if parser is None:
            return None  # whoever reads manifests says so
        section = Section[tuple[Export, ...]](outcome=_outcome(error), reason=error.what)
        return _document(path, section, now)
    text = data.decode("utf-8", "backslashreplace").removeprefix("\ufeff")
    if parser is not None:
        return _document(path, _parsed(parser, text, path), now)
    if "(" not in text and not _SPEAKS_OF_EXPORTS.search(text):
        return None
    from securetrain.audit.subjects.storage.collect.ansible import parse_ansible  # noqa: PLC0415 - for YAML only

    section = _parsed(parse_ansible, text, path)
    silent = section.value == () or (section.value is None and not _SPEAKS_OF_EXPORTS.search(text))
    return None if silent else _document(path, section, now)


def _parser(name: str) -> _Parser | None:
    if _CODE.search(name):
        return None
    return next((parser for pattern, parser in _NAMES if pattern.search(name)), None)


def _parsed(parser: _Parser, text: str, path: str) -> Section[tuple[Export, ...]]:
    try:
        if "\0" in text:
            raise ValueError("not a text of UTF-8")
        return Section(outcome=Outcome.OK, value=parser(text, path))
    except ValueError as error:
        return Section(outcome=Outcome.ERROR, reason=f"{path}: {error}")


def _outcome(error: UsageError) -> Outcome:
    cause = error.__cause__
    return outcome_of(cause)[0] if isinstance(cause, OSError) else Outcome.ERROR


def _document(path: str, section: Section[tuple[Export, ...]], now: datetime) -> StorageFacts:
    return StorageFacts(
        collected=Collected(
            at=now, hostname=socket.gethostname(), collector=f"securetrain {__version__}"
        ),
        ledger=(entry_of("file", path, section, "nfs.exports"),),
        path=path,
        nfs=Storage(exports=section),
    )
