# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Look through a file or directory for what a loader of weights would run.

Rules, in order:

1. every loader that a file's name or bytes invite is asked for, and the worst of what they would do
   counts: files are told apart by their bytes (`formats`), what is called like a pickle is read as
   one as well, and archives are opened, in archives too; links and special files are findings, and
   never followed;
2. every pickle in them is analysed (`pickles`), never loaded; so are the items of a checkpoint of
   torch.distributed.checkpoint, each at the place that its index names;
3. other formats are judged by what their loaders would run, call or read (`_JUDGES`);
4. what cannot be judged (of an unknown kind, the source of a program, encrypted, packed in an
   unknown way, too large, broken) is a finding, not a pass; a scan in which nothing was judged is
   one too, and so is a member that no maker of such an archive writes. Text, pictures and sound are
   nothing that a loader of weights runs;
5. an archive's two directories must agree, and a file must be of one format only: scanners and
   loaders read different ones otherwise.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from securetrain.artifacts.given import Folder, checked
from securetrain.artifacts.scan import configurations, programs, templates, weights
from securetrain.artifacts.scan.archives import (
    ArchiveError,
    Member,
    Take,
    tar_members,
    unpack,
    zip_members,
)
from securetrain.artifacts.scan.configurations import is_safe_target
from securetrain.artifacts.scan.findings import (
    CALLED,
    DATA,
    MALFORMED,
    NOTHING,
    PROGRAM,
    TWO_FORMATS,
    UNFOLLOWED,
    UNJUDGED,
    UNKNOWN_KIND,
    UNREADABLE,
    UNSAFE_GLOBAL,
    UNSAFE_NAME,
    BrokenError,
    Finding,
    Judged,
    Remark,
    ScanResult,
    UnjudgedError,
    merge_scans,
)
from securetrain.artifacts.scan.formats import (
    Format,
    Window,
    invited,
    is_pickle_name,
    may_be_pickle,
    recognise,
    whole,
)
from securetrain.artifacts.scan.pickles import Analysis, analyse
from securetrain.core.errors import UsageError
from securetrain.core.files import open_regular, survey

MAX_DEPTH: Final = 5
MAX_FINDINGS: Final = 1000
UNPACK_LIMIT: Final = 1 << 30
"""Bytes that one scan unpacks in all."""

_LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
"""What torch.save wrote first before it wrote zip archives (torch/serialization.py)."""
_LEGACY_PICKLES: Final = 5
_TAIL: Final = (64 << 10) + 22
_METADATA_NAMES: Final = (".metadata",)
_WITHOUT_SIGNATURE: Final = frozenset(
    {
        Format.UNKNOWN, Format.TEXT, Format.MEDIA, Format.SOURCE, Format.CONFIG, Format.TEMPLATE,
        Format.NOTEBOOK, Format.ONNX,
    }
)  # fmt: skip
"""Formats that bytes are only taken for while they are no pickle that attacks."""
_ARCHIVES: Final[Mapping[Format, Callable[[Window, Take], Iterator[Member]]]] = {
    Format.ZIP: zip_members,
    Format.TAR: lambda window, _take: tar_members(window),
}


def _template(window: Window, _name: str) -> Iterator[Remark]:
    text = whole(window, templates.LIMIT).decode("utf-8", "replace")
    for one in templates.judge(text):
        yield one._replace(offset=len(text[: one.offset].encode()))


_JUDGES: Final[Mapping[Format, Callable[[Window, str], Iterator[Remark]]]] = {
    Format.SAFETENSORS: weights.safetensors_remarks,
    Format.GGUF: lambda window, _name: weights.gguf_remarks(window),
    Format.ONNX: lambda window, _name: programs.onnx_remarks(window),
    Format.HDF5: lambda window, _name: weights.hdf5_remarks(window),
    Format.CONFIG: configurations.config_remarks,
    Format.TEMPLATE: _template,
    Format.NOTEBOOK: configurations.notebook_remarks,
}
"""The judge of each format that is no pickle and no archive."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes looked at so far and the bytes in all."""


@checked
def scan(path: Folder | Sequence[Folder], *, progress: Progress | None = None) -> ScanResult:
    """Tell what loaders of a file, or of all files in a directory, would run, call or read.

    Args:
        path: What to look at, or several. Nothing of it is loaded.
        progress: Called after each file with the bytes looked at so far, and the bytes in all.

    Raises:
        UsageError: ST-USAG-002 when there is nothing at `path`, ST-USAG-001 when it is no path.

    >>> [one.what for one in scan("model.pt").findings]
    ['it names os.system']
    """
    given = [path] if isinstance(path, Path | str) else path
    return merge_scans([scan_path(Path(one), progress=progress) for one in given])


def scan_path(path: Path, *, progress: Progress | None = None) -> ScanResult:
    """Scan a file or a directory.

    Args:
        path: What to look at.
        progress: Called after each file.

    Raises:
        UsageError: ST-USAG-002 when there is nothing at `path`.
    """
    if not path.is_symlink() and not path.exists():
        raise UsageError("ST-USAG-002", "there is nothing here", str(path))
    scan = _Scan(ScanResult(path=path), room=UNPACK_LIMIT)
    if path.is_symlink():
        scan.add(UNSAFE_NAME, "a symbolic link, which is never followed", "")
    elif path.is_dir():
        scan.directory(path, progress)
    else:
        scan.file(path, path.name)
    if not scan.result.findings and not scan.result.judged:
        scan.add(NOTHING, "nothing in it is of a format that holds weights or objects", "")
    return scan.result


_NO_MEMBER: Final = Member(name="")


@dataclass(slots=True)
class _Scan:
    result: ScanResult
    room: int
    """Bytes that may still be unpacked."""
    items: dict[str, list[weights.Item]] = field(default_factory=lambda: defaultdict(list))
    """What indexes name, by file."""
    data: set[str] = field(default_factory=set)
    """Files that others name as theirs, and read as numbers."""
    fd: int = -1
    """The file on disk that is looked at."""
    member: Member = _NO_MEMBER
    """The member of an archive that is looked at."""

    def add(
        self,
        code: str,
        what: str,
        file: str,
        offset: int | None = None,
        item: str = "",
        *,
        within: Window | None = None,
    ) -> None:
        """Note a finding; `offset` counts from the start of `within`."""
        if len(self.result.findings) >= MAX_FINDINGS:
            self.result.truncated = True
            return
        at = None
        if within is not None and within.fd == self.fd and offset is not None:
            at = within.start + offset
        finding = Finding(code=code, what=what, file=file, offset=offset, at=at, item=item)
        if finding not in self.result.findings:
            self.result.findings.append(finding)

    def directory(self, root: Path, progress: Progress | None) -> None:
        """Scan everything below a directory, indexes first."""
        try:
            files, unsafe = survey(root)
        except OSError as error:
            self.add(UNREADABLE, str(error.strerror or error), "")
            return
        for entry in unsafe:
            self.add(UNSAFE_NAME, f"{entry.reason}, which is never followed or read", entry.name)
        total, done = sum(entry.size for entry in files), 0
        for file in sorted(files, key=lambda file: (not _is_index(file.name), file.name)):
            self.file(root / file.name, file.name)
            done += file.size
            if progress is not None:
                progress(done, total)
        self.result.findings = [
            one
            for one in self.result.findings
            if not (one.code == UNKNOWN_KIND and one.file in self.data)
        ]

    def file(self, path: Path, name: str) -> None:
        """Scan one file."""
        try:
            fd = open_regular(path)
        except (OSError, UsageError) as error:
            text = error.what if isinstance(error, UsageError) else str(error.strerror or error)
            self.add(UNREADABLE, text, name)
            return
        try:
            window = Window.whole(fd)
            self.fd = fd
            self.result.num_bytes += window.size
            if _is_index(name):
                self.index(window, name)
            elif items := self.items.get(name):
                self.sharded(window, name, items)
            else:
                self.content(window, name)
        except OSError as error:
            self.add(UNREADABLE, str(error.strerror or error), name)
        finally:
            os.close(fd)

    def index(self, window: Window, name: str) -> None:
        """Scan ``.metadata`` and learn where the items are."""
        found = analyse(window)
        self.pickles(window, name, "", must_be=True, first=found)
        folder = PurePosixPath(name).parent
        try:
            for item in weights.read_items(window, found):
                self.items[str(folder / item.file)].append(item)
        except weights.UnreadableMetadataError as error:
            self.add(UNJUDGED, f"the places of its values are not known: {error}", name)

    def sharded(self, window: Window, name: str, items: Iterable[weights.Item]) -> None:
        """Scan the items of a ``.distcp`` file."""
        for item in items:
            try:
                part = window.part(item.offset, item.length)
            except ValueError as error:
                self.add(MALFORMED, f"the index names {error}", name, item.offset, item.name)
                continue
            self.content(part, name, item=item.name, must_be=True)

    def content(
        self, window: Window, name: str, depth: int = 0, item: str = "", *, must_be: bool = False
    ) -> None:
        """Scan bytes of any format."""
        found = recognise(window, name)
        if depth > MAX_DEPTH:
            self.add(
                UNJUDGED, f"archives in archives, more than {MAX_DEPTH} deep", name, None, item
            )
            return
        with self._noting(name, item):
            self._match(found, window, name, depth, item, must_be=must_be)
        named = invited(name)
        if named is not None and named is not found and window.size:
            self.remarks(_JUDGES[named](window, name), window, name, item)
        if found is Format.ZIP:
            # It begins with an opcode that asks for a persistent id: there unpicklers stop.
            return
        if found not in _WITHOUT_SIGNATURE | {Format.PICKLE}:
            self._also(found, window, name, item, sure=must_be or may_be_pickle(name))
        if _ends_as_zip(window):
            self.add(TWO_FORMATS, f"{found} at its start, a zip archive at its end", name, 0, item)

    def _also(self, found: Format, window: Window, name: str, item: str, *, sure: bool) -> None:
        """Read what is of another format as an unpickler would, to where every one stops."""
        pickle = analyse(window)
        runs = pickle.alarming or pickle.unfollowed or pickle.callers or not pickle.stops
        if _is_attack(pickle) or (sure and runs):
            self.add(TWO_FORMATS, f"{found}, and a pickle as well", name, 0, item, within=window)
            self._report(pickle, window, name, item)

    @contextmanager
    def _noting(self, name: str, item: str) -> Iterator[None]:
        """Make findings of what is raised about content."""
        try:
            yield
        except UnjudgedError as error:
            self.add(UNJUDGED, str(error), name, None, item)
        except BrokenError as error:
            self.add(MALFORMED, f"malformed: {error}", name, None, item)
        except ArchiveError as error:
            self.add(error.code, str(error), name, None, item)

    def _match(  # noqa: C901, PLR0912 - one case a format
        self, found: Format, window: Window, name: str, depth: int, item: str, *, must_be: bool
    ) -> None:
        if found in _WITHOUT_SIGNATURE:
            sure = must_be or is_pickle_name(name)
            first = analyse(window)
            too = may_be_pickle(name) and (first.alarming or first.unfollowed)
            if sure or too or _is_attack(first):
                self.pickles(window, name, item, must_be=sure, first=first)
                return
            if window.size == 0:
                self._pass_over(name)
                return
        match found:
            case Format.PICKLE:
                self.pickles(window, name, item, must_be=True)
            case Format.TEXT | Format.MEDIA:
                self._pass_over(name)
            case Format.UNKNOWN | Format.SOURCE:
                what = "bytes of no known format" if found is Format.UNKNOWN else str(found)
                self.add(UNKNOWN_KIND, what, name, None, item)
            case Format.ZIP | Format.TAR:
                self.archive(_ARCHIVES[found](window, self._take), found, name, depth, item)
            case Format.NUMPY:
                self.judged(name, found)
                offset = weights.numpy_pickle(window)
                if offset is not None:
                    self.pickles(
                        window.part(offset, window.size - offset), name, item, must_be=True
                    )
            case Format.GZIP | Format.BZIP2 | Format.XZ | Format.ZLIB:
                with unpack(window, found, self._take) as inner:
                    self.content(inner, name + "!" + PurePosixPath(name).stem, depth + 1, item)
            case Format.PACKED:
                raise UnjudgedError(str(found))
            case Format.ELF:
                self.add(PROGRAM, "machine code", name, None, item)
            case _:
                self.judged(name, found)
                self.remarks(_JUDGES[found](window, name), window, name, item)

    def remarks(self, remarks: Iterable[Remark], window: Window, name: str, item: str = "") -> None:
        """Note what a judge of one format has to say."""
        with self._noting(name, item):
            for one in remarks:
                if one.code == DATA:
                    self.data.add(str(PurePosixPath(name).parent / one.what))
                    continue
                self.add(one.code, one.what, name, one.offset, item, within=window)

    def archive(
        self, members: Iterable[Member], found: Format, name: str, depth: int, item: str
    ) -> None:
        """Scan the members of an archive."""
        self.judged(name, found)
        outer = self.member
        for self.member in members:
            member, inside = self.member, f"{name}!{self.member.name}"
            if member.problem:
                self.add(UNJUDGED, member.problem, inside, None, item)
            elif not member.is_known:
                self.add(UNKNOWN_KIND, "no loader of such an archive is known to read it", inside)
            if member.window is None or member.is_raw:
                continue
            if member.judge is not None:
                self.judged(inside, Format.SOURCE)
                self.remarks(member.judge(member.window), member.window, inside, item)
            else:
                self.content(member.window, inside, depth + 1, item)
        self.member = outer

    def pickles(
        self,
        window: Window,
        name: str,
        item: str,
        *,
        must_be: bool,
        first: Analysis | None = None,
    ) -> None:
        """Scan one pickle, and those that follow it in the same bytes.

        Args:
            window: The bytes.
            name: For findings.
            item: For findings.
            must_be: Whether a loader takes these bytes for a pickle, so that none is a finding.
            first: What the analysis of the first one says, if that is known.
        """
        if window.size == 0 and must_be:
            self.add(MALFORMED, "an empty pickle", name, 0, item, within=window)
            return
        at, count, wanted = 0, 0, 1
        while at < window.size and count < wanted:
            found = first if first is not None and at == 0 else analyse(window, at)
            self._report(found, window, name, item)
            if found.problem:
                return
            count += 1
            at = found.end
            if count == 1 and _LEGACY_MAGIC in found.integers:
                wanted = _LEGACY_PICKLES
            elif wanted != _LEGACY_PICKLES and window.peek(at, 1) == b"\x80":
                wanted += 1

    def _pass_over(self, name: str) -> None:
        """Note a file that no loader takes for a pickle; members of archives are not listed."""
        if "!" not in name:
            self.result.passed_over.append(name)

    def _report(self, found: Analysis, window: Window, name: str, item: str) -> None:
        self.remarks(self._effects(found, window), window, name, item)
        self.judged(name, Format.PICKLE, found)

    def _effects(self, found: Analysis, window: Window) -> Iterator[Remark]:
        for unsafe, at in found.alarming.items():
            if not (self.member.scripted and unsafe.startswith("__torch__.")):
                yield Remark(UNSAFE_GLOBAL, f"it names {unsafe}", at)
        for at in found.unfollowed[:10]:
            yield Remark(UNFOLLOWED, "a global or text that cannot be followed", at)
        for key, target, at in found.callers[:10]:
            if not is_safe_target(target):
                yield Remark(CALLED, f"{key} names {target[:200]!r}, which a loader calls", at)
        yield from found.sizes[:20]
        for what, at in self._missing(found, window):
            yield Remark(MALFORMED, what, at)
        if found.too_large:
            what = f"too large or not to be followed: {found.problem}"
            yield Remark(UNJUDGED, what, found.end)
        elif found.problem:
            yield Remark(MALFORMED, f"it breaks off: {found.problem}", found.end)

    def _missing(self, found: Analysis, window: Window) -> Iterator[tuple[str, int]]:
        """Tell which of torch's storages are not as long as a pickle says.

        They are members of the pickle's archive, or come behind it in the same file.
        """
        said, there = sum(found.storages.values()), window.size - found.end
        if self.member.storages is None:
            if said > there and not self.member.scripted:
                yield f"storages of {said} bytes, {there} are there", found.end
            return
        for key, size in found.storages.items():
            have = self.member.storages.get(key, -1)
            if size != have:
                what = f"{have} are there" if have >= 0 else "it is not there"
                yield f"storage {key[:80]!r} of {size} bytes, {what}", found.end

    def judged(self, name: str, kind: Format, found: Analysis | None = None) -> None:
        """Note that something was looked at."""
        last = self.result.judged[-1] if self.result.judged else None
        if found is None:
            self.result.judged.append(Judged(name=name, format=kind))
        elif last is not None and last.name == name and last.format == kind:
            last.opcodes.update(found.opcodes)
            last.globals = tuple({*last.globals, *found.globals})
        else:
            self.result.judged.append(
                Judged(name=name, format=kind, globals=tuple(found.globals), opcodes=found.opcodes)
            )

    def _take(self, count: int) -> None:
        """Count bytes that were unpacked.

        Raises:
            UnjudgedError: there are too many.
        """
        self.room -= count
        if self.room < 0:
            raise UnjudgedError(f"more than {UNPACK_LIMIT} bytes when unpacked")


def _is_index(name: str) -> bool:
    base = PurePosixPath(name).name
    return base in _METADATA_NAMES or (base.startswith("__") and base.endswith(".metadata"))


def _is_attack(found: Analysis) -> bool:
    """Tell whether bytes that need not be a pickle are one that does something unsafe."""
    named = any(all(part.isidentifier() for part in name.split(".")) for name in found.alarming)
    return (named or bool(found.unfollowed)) and found.calls > 0


def _ends_as_zip(window: Window) -> bool:
    tail = window.peek(max(0, window.size - _TAIL), _TAIL)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        return False
    return int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail) - at - 22
