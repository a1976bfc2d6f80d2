# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Paths to texts: names, bounds and reads of files, and an entry for each file that is not read.

Rules:

1. a folder gives every file below it; what is read is chosen by name (`kind_of`): manifests,
   templates of them, and scripts, which a first line for a shell makes of any file. A file that was
   named itself is read whatever it is called;
2. a file of another kind that can hold what a check asks for (`KINDS`) is not understood; one that
   cannot is not ours. Folders of version control are not ours and are not looked into;
3. a symbolic link inside a folder is followed to a regular file inside the folder, and is not
   understood otherwise; so are links to folders (what they lead to may be anywhere, or a cycle);
4. pipes, devices and sockets are not understood and are never opened; so is what is too large.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from securetrain.audit.facts import End, Entry, Location
from securetrain.core.errors import AuditError, PolicyError, UsageError
from securetrain.core.files import open_regular, read_file
from securetrain.policy.load import parse_yaml

T = TypeVar("T")

MAX_FILES: Final = 20_000
"""Files of one audit."""
MAX_FILE_BYTES: Final = 16 << 20
"""Of one file, and of one object of a `List`."""
MAX_LIST_BYTES: Final = 256 << 20
"""Of a file that is one `List`: its objects are read one after the other."""
MAX_ITEMS: Final = 100_000
"""Objects of one `List`."""
MAX_ENTRIES: Final = 200_000
"""Names of folders that are looked at."""
MAX_NODES: Final = 200_000
"""Of one YAML document, each alias counted as what it stands for."""
MAX_DEPTH: Final = 64
MAX_DOCUMENTS: Final = 20_000
"""YAML documents of all files."""
MAX_WORKLOADS: Final = 4_000
MAX_POLICIES: Final = 4_000
"""Network policies, bindings, and Services, of each."""
MAX_HOLES: Final = 100_000
"""Places of one file that a template leaves open."""
MAX_EMBEDDED: Final = 3
"""Strings in strings that hold objects."""
_SUFFIXES: Final = frozenset(
    {".j2", ".jinja", ".jinja2", ".erb", ".tmpl", ".tpl", ".gotmpl", ".template", ".in", ".tftpl"}
    | {".envsubst", ".example", ".sample", ".dist", ".orig", ".bak"}
)
"""Endings of templates, examples and copies, which are taken off before a name is looked at."""
_DASHED: Final = re.compile(r"-(?:template|example|sample|tmpl)$")
MANIFESTS: Final = frozenset({".yaml", ".yml", ".json"})
SCRIPTS: Final = frozenset({".sh", ".bash", ".sbatch", ".slurm", ".batch", ".job", ".sub"})
_SHEBANG: Final = re.compile(r"#!\s*\S*?/[^\n]*\b(?:ba|da|k|z|a)?sh\b")
_VERSION_CONTROL: Final = frozenset({".git", ".hg", ".svn"})

ALL: Final = ("workload", "cluster", "launch")
"""What a manifest can hold."""

_DOCKERFILE: Final = re.compile(r"(?:^|\.)(?:dockerfile|containerfile)(?:\.|-|\Z)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """Files that no reader here opens, and that can hold what a check asks for."""

    title: str
    names: re.Pattern[str]
    """Of the file as `bare` gives it."""
    bears_on: tuple[str, ...]
    help: str = ""


def _kind(title: str, names: str, *bears_on: str, help: str = "") -> Kind:  # noqa: A002
    return Kind(title, re.compile(names), bears_on, help)


KINDS: Final = (
    _kind("Terraform", r".*\.(?:tf\.json|tofu)", *ALL),
    _kind("a notebook", r".*\.ipynb", "launch"),
    _kind("Slurm's configuration",
          r"(?:slurm|slurmdbd|cgroup|gres|topology|plugstack|job_container|acct_gather|oci)\.conf",
          "slurm", help="audit its folder with --slurm"),
    _kind("Jsonnet, CUE or another language of configurations",
          r".*\.(?:jsonnet|libsonnet|cue|k|pkl|dhall)", *ALL,
          help="render it, and audit what it makes"),
    _kind("an archive", r".*\.(?:tgz|tar|tar\.gz|zip)", *ALL, help="unpack it"),
)  # fmt: skip
"""A row goes when a reader for its kind comes."""


def unread(path: str, why: str, bears_on: tuple[str, ...] = ALL, *, help: str = "") -> Entry:  # noqa: A002
    """The entry of a file that was not read, or not understood."""
    return Entry(
        unit="file", at=Location(path=path), end=End.NOT_UNDERSTOOD, why=why[:300], help=help,
        bears_on=bears_on,
    )  # fmt: skip


def not_ours(path: str, why: str) -> Entry:
    """The entry of a file that can answer no check."""
    return Entry(unit="file", at=Location(path=path), end=End.NOT_OURS, why=why)


@dataclass(frozen=True, slots=True)
class Text:
    """A file's content."""

    path: str
    text: str
    is_script: bool


@dataclass(frozen=True, slots=True)
class Large:
    """A file that is too large to be read whole, and may be a `List` of objects."""

    path: str
    real: Path
    reason: str


def kind_of(name: str) -> str:
    """``manifest``, ``script``, ``scripts`` or nothing, by a file's name."""
    ending = Path(bare(name)).suffix
    if bare(name).endswith(".tf.json"):
        return ""
    if ending in MANIFESTS:
        return "manifest"
    if ending in SCRIPTS:
        return "script"
    if holds_scripts(name):
        return "scripts"
    return "manifest" if Path(name.lower()).suffix in {".tpl", ".gotmpl"} else ""


def is_script(name: str, head: str) -> bool:
    """Return whether a file or a string is a shell script, by its name or how it begins."""
    return Path(bare(name)).suffix in SCRIPTS or bool(_SHEBANG.match(head))


def _is_read(name: str, file: Path) -> bool:
    """Return whether a file is read; one without an ending that does not open says why then."""
    if kind_of(name):
        return True
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            return is_script(name, opened.read(80).decode("latin-1"))
    except (OSError, UsageError):
        return not Path(bare(name)).suffix


def other_kind(path: str) -> Entry:
    """The entry of a file that no reader here opens."""
    name = bare(path.rpartition("/")[2])
    for kind in KINDS:
        if kind.names.fullmatch(name):
            why = f"{kind.title}; no reader for these yet" if not kind.help else kind.title
            return unread(path, why, kind.bears_on, help=kind.help)
    ending = Path(name).suffix
    return not_ours(path, f"no check asks for {ending} files" if ending else "no check asks for it")


def texts(
    paths: Iterable[Path], progress: Callable[[int, int], None] | None = None
) -> Iterator[Text | Large | Entry]:
    """Yield the texts of files and folders, one at a time, in a stable order."""
    named: dict[str, tuple[Path, Path | Entry]] = {}
    for path in paths:
        for found in _files(path):
            name = found.at.path if isinstance(found, Entry) else str(found)
            named.setdefault(name, (path, found))
    opened = 0
    for number, (path, found) in enumerate(named.values(), 1):
        if progress is not None:
            progress(number, len(named))
        if isinstance(found, Entry):
            yield found
            continue
        opened += 1
        if opened > MAX_FILES:
            yield unread(str(path), f"more than {MAX_FILES} files")
            return
        yield read(found)


def _files(path: Path) -> Iterator[Path | Entry]:
    path = Path(os.path.normpath(path))
    try:
        info = path.stat()
    except OSError as error:
        yield _failure(str(path), error)
        return
    if not stat.S_ISDIR(info.st_mode):
        yield path
        return
    yield from _below(path, path.resolve())


def _below(root: Path, real: Path) -> Iterator[Path | Entry]:
    folders = [root]
    count = 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield _failure(str(folder), error)
            continue
        count += len(listed)
        if count > MAX_ENTRIES:
            yield unread(str(root), f"more than {MAX_ENTRIES} names in it")
            return
        inner = []
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                if entry.name in _VERSION_CONTROL:
                    yield not_ours(entry.path, "the history of the files, not the files")
                else:
                    inner.append(Path(entry.path))
            elif entry.is_symlink():
                yield from _linked(Path(entry.path), real)
            elif _is_read(entry.name, Path(entry.path)):
                yield Path(entry.path)
            else:
                yield other_kind(entry.path)
        folders.extend(reversed(inner))


def _linked(path: Path, real: Path) -> Iterator[Path | Entry]:
    try:
        target = path.resolve(strict=True)
        if target.is_dir():
            yield unread(str(path), "a symbolic link to a folder; it is not followed")
        elif not target.is_relative_to(real) and (kind_of(path.name) or not path.suffix):
            yield unread(str(path), "a symbolic link that leads out of the folder")
        elif not target.is_relative_to(real) or not _is_read(path.name, target):
            yield other_kind(str(path))
        else:
            yield path
    except (OSError, RuntimeError) as error:
        yield unread(str(path), f"a symbolic link that leads nowhere ({error})")


def read(path: Path) -> Text | Large | Entry:
    """The content of a regular file, or what became of it."""
    name = str(path)
    real = path
    try:
        real = path.resolve(strict=True) if path.is_symlink() else path
        data = read_file(real, MAX_FILE_BYTES)
    except OSError as error:
        return _failure(name, error)
    except UsageError as error:
        return Large(name, real, error.what) if _may_be_list(real) else unread(name, error.what)
    try:
        text = _decoded(data)
    except ValueError as error:
        return unread(name, str(error))
    is_script = kind_of(path.name) == "script" or text.startswith("#!")
    return Text(name, text, is_script)


def _may_be_list(path: Path) -> bool:
    try:
        info = path.stat()
    except OSError:
        return False
    is_large = MAX_FILE_BYTES < info.st_size <= MAX_LIST_BYTES
    return is_large and stat.S_ISREG(info.st_mode) and kind_of(path.name) == "manifest"


def _decoded(data: bytes) -> str:
    """The text of UTF-8, or of UTF-16 and UTF-32 with a byte order mark.

    Raises:
        ValueError: with what is wrong.
    """
    encoding = "utf-8"
    for mark, name in _MARKS:
        if data.startswith(mark):
            encoding = name
            break
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding.upper()}: byte {error.start}") from error
    if "\0" in text:
        raise ValueError("it holds a zero byte: no text, or UTF-16 without a byte order mark")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8"),
)


def _failure(path: str, error: OSError) -> Entry:
    denied = isinstance(error, PermissionError)
    help_ = "run the audit as a user who may read it" if denied else ""
    return unread(path, error.strerror or str(error), help=help_)


def holds_scripts(name: str) -> bool:
    """Return whether a file of this name holds scripts that `scripts` finds."""
    path = Path(bare(Path(name).name))
    return bool(_DOCKERFILE.search(path.name)) or path.suffix in {".def", ".tf", ".hcl"}


class ManifestError(Exception):
    """A text that cannot be read, and its line of the file."""

    def __init__(self, what: str, line: int, *, is_large: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.is_large = is_large
        """Whether it has too many values, and nothing else is wrong so far."""


# --- names ---------------------------------------------------------------------------------------


def bare(name: str) -> str:
    """The name of a file without endings of templates, examples and copies, in lower case."""
    name = name.lower()
    while True:
        stem, dot, ending = name.rpartition(".")
        if dot and stem and dot + ending in _SUFFIXES:
            name = stem
        elif (cut := _DASHED.sub("", name)) != name:
            name = cut
        else:
            return name


@dataclass(slots=True)
class OwnNames:
    """Gives each of several things of one name a name of its own."""

    seen: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """The name, or ``NAME#2`` when it was there before."""
        self.seen[name] = count = self.seen.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


# --- documents of a strict schema ----------------------------------------------------------------


def read_document(path: Path, schema: type[T], *, limit: int, code: str, fix: str) -> T:
    """Read a file of at most `limit` bytes into `schema`.

    Raises:
        AuditError: `code`, with the file and the field.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    try:
        document = parse_yaml(read_file(path, limit).decode("utf-8"), str(path))
        return msgspec.convert(document, schema, strict=True)
    except PolicyError as error:
        raise AuditError(code, error.what, error.where, error.fix) from error
    except UnicodeDecodeError as error:
        raise AuditError(code, "not UTF-8", str(path), "save it as UTF-8") from error
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at ")
        raise AuditError(code, text, f"{path}: {at.strip('`') or 'top level'}", fix) from error
