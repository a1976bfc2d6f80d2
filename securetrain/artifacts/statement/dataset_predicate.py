# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The predicate of a dataset, and the rules that its schema cannot express.

Rules, in order:

1. there is a file, and a split; splits have distinct names and name listed files, each once;
2. with a previous version: the version number is greater by one, the files that were there before
   are there unchanged or with more at their end, and the proof of that leads from the old root of
   the file list to the new one (RFC 6962 over the files in the order in which they were added; a
   file that has grown is an entry of its own beside what it was before);
3. the history of a file that has grown is one of growth: later versions, more bytes. That its bytes
   begin with what they were is shown by its tree (`datasets.growth`);
4. what was removed lies inside listed files, and is sorted.
"""

import hashlib
from collections.abc import Collection, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from securetrain.artifacts.tree.layout import Count, Hex32, Text, Time, TreeInfo
from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity.log import hashes_of, merkle

MAX_REMOVED: Final = 1_000_000
MAX_LISTED: Final = 4096


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """A part of a predicate; its fields are in camel case in the file."""


class Stage(_Part, frozen=True, omit_defaults=True):
    """A file as it was before it grew."""

    size: Count
    root: Hex32
    added: Count = 0
    """The version of the dataset that brought it to this size."""


class DataFile(_Part, frozen=True, omit_defaults=True):
    """A dataset's file."""

    name: Text
    size: Count
    root: Hex32
    added: Count = 0
    """The version of the dataset that brought it, or brought it to this size."""
    before: Annotated[list[Stage], Meta(max_length=MAX_LISTED)] = []
    """What it was in earlier versions, oldest first; its bytes begin with those of each."""

    @property
    def arrived(self) -> int:
        """The version that brought its first bytes."""
        return self.before[0].added if self.before else self.added

    @property
    def stages(self) -> list[Stage]:
        """The file as it was, and as it is now."""
        return [*self.before, Stage(size=self.size, root=self.root, added=self.added)]


class Entry(NamedTuple):
    """A line of the append-only list that the file list is: a file at one of its sizes."""

    added: int
    name: str
    size: int
    root: str


class Split(_Part, frozen=True):
    """A named part of a dataset: its files in reading order, and its table of documents."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\Z")]
    files: list[Text]
    documents: Text = ""
    """Name of the file that lists the documents in `files`; empty when there is none."""


class DataFormat(StrEnum):
    """The layout of samples in the files."""

    RAW = "raw"
    JSONL = "jsonl"
    PARQUET = "parquet"
    WEBDATASET = "webdataset"
    MDS = "mds"


class Verdict(StrEnum):
    """The verdict of a scan of the data."""

    CLEAN = "clean"
    FINDINGS = "findings"


class Scan(_Part, frozen=True):
    """A scan of the data by some tool: for malware, personal data, poisoning, licences."""

    tool: Text
    version: Text
    verdict: Verdict
    result: Hex32
    """SHA-256 of the tool's report."""
    policy: Text = ""


class SampleIndex(_Part, frozen=True):
    """The tree over the samples, so that one sample can be proven to be in the dataset or not."""

    files: Annotated[list[Text], Meta(min_length=1, max_length=65536)]
    """Listed files with one line a sample (`datasets.samples`), in the order of their arrival."""
    count: Count
    root: Hex32
    """RFC 6962 over the lines, in their order."""


class Previous(_Part, frozen=True):
    """The version before this one, and why this one holds all of it."""

    digest: Hex32
    num_files: Count
    """Entries of its file list; a file that has grown has several."""
    files_root: Hex32
    proof: Annotated[list[Hex32], Meta(max_length=64)]
    """RFC 6962 consistency proof from `files_root` to this version's root of the file list."""


class Removed(_Part, frozen=True):
    """Bytes that must not be read any more, though they are still there."""

    file: Text
    offset: Count
    length: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    sample: Text = ""
    reason: Text = ""


class DatasetPredicate(_Part, frozen=True, omit_defaults=True):
    """The content of a dataset's signature."""

    name: Text
    seq: Count
    created: Time
    tree: TreeInfo
    files: list[DataFile]
    splits: list[Split]
    metadata: dict[str, Text] = {}
    format: DataFormat = DataFormat.RAW
    licenses: Annotated[list[Text], Meta(max_length=MAX_LISTED)] = []
    """SPDX expressions."""
    sources: Annotated[list[Text], Meta(max_length=MAX_LISTED)] = []
    """Where the data came from."""
    scans: Annotated[list[Scan], Meta(max_length=MAX_LISTED)] = []
    croissant: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """SHA-256 of the dataset's Croissant description; empty when there is none."""
    samples: SampleIndex | None = None
    previous: Previous | None = None
    removed: Annotated[list[Removed], Meta(max_length=MAX_REMOVED)] = []


def in_order_of_arrival(files: Sequence[DataFile]) -> list[DataFile]:
    """The files by the version that brought them, then by name."""
    return sorted(files, key=lambda file: (file.arrived, file.name))


def entries(files: Sequence[DataFile]) -> list[Entry]:
    """The append-only list behind the file list: what versions added, the oldest first."""
    return sorted(
        Entry(stage.added, file.name, stage.size, stage.root)
        for file in files
        for stage in file.stages
    )


def file_hashes(files: Sequence[DataFile]) -> list[bytes]:
    """The leaves of the tree over the file list."""
    return [
        merkle.leaf_hash(canonical.encode([entry.name, entry.size, entry.root]))
        for entry in entries(files)
    ]


def files_root(files: Sequence[DataFile]) -> str:
    """The root of the tree over the file list, hex."""
    hashes = file_hashes(files)
    return merkle.root_hash(len(hashes), hashes_of(hashes)).hex()


def unsound(predicate: DatasetPredicate, names: Collection[str]) -> str:
    """The reason why a predicate breaks its rules; empty when it keeps them."""
    return (
        _unsound_splits(predicate, names)
        or _unsound_growth(predicate)
        or _unsound_removed(predicate)
    )


def _unsound_splits(predicate: DatasetPredicate, names: Collection[str]) -> str:
    if not names:
        return "it names no file"
    splits = [split.name for split in predicate.splits]
    if not splits or len(set(splits)) != len(splits):
        return "no splits, or two of one name"
    for split in predicate.splits:
        wanted = [*split.files, *([split.documents] if split.documents else [])]
        if not split.files or not set(names).issuperset(wanted):
            return f"split {split.name!r} names files that are not listed"
        if len(set(wanted)) != len(wanted):
            return f"split {split.name!r} names a file twice"
    if predicate.samples is not None and not set(names).issuperset(predicate.samples.files):
        return "a table of samples is not listed"
    return ""


def _unsound_growth(predicate: DatasetPredicate) -> str:
    if any(file.added > predicate.seq for file in predicate.files):
        return "a file came in a later version than this"
    for file in predicate.files:
        if any(
            old.size >= new.size or old.added >= new.added for old, new in pairwise(file.stages)
        ):
            return f"the history of {file.name!r} is not one of growth"
    listed, previous = entries(predicate.files), predicate.previous
    if previous is None:
        grown = any(file.before for file in predicate.files)
        return "a file has grown, and no version before is named" if grown else ""
    old_entries = [entry for entry in listed if entry.added < predicate.seq]
    if predicate.seq == 0 or len(old_entries) != previous.num_files:
        return "the files of the version before are not all there"
    try:
        merkle.check_consistency(
            previous.num_files,
            len(listed),
            bytes.fromhex(previous.files_root),
            bytes.fromhex(files_root(predicate.files)),
            [bytes.fromhex(one) for one in previous.proof],
        )
    except IdentityError as error:
        return f"the proof that nothing was changed does not hold: {error.what}"
    return ""


def _unsound_removed(predicate: DatasetPredicate) -> str:
    sizes = {file.name: file.size for file in predicate.files}
    ends: dict[str, int] = {}
    for one in predicate.removed:
        if one.file not in sizes or one.offset + one.length > sizes[one.file]:
            return f"removed bytes that are not in {one.file!r}"
        if one.offset < ends.get(one.file, 0):
            return "what was removed is not sorted, or overlaps"
        ends[one.file] = one.offset + one.length
    return ""


def digest_of_report(report: bytes) -> str:
    """The digest of a tool's report, as a `Scan` names it."""
    return hashlib.sha256(report).hexdigest()
