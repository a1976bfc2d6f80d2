# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""WebDataset over a signed dataset.

Rules, in order:

1. a shard is a file that the statement names. Its bytes come from `Dataset.read`, so that
   they are verified before ``tarfile`` or webdataset parse any of them;
2. what was removed (tombstones) is left out: a removed sample ends where a tar header begins, so
   that what is left is a tar file. A removal that cuts a member refuses the shard (ST-DATA-122);
3. a member whose name ends like a pickle is refused (ST-DATA-190) or left out before any decoder
   sees it: webdataset's default decoders unpickle it, whatever it holds;
4. no handler of webdataset's is asked about a refusal: ``warn_and_continue`` would make it a gap in
   the data.

Everything else is webdataset's own: splitting, shuffling, expanding, grouping, and every stage that
is added behind.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from tarfile import BLOCKSIZE
from typing import Any, Final, Literal, TypeAlias

from securetrain.artifacts import Dataset
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.integrations.versions import framework

SHARDS: Final = (".tar", ".tar.gz", ".tgz")
PICKLES: Final = frozenset({"pkl", "pickle", "pyd", "pth", "pt", "ckpt", "joblib"})
"""Parts of a member's name for which webdataset, or torch's decoders beside it, unpickle."""

Stage: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
Item: TypeAlias = dict[str, Any]


def signed_webdataset(
    data: Dataset,
    split: str,
    *,
    shardshuffle: int = 0,
    seed: int = 0,
    pickles: Literal["refuse", "leave-out"] = "refuse",
    nodesplitter: Stage | None = None,
    workersplitter: Stage | None = None,
) -> Any:
    """Make webdataset's pipeline over the shards of a split; add your stages to it.

    Args:
        data: The dataset, open for as long as the pipeline is read.
        split: The split whose shards are read.
        shardshuffle: Shards in the shuffle's buffer; 0 for the order of the statement.
        seed: Of that shuffle.
        pickles: What is done with a member that is a pickle.
        nodesplitter: webdataset's ``split_by_node`` when None.
        workersplitter: webdataset's ``split_by_worker`` when None.

    Raises:
        UsageError: ST-USAG-004 and ST-USAG-019 without webdataset, ST-USAG-015 when the split has
            no shards. While reading: ST-USAG-001 when a worker gets no shard.
        IntegrityError: While reading, ST-DATA-122 to 200.
    """
    webdataset: Any = framework("webdataset")
    names = shards_of(data, split)
    stages = [
        _Names(names),
        nodesplitter or webdataset.split_by_node,
        workersplitter or webdataset.split_by_worker,
    ]
    if shardshuffle:
        stages.append(webdataset.shuffle(shardshuffle, seed=seed))
    stages += [
        _Expand(data, webdataset.tariterators.tar_file_expander, len(names)),
        _Group(webdataset.tariterators.group_by_keys),
        _WithoutPickles(leave_out=pickles == "leave-out"),
    ]
    pipeline = webdataset.compat.FluidWrapper(stages[0])
    for stage in stages[1:]:
        pipeline.append(stage)
    return pipeline


def shards_of(data: Dataset, split: str) -> tuple[str, ...]:
    """The tar files of a split, in the order of the statement.

    Raises:
        UsageError: ST-USAG-015 when there are none.
    """
    names = tuple(name for name in data.splits.get(split, ()) if name.lower().endswith(SHARDS))
    if not names:
        raise UsageError(
            "ST-USAG-015",
            f"split {split!r} has no tar files",
            str(data.path),
            f"name one of {', '.join(data.splits)}, of a dataset of WebDataset shards",
        )
    return names


@dataclass(frozen=True, slots=True)
class _Names:
    """The first stage: names of shards, in webdataset's form."""

    names: tuple[str, ...]

    def __call__(self) -> Iterator[Item]:
        for name in self.names:
            yield {"url": name}


@dataclass(frozen=True, slots=True)
class _Expand:
    """The stage that opens shards and reads their members, by webdataset's own function."""

    data: Dataset
    expander: Callable[[list[Item]], Iterator[Item]]
    num_shards: int

    def __call__(self, source: Iterator[Item]) -> Iterator[Item]:
        count = 0
        for one in source:
            name = one["url"]
            stream = io.BufferedReader(KeptFile(self.data, name), buffer_size=1 << 20)
            yield from self.expander([{"url": name, "stream": stream}])
            count += 1
        if not count:
            raise UsageError(
                "ST-USAG-001",
                f"a worker got none of the {self.num_shards} shards",
                str(self.data.path),
                "use fewer workers and ranks than there are shards, or write smaller shards",
            )


@dataclass(frozen=True, slots=True)
class _Group:
    """The stage that makes samples of members, by webdataset's own function."""

    group: Callable[[Iterator[Item]], Iterator[Item]]

    def __call__(self, source: Iterator[Item]) -> Iterator[Item]:
        return self.group(source)


@dataclass(frozen=True, slots=True)
class _WithoutPickles:
    """The stage that lets no pickle through."""

    leave_out: bool

    def __call__(self, source: Iterator[Item]) -> Iterator[Item]:
        for sample in source:
            found = pickled(sample)
            if found and not self.leave_out:
                raise IntegrityError(
                    "ST-DATA-190",
                    f"sample {str(sample['__key__'])[:200]!r} has the member {found[0][:60]!r}",
                    str(sample["__url__"]),
                )
            yield {name: value for name, value in sample.items() if name not in found}


class KeptFile(io.RawIOBase):
    """A shard without the samples that were removed from it; every byte is verified."""

    def __init__(self, data: Dataset, name: str) -> None:
        """Open a shard.

        Raises:
            IntegrityError: ST-DATA-122 when a removal cuts a member, or the shard is compressed.
        """
        super().__init__()
        size = data.files[name]
        self.name = name
        self._data = data
        self._ranges = data.removals.kept(name, size)
        ends = {at for begin, end in self._ranges for at in (begin, end)} - {size}
        if any(at % BLOCKSIZE for at in ends) or (ends != {0} and not name.endswith(".tar")):
            data.removals.check(name, 0, size, str(data.path))

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer with verified bytes; how many there were.

        Raises:
            IntegrityError: ST-DATA-130 to 200.
        """
        view = memoryview(buffer).cast("B")
        if not self._ranges or not view:
            return 0
        begin, end = self._ranges[0]
        count = min(len(view), end - begin)
        view[:count] = self._data.read(self.name, begin, count)
        self._ranges[0] = (begin + count, end)
        if begin + count == end:
            del self._ranges[0]
        return count


def pickled(sample: Mapping[str, Any]) -> list[str]:
    """The members of a sample that decoders would unpickle."""
    return [name for name in sample if not PICKLES.isdisjoint(name.lower().split("."))]
