# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The places of the samples of a dataset, and the tree that proves one of them.

A table of samples has one line of canonical JSON a sample. The lines are the leaves of a tree
(RFC 6962), whose root is signed: a line and about 30 hashes prove to somebody who has the signed
statement, and not the data, that a sample is part of it. A sample's digest is BLAKE3 over its
bytes.
"""

import itertools
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO, Final

import msgspec
from blake3 import blake3
from msgspec import Meta

from securetrain.artifacts.statement.dataset_predicate import DataFormat, SampleIndex
from securetrain.artifacts.tree.layout import Count, Hex32, Problem, Text
from securetrain.core import canonical
from securetrain.core.errors import IdentityError, IntegrityError, UsageError, reason
from securetrain.identity.log import hashes_of, merkle

TABLE_PREFIX: Final = "securetrain-samples-"
LINE_LIMIT: Final = 64 << 10
MAX_SAMPLE: Final = 1 << 32
MDS_INDEX: Final = "index.json"
INDEX_LIMIT: Final = 256 << 20
PARQUET_MAGIC: Final = b"PAR1"

Open = Callable[[str], BinaryIO]
"""Opens a file of the dataset by its name."""


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of the table."""

    id: Text
    file: Text
    offset: Count
    length: Annotated[int, Meta(ge=0, le=MAX_SAMPLE)]
    digest: Hex32
    """BLAKE3 of the bytes, hex."""
    source: Text = ""
    license: Text = ""

    def line(self) -> bytes:
        """The line, without its end."""
        return canonical.encode(self)


class SampleProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The proof that a sample is in a dataset."""

    dataset: Hex32
    """The dataset's digest."""
    sample: Sample
    index: Count
    proof: Annotated[list[Hex32], Meta(max_length=merkle.MAX_PROOF)]


def table_name(seq: int) -> str:
    """The file that lists the samples which a version of a dataset brought."""
    return f"{TABLE_PREFIX}{seq:05d}.jsonl"


def detect(names: Sequence[str]) -> DataFormat:
    """The format of a dataset, by the names of its files; RAW unless all data files agree."""
    data = [name for name in names if not PurePosixPath(name).name.startswith(TABLE_PREFIX)]
    suffixes = {PurePosixPath(name).suffix.lower() for name in data}
    if any(PurePosixPath(name).name == MDS_INDEX for name in data) and ".mds" in suffixes:
        return DataFormat.MDS
    described = suffixes - {".md", ".txt", ".json", ""}
    known = {
        ".jsonl": DataFormat.JSONL,
        ".parquet": DataFormat.PARQUET,
        ".tar": DataFormat.WEBDATASET,
    }
    if len(described) == 1:
        return known.get(described.pop(), DataFormat.RAW)
    return DataFormat.RAW


@dataclass(frozen=True, slots=True)
class Stretch:
    """A sample's place, before its bytes were read."""

    id: str
    file: str
    offset: int
    length: int


def find(data_format: DataFormat, names: Sequence[str], opened: Open) -> Iterator[Stretch]:
    """The samples of some files, in their order. Formats without samples of their own have none.

    Raises:
        UsageError: ST-USAG-001 when a file is not in the format.
    """
    match data_format:
        case DataFormat.JSONL:
            readers = (_lines(name, opened) for name in _with_suffix(names, ".jsonl"))
        case DataFormat.WEBDATASET:
            readers = (_groups(name, opened) for name in _with_suffix(names, ".tar"))
        case DataFormat.MDS:
            readers = (_shards(name, opened) for name in names if _base(name) == MDS_INDEX)
        case DataFormat.PARQUET:
            readers = (_whole(name, opened) for name in _with_suffix(names, ".parquet"))
        case DataFormat.RAW:
            return
        case _:
            raise ValueError(f"unknown format {data_format!r}")
    for reader in readers:
        try:
            yield from reader
        except (tarfile.TarError, struct.error, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                "ST-USAG-001",
                f"not a dataset in {data_format} format: {error}",
                "",
                "name the format with --data-format, or repair the file",
            ) from error


def describe(
    stretches: Iterable[Stretch], opened: Open, *, source: str = "", license_name: str = ""
) -> Iterator[Sample]:
    """Read the samples and say what they are."""
    for name, group in itertools.groupby(stretches, key=lambda one: one.file):
        with opened(name) as file:
            size = _size(file)
            for one in group:
                file.seek(one.offset)
                left = size - one.offset
                data = file.read(min(one.length, max(0, left)))
                if len(data) != one.length:
                    raise UsageError(
                        "ST-USAG-001",
                        f"sample {one.id!r} ends after the file",
                        name,
                        "repair the file",
                    )
                yield Sample(
                    id=one.id,
                    file=one.file,
                    offset=one.offset,
                    length=one.length,
                    digest=blake3(data).hexdigest(),
                    source=source,
                    license=license_name,
                )


def index_of(files: Sequence[str], lines: Sequence[bytes]) -> SampleIndex:
    """The signed form of some tables, whose lines are given in the order of the files."""
    hashes = [merkle.leaf_hash(line) for line in lines]
    root = merkle.root_hash(len(hashes), hashes_of(hashes))
    return SampleIndex(files=list(files), count=len(lines), root=root.hex())


def parse(line: bytes, where: str) -> Sample:
    """One line of a table.

    Raises:
        IntegrityError: ST-DATA-101.
    """
    try:
        return canonical.decode(line, Sample, limit=LINE_LIMIT, canonical=True)
    except UsageError as error:
        raise Problem(
            "ST-DATA-101", f"a table of samples is false: {error.what}", where
        ).error() from error


def prove(dataset: str, lines: Sequence[bytes], index: int) -> SampleProof:
    """The proof of line number `index`.

    Raises:
        ValueError: there is no such line.
    """
    hashes = [merkle.leaf_hash(line) for line in lines]
    proof = merkle.inclusion_proof(index, len(hashes), hashes_of(hashes))
    return SampleProof(
        dataset=dataset,
        sample=parse(lines[index], ""),
        index=index,
        proof=[one.hex() for one in proof],
    )


def check(proof: SampleProof, dataset: str, signed: SampleIndex | None) -> Sample:
    """Check that a sample is in the dataset whose verified statement says `signed`.

    Args:
        proof: What somebody claims.
        dataset: The digest of the dataset whose statement was verified.
        signed: What that statement says of its samples.

    Raises:
        IntegrityError: ST-DATA-172.
    """
    try:
        if signed is None:
            raise _unproven("the dataset was signed without a table of samples")
        if proof.dataset != dataset:
            raise _unproven(f"the proof is about dataset {proof.dataset[:16]}")
        merkle.check_inclusion(
            merkle.leaf_hash(proof.sample.line()),
            proof.index,
            signed.count,
            [bytes.fromhex(one) for one in proof.proof],
            bytes.fromhex(signed.root),
        )
    except IdentityError as error:
        raise _unproven(reason(error)) from error
    return proof.sample


def _unproven(what: str) -> IntegrityError:
    return IntegrityError("ST-DATA-172", what)


def _base(name: str) -> str:
    return PurePosixPath(name).name


def _with_suffix(names: Sequence[str], suffix: str) -> list[str]:
    return [
        name
        for name in names
        if name.lower().endswith(suffix) and not _base(name).startswith(TABLE_PREFIX)
    ]


def _lines(name: str, opened: Open) -> Iterator[Stretch]:
    with opened(name) as file:
        offset = 0
        for number, line in enumerate(file):
            yield Stretch(f"{name}#{number}", name, offset, len(line))
            offset += len(line)


def _groups(name: str, opened: Open) -> Iterator[Stretch]:
    """WebDataset: members that share what stands before the first dot are one sample."""
    with opened(name) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        key, start, end = "", 0, 0
        for member in archive:
            if not member.isreg():
                raise ValueError(f"{name}: member {member.name!r} is no plain file")
            folder, _, rest = member.name.rpartition("/")
            this = f"{folder}/{rest.split('.', 1)[0]}" if folder else rest.split(".", 1)[0]
            if this != key and end:
                yield Stretch(f"{name}#{key}", name, start, end - start)
                start = end
            key = this
            end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if end:
            yield Stretch(f"{name}#{key}", name, start, end - start)


def _shards(name: str, opened: Open) -> Iterator[Stretch]:
    """MosaicML MDS: index.json names the shards; each begins with a table of offsets."""
    with opened(name) as file:
        size = _size(file)
        if size > INDEX_LIMIT:
            raise ValueError(f"{name} is larger than {INDEX_LIMIT} bytes")
        data = file.read(size)
    index: Any = canonical.loads(data, limit=INDEX_LIMIT, where=name)
    folder = name.rpartition("/")[0]
    for shard in index["shards"]:
        if shard.get("zip_data"):
            raise ValueError(f"{name}: compressed shards hold no samples that can be named")
        base = str(shard["raw_data"]["basename"])
        path = f"{folder}/{base}" if folder else base
        with opened(path) as file:
            size = _size(file)
            count = _number(file.read(4), path)
            if 4 * (count + 2) > size:
                raise ValueError(f"{path} is too short for {count} samples")
            if count != shard["samples"]:
                raise ValueError(f"{path} has {count} samples, its index says {shard['samples']}")
            table = file.read(4 * (count + 1))
            ends = struct.unpack(f"<{count + 1}I", table)
        for number, (begin, end) in enumerate(itertools.pairwise(ends)):
            if end < begin:
                raise ValueError(f"{path}: sample {number} ends before it begins")
            yield Stretch(f"{path}#{number}", path, begin, end - begin)


def _whole(name: str, opened: Open) -> Iterator[Stretch]:
    """Parquet: the file is the unit, because its columns are read together."""
    with opened(name) as file:
        size = _size(file)
        head = file.read(4)
        file.seek(max(0, size - 4))
        if head != PARQUET_MAGIC or file.read(4) != PARQUET_MAGIC:
            raise ValueError(f"{name} does not begin and end as Parquet does")
    yield Stretch(name, name, 0, size)


def _size(file: BinaryIO) -> int:
    """Bytes in a file, which is left at its start."""
    size = file.seek(0, 2)
    file.seek(0)
    return size


def _number(data: bytes, name: str) -> int:
    if len(data) != 4:
        raise ValueError(f"{name} is too short")
    return int(struct.unpack("<I", data)[0])
