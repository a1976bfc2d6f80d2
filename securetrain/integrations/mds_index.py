# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The index of MDS shards, read from a signed dataset and judged before Streaming sees it.

See `mosaic_streaming` for the rules. Nothing here imports Streaming.
"""

from typing import Any, Final

import msgspec

from securetrain.artifacts import Dataset
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError, reason

INDEX: Final = "index.json"
INDEX_LIMIT: Final = 256 << 20
VERSION: Final = 2
PICKLES: Final = frozenset({"pkl"})
ENCODINGS: Final = frozenset(
    {
        *("bytes", "str", "int", "ndarray", "json"),
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "str_int", "str_float", "str_decimal"),
        *("pil", "jpeg", "jpeg_array", "jpegarray", "png"),
        *("list[pil]", "list[jpeg]", "list[png]"),
    }
)
"""What decodes to data alone; ``ndarray:int32:4`` and the like count by what stands before the
colon."""


class _File(msgspec.Struct, frozen=True):
    basename: str
    bytes: int


class _Shard(msgspec.Struct, frozen=True):
    column_encodings: list[str]
    column_names: list[str]
    format: str
    raw_data: _File
    samples: int
    compression: str | None = None
    zip_data: _File | None = None


class _Index(msgspec.Struct, frozen=True):
    version: int
    shards: list[Any]


def index_name(split: str) -> str:
    """The index of a split, as a file of the dataset."""
    return f"{split}/{INDEX}" if split else INDEX


def shard_name(split: str, basename: str) -> str:
    """A shard, as a file of the dataset."""
    return f"{split}/{basename}" if split else basename


def read_mds_index(data: Dataset, split: str) -> list[dict[str, Any]]:
    """Read what the index says of its shards, in Streaming's form.

    Raises:
        UsageError: ST-USAG-015.
        IntegrityError: ST-DATA-130 to 200.
    """
    name = index_name(split)
    where = f"{data.path}/{name}"
    size = data.files.get(name)
    if size is None or size > INDEX_LIMIT:
        problem = "there is no such file" if size is None else f"{size} bytes"
        raise _bad(problem, where)
    try:
        found = canonical.loads(data.read(name, 0, size), limit=INDEX_LIMIT, where=where)
        index = msgspec.convert(found, _Index)
        shards = [msgspec.convert(one, _Shard) for one in index.shards]
    except IntegrityError:
        raise
    except (SecureTrainError, msgspec.ValidationError) as error:
        raise _bad(reason(error), where) from error
    if index.version != VERSION:
        raise _bad(f"version {index.version} of the format", where)
    for one in shards:
        _judge(data, split, one, where)
    return index.shards


def _judge(data: Dataset, split: str, shard: _Shard, where: str) -> None:
    """Refuse what is not a plain shard of this dataset."""
    base = shard.raw_data.basename
    name = shard_name(split, base)
    if shard.format != "mds" or shard.compression or shard.zip_data:
        raise _bad(f"shard {base[:200]!r} is compressed, or in another format than MDS", where)
    if "/" in base or data.files.get(name) != shard.raw_data.bytes:
        raise _bad(f"shard {base[:200]!r} is no file of this dataset of that size", where)
    if len(shard.column_names) != len(shard.column_encodings) or shard.samples < 0:
        raise _bad(f"shard {base[:200]!r} has columns without a name or an encoding", where)
    for column, encoding in zip(shard.column_names, shard.column_encodings, strict=True):
        kind = encoding.partition(":")[0]
        if kind in PICKLES:
            raise IntegrityError(
                "ST-DATA-190", f"column {column[:100]!r} of shard {base[:200]!r} is pickled", where
            )
        if kind not in ENCODINGS:
            raise _bad(
                f"column {column[:100]!r} has the unknown encoding {encoding[:100]!r}", where
            )


def _bad(what: str, where: str) -> UsageError:
    return UsageError(
        "ST-USAG-015",
        f"not an index of MDS shards: {what}",
        where,
        "write the data with MDSWriter, without compression and with encodings other than pkl",
    )
