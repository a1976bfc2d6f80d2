# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tell what a target is, by names and the first bytes of files: for ``sign`` and ``verify`` alike.

Rules:

1. what is signed goes by the form of its signature. Nothing here verifies: it says which reader to
   ask, and a reader refuses what is not what it seemed;
2. a directory that nobody signed goes by its files. Two kinds in it that are signed in different
   ways are told both, and not signed (`Target.one`). Pictures and texts count as data where nothing
   else is there;
3. what git and the cache of Hugging Face keep at the top is left out (`LEFT_OUT`);
4. entries are looked at in the order of their names. No link is followed but the target's own path,
   and what is no regular file is not opened;
5. `check_whole` refuses, before anything is signed, what is not whole: a pointer of Git LFS, and an
   index that names a shard which is not there, or is not in the directory;
6. `check_same` refuses, before a signature is written, what changed while it was read. Pages that a
   process has mapped and writes to show no change until they are written back.
"""

import os
import re
import shlex
import stat
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, Literal, NoReturn, TypeAlias

from securetrain.artifacts.statement.saved_files import SUFFIX, Form, is_sidecar, sidecar
from securetrain.artifacts.tree import layout
from securetrain.artifacts.tree.layout import Problem
from securetrain.core import canonical
from securetrain.core.errors import UsageError, os_error
from securetrain.core.files import FileEntry, UnsafeEntry, open_regular, read_file, survey

LEFT_OUT: Final = (".cache/huggingface", ".git", ".gitattributes", ".github", ".gitignore")
"""At the top of a model. The stock tool of Model Signing leaves out all but the first."""
_CHANGING: Final = (".cache/huggingface/", ".git/")
Way: TypeAlias = Literal["dataset", "safetensors", "oms", "saved"]
"""A way of signing, by its flag."""
Survey: TypeAlias = tuple[list[FileEntry], list[UnsafeEntry]]
_MOST: Final = 1 << 10
"""Bytes of a pointer."""
_INDEX: Final = ".index.json"
_INDEX_LIMIT: Final = 64 << 20
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_HEAD: Final = 64
_TICK: Final = 20_000_000
"""Nanoseconds; changes within one may have the same time."""
_PACK: Final = b"oci-layout\0"
BUNDLE: Final = "model.sig"
_BUNDLES: Final = (".sig", ".sigstore.json")
_TRANSCRIPT: Final = re.compile(r"disputes/.*\.json|.*/[0-9a-f]{64}\.json", re.DOTALL)
_PICKLED: Final = re.compile(rb"PK\x03\x04|\x80[\x00-\x05]")
_SORTS: Final = {
    "parts": ".distcp",
    "weights": ".ckpt .gguf .h5 .keras .onnx .pt .pt2 .pth .safetensors",
    "data": ".arrow .jsonl .mds .npy .npz .parquet .tar .tfrecord .zst",
    "perhaps": ".csv .flac .gz .jpeg .jpg .mp3 .png .tsv .txt .wav",
}
_SUFFIXES: Final = {one: sort for sort, suffixes in _SORTS.items() for one in suffixes.split()}
_DOCUMENTS: Final = re.compile(r"(?i:licen[cs]e|merges|notice|readme|requirements|vocab)")


class TargetKind(StrEnum):
    """The kinds of targets, as people are told of them."""

    STORE = "a directory of a store"
    CHECKPOINT = "a checkpoint of securetrain"
    SAVED = "what a script has saved and signed"
    PACK = "a pack"
    TRANSCRIPT = "the transcript of a dispute"
    BUNDLE = "a Model Signing bundle"
    ADAPTER = "a PEFT adapter"
    FOLDER = "a Hugging Face folder"
    DISTRIBUTED = "a checkpoint of torch.distributed"
    SHARDED = "sharded weights"
    GGUF = "GGUF weights"
    WEIGHTS = "weights"
    DATASET = "a dataset"
    FILE = "a file"
    UNKNOWN = "no kind that is known"


_WAYS: Final[Mapping[TargetKind, Way]] = {
    TargetKind.CHECKPOINT: "safetensors",
    TargetKind.DISTRIBUTED: "saved",
    TargetKind.DATASET: "dataset",
    **dict.fromkeys((TargetKind.ADAPTER, TargetKind.FOLDER, TargetKind.SHARDED), "oms"),
    **dict.fromkeys((TargetKind.GGUF, TargetKind.WEIGHTS, TargetKind.FILE), "oms"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The kind of a target, and what tells it."""

    path: Path | str
    kind: TargetKind
    why: str
    is_signed: bool = False
    """Whether a statement is there that a trust root can be asked about."""
    others: tuple["Target", ...] = ()
    """Further kinds that its files tell, which are signed in other ways."""
    bundles: tuple[Path, ...] = ()
    """Files in it or beside it that may be its Model Signing bundle."""

    @property
    def family(self) -> layout.Kind:
        """The kind of the statement that it has, or lacks."""
        is_file = self.kind is TargetKind.FILE and _SUFFIXES.get(self.why) == "data"
        is_data = is_file or self.kind is TargetKind.DATASET
        return layout.Kind.DATASET if is_data else layout.Kind.CHECKPOINT

    @property
    def way(self) -> Way | None:
        """The way in which it is signed; None for what is not signed here."""
        return _WAYS.get(self.kind)

    @property
    def model(self) -> Path:
        """The signed one: it, the directory in which it and a bundle are, or a bundle's own."""
        path, bundle = Path(self.path), (*self.bundles, Path())[0]
        if path.is_dir() or not (self.kind is TargetKind.BUNDLE or bundle.name == BUNDLE):
            return path
        names = (bundle.with_name(bundle.name.removesuffix(one)) for one in _BUNDLES)
        return next((one for one in names if one != bundle and one.exists()), bundle.parent)

    @property
    def place(self) -> Path:
        """The place of its bundle when nobody says: in the directory, or beside the file."""
        path = Path(self.path)
        return path / BUNDLE if path.is_dir() else path.with_name(path.name + _BUNDLES[0])

    def __str__(self) -> str:
        """The kind, and why."""
        return f"{self.kind} ({self.why})"

    def one(self) -> Way:
        """The one way in which it is signed.

        Raises:
            UsageError: ST-USAG-001 for two kinds, or none; ST-USAG-005 for what is signed already.
        """
        if self.way is not None and not self.others:
            return self.way
        code, both = "ST-USAG-001", (self, *self.others)
        if self.kind is TargetKind.UNKNOWN:
            what = f"{self}: its files do not tell what it is"
            fix = "say it: --dataset, --safetensors, --oms or --saved"
        elif self.others:
            what = f"two kinds in one directory: {', and '.join(map(str, both))}"
            flags = " or ".join(f"--{one.way} for {one.kind}" for one in both)
            fix = f"say which: {flags}; or sign each in a directory of its own"
        else:
            code, fix = "ST-USAG-005", "securetrain verify says by whom"
            what = f"{self}: it is signed already"
        raise UsageError(code, what, printable(self.path), fix)

    def problems(self) -> list[Problem]:
        """The problems of what nobody signed; what may be its bundle is named."""
        what = f"{self} that nobody signed: there is no statement, and nothing says who made this"
        what += f"; {self._by_bundle()}" if self.bundles else ""
        found = [Problem(code=self.family.code(100), what=what)]
        if self.kind is TargetKind.DISTRIBUTED:
            what = "a checkpoint of torch's own format: loading it runs its pickles"
            found.append(Problem(code="ST-CKPT-190", what=what, file=layout.LEGACY_METADATA))
        return found

    def check_signed(self) -> None:
        """Refuse what has no statement, before anybody is asked for a trust root.

        Raises:
            IntegrityError: ST-CKPT-100 or ST-DATA-100.
            UsageError: ST-USAG-001 for a bundle, or where one is there.
        """
        if self.bundles:
            what = f"{self}, and nothing says whose signature counts"
            raise UsageError("ST-USAG-001", what, printable(self.path), self._by_bundle())
        if not self.is_signed:
            raise self.problems()[0].error(printable(self.path))

    def _by_bundle(self) -> str:
        model, bundle = (shlex.quote(printable(one)) for one in (self.model, self.bundles[0]))
        roots = "--public-key MAKER.pem (or --ca, or --identity with --issuer)"
        return f"{bundle} lies there: securetrain verify {model} --bundle {bundle} {roots}"


def guess(path: Path | str) -> Target:
    """Tell what a target is.

    Args:
        path: A path of this machine, or the URL of a store, which is not asked.

    Raises:
        UsageError: ST-USAG-002 nothing is there, or neither a directory nor a regular file.
    """
    if not isinstance(path, Path):
        return Target(path=path, kind=TargetKind.STORE, why="a URL", is_signed=True)
    with _reading(path):
        return _of_folder(path) if stat.S_ISDIR(path.stat().st_mode) else _of_file(path)


def bundle_of(path: Path) -> tuple[Path, Path]:
    """A model and its bundle, of which a target is either; or the place where it would be.

    Raises:
        UsageError: ST-USAG-001 for several; ST-USAG-002.
    """
    found = guess(path)
    if len(found.bundles) > 1:
        what = f"several may be its bundle: {', '.join(map(printable, found.bundles))}"
        raise UsageError("ST-USAG-001", what, printable(path), "say which: --bundle FILE")
    return found.model, found.bundles[0] if found.bundles else found.place


def check_whole(path: Path, left_out: Collection[str] | None = None) -> Survey:
    """Refuse what is not whole, whichever way it is to be signed (rule 5).

    Args:
        path: A directory, or a file.
        left_out: Names below a directory that are not signed; None where all that is in it is.

    Returns:
        Its files, and what no signed directory may hold.

    Raises:
        UsageError: ST-USAG-025 for a pointer, a shard that is not there, and where all is signed
            for what git or a cache changes; ST-USAG-008 for an index that is no JSON; ST-USAG-002.
    """
    with _reading(path):
        files, unsafe = _survey(path, left_out or ())
        sizes = _sizes(files, unsafe)
        for name, size in sizes.items():
            if left_out is None and name.startswith(_CHANGING):
                what = "git or a cache changes it, and this way of signing leaves nothing out"
                _refuse(what, path, name, "sign it with --oms, or a copy without these files")
            if 0 <= size <= _MOST and _head(path / name).startswith(_POINTER):
                what = "a pointer of Git LFS, and not the file that it stands for"
                _refuse(what, path, name, "get the files themselves: git lfs pull")
            if size >= 0 and name.endswith(_INDEX):
                _check_shards(path, name, sizes)
    if any(one.changed > time.time_ns() - _TICK for one in files):
        time.sleep(_TICK / 1e9)  # a change from now on has another time than the last one
    return files, unsafe


def check_same(path: Path, before: Iterable[FileEntry]) -> None:
    """Refuse what was written, moved or removed while it was read (rule 6).

    Args:
        path: A directory, or a file.
        before: Its files, as `check_whole` gave them.

    Raises:
        UsageError: ST-USAG-025 with the file; ST-USAG-002.
    """
    with _reading(path):
        for entry in before:
            there = (path / entry.name).lstat() if os.path.lexists(path / entry.name) else None
            now = there and (there.st_size, there.st_ctime_ns)
            if entry.size >= 0 and now != (entry.size, entry.changed):
                fix = "sign it when nothing writes to it, or a copy of it"
                _refuse("it changed while it was read", path, entry.name, fix)


def printable(path: Path | str) -> str:
    """A path as UTF-8, with bytes that are none escaped."""
    return str(path).encode(errors="backslashreplace").decode()


def _check_shards(path: Path, name: str, there: Container[str]) -> None:
    where = printable(path / name)
    index = canonical.loads(read_file(path / name, _INDEX_LIMIT), limit=_INDEX_LIMIT, where=where)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    for shard in sorted({str(one) for one in shards.values()} if isinstance(shards, dict) else ()):
        place, what = PurePosixPath(name).parent / shard, f"it names the shard {shard!r}, which is "
        if place.is_absolute() or ".." in place.parts:
            _refuse(f"{what}outside of the directory", path, name, "do not use it")
        if place.as_posix() not in there:
            _refuse(f"{what}not there", path, name, "get every shard that it names")


def _refuse(what: str, path: Path, name: str, fix: str) -> NoReturn:
    raise UsageError("ST-USAG-025", what, printable(path / name), fix)


def _of_file(path: Path) -> Target:
    whole, head = path.absolute(), _head(path.resolve())
    beside = [path.with_name(path.name + one) for one in _BUNDLES]
    found = Target(path=path, kind=TargetKind.FILE, why=path.suffix.lower() or "without a suffix")
    if any(map(os.path.lexists, (sidecar(whole, Form.FILE), *(p / SUFFIX for p in whole.parents)))):
        return replace(found, kind=TargetKind.SAVED, why="a statement is there", is_signed=True)
    if head.startswith(_PACK):
        return replace(found, kind=TargetKind.PACK, why="its first bytes", is_signed=True)
    if _TRANSCRIPT.fullmatch(f"{whole.parent.name}/{path.name}"):
        return replace(found, kind=TargetKind.TRANSCRIPT, why="its name", is_signed=True)
    if path.name.endswith(_BUNDLES) and head.startswith(b"{"):
        return replace(found, kind=TargetKind.BUNDLE, why="its name", bundles=(path,))
    if head.startswith(b"GGUF"):
        found = replace(found, kind=TargetKind.GGUF, why="its first bytes")
    return replace(found, bundles=_regular([*beside, path.with_name(BUNDLE)]))


def _of_folder(path: Path) -> Target:
    if os.path.lexists(path / layout.STATEMENT):
        kind = TargetKind.DATASET if os.path.lexists(path / layout.TREES) else TargetKind.CHECKPOINT
        return Target(path=path, kind=kind, why=layout.STATEMENT, is_signed=True)
    sizes = _sizes(*_survey(path, LEFT_OUT))
    whole, told = path.absolute(), list(_told(path, sizes))
    inside = [one for one in sizes if one == BUNDLE or one.endswith(_BUNDLES[1:])]
    beside = [whole.with_name(whole.name + one) for one in _BUNDLES if whole.name]
    bundles = _regular([*(path / one for one in inside if "/" not in one), *beside])
    tell = partial(Target, path=path, bundles=bundles)
    first, *more = (tell(kind=kind, why=_some(why)) for kind, why in told)
    others = tuple(one for one in more if one.way != first.way)
    return replace(first, is_signed=first.kind is TargetKind.SAVED, others=others)


def _told(path: Path, sizes: Mapping[str, int]) -> Iterator[tuple[TargetKind, Sequence[str]]]:
    """Rule 2: kinds, each with the names that tell it."""
    names = list(sizes)
    for kind, tells in (
        (TargetKind.SAVED, is_sidecar),
        (TargetKind.CHECKPOINT, lambda name: name.endswith(layout.LEAVES_SUFFIX)),
        (TargetKind.DATASET, lambda name: name.startswith(f"{layout.TREES}/")),
    ):
        if found := [name for name in names if tells(name)]:
            yield kind, found
            return
    sorts: dict[str, list[str]] = {sort: [] for sort in _SORTS}
    for name, size in sizes.items():
        if sort := _sort(path / name, size):
            sorts[sort].append(name)
    weights = sorts["weights"]
    if parts := [*({layout.LEGACY_METADATA} & set(names)), *sorts["parts"]]:
        yield TargetKind.DISTRIBUTED, parts
        weights = [one for one in weights if one.endswith((".safetensors", ".gguf"))]
    adapter = [one for one in names if one == "adapter_config.json" and weights]
    if adapter:
        yield TargetKind.ADAPTER, [*adapter, *weights]
        weights = [one for one in weights if "adapter" not in one]
    config = [one for one in names if one in {"config.json", "model_index.json"}]
    index = [one for one in names if one.endswith(_INDEX)]
    if weights:
        plain = (
            TargetKind.GGUF if all(one.endswith(".gguf") for one in weights) else TargetKind.WEIGHTS
        )
        kind = TargetKind.FOLDER if config else TargetKind.SHARDED if index else plain
        yield kind, [*config, *index, *weights]
    if sorts["data"]:
        yield TargetKind.DATASET, sorts["data"]
    elif not (weights or adapter or parts):
        yield (
            (TargetKind.DATASET, sorts["perhaps"])
            if sorts["perhaps"]
            else (TargetKind.UNKNOWN, names)
        )


def _sort(path: Path, size: int) -> str | None:
    """The sort of thing that a file is, by its name; many things are called .bin."""
    base, suffix = path.name.lower(), path.suffix.lower()
    if suffix == ".bin":
        is_model = "model" in base or (size > 0 and _PICKLED.match(_head(path)))
        return "weights" if is_model else "data"
    return None if suffix == ".txt" and _DOCUMENTS.match(base) else _SUFFIXES.get(suffix)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return printable(", ".join(names[:2])) + more if names else "nothing in it"


def _regular(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(one for one in dict.fromkeys(paths) if one.is_file() and not one.is_symlink())


def _survey(path: Path, left_out: Collection[str]) -> Survey:
    """All below a directory, or a file by no name."""
    if path.is_dir():
        return survey(path, left_out)
    info = path.lstat()
    return [FileEntry("", info.st_size if stat.S_ISREG(info.st_mode) else -1, info.st_ctime_ns)], []


def _sizes(files: Sequence[FileEntry], unsafe: Sequence[UnsafeEntry]) -> dict[str, int]:
    """Every file and link, in order, with its size; -1 of a link."""
    links = [(one.name, -1) for one in unsafe if one.reason.endswith(" link")]
    return dict(sorted([*((one.name, one.size) for one in files), *links]))


def _head(path: Path) -> bytes:
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(_HEAD)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        what = "there is no such directory or file"
        raise UsageError("ST-USAG-002", what, printable(path)) from error
    except OSError as error:
        raise os_error(error, printable(path)) from error
