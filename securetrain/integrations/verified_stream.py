# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Streaming's own stream and reader, with the reads replaced by verified ones.

See `mosaic_streaming` for the rules. This module is imported where Streaming is there.
"""

import struct
from typing import Any, Final

from streaming.base.format.mds import MDSReader
from streaming.base.stream import Stream

from securetrain.artifacts import Dataset
from securetrain.integrations.mds_index import index_name, read_mds_index, shard_name

_NUMBER: Final = 4
"""Bytes of an offset at the beginning of a shard."""


class VerifiedReader(MDSReader):
    """A shard of a signed dataset."""

    data: Dataset

    def get_sample_data(self, idx: int) -> bytes:
        """The verified bytes of a sample.

        Raises:
            IntegrityError: ST-DATA-122 to 200.
        """
        name = shard_name(self.split, self.raw_data.basename)
        pair = self.data.read(name, (1 + idx) * _NUMBER, 2 * _NUMBER)
        begin, end = struct.unpack("<II", pair)
        return self.data.read(name, begin, end - begin)

    def evict(self) -> int:
        """Delete nothing: the files are the dataset's own."""
        return 0


class VerifiedStream(Stream):
    """The shards of a signed dataset."""

    def __init__(self, data: Dataset, split: str = "", **options: Any) -> None:
        """See `mosaic_streaming.signed_stream`."""
        super().__init__(local=str(data.path), split=split, **options)
        self._data = data
        read_mds_index(data, split)  # refused here, and not in a thread of Streaming's

    def get_shards(self, world: Any, allow_unsafe_types: bool) -> list[MDSReader]:  # noqa: ARG002, FBT001
        """The readers of the shards, by the verified index."""
        readers = []
        for one in read_mds_index(self._data, self.split):
            reader = VerifiedReader.from_json(self.local, self.split, one)
            reader.data = self._data
            readers.append(reader)
        return readers

    def prepare_shard(self, shard: Any) -> int:  # noqa: ARG002
        """Fetch nothing: the shard is there, and is verified as it is read."""
        return 0

    def set_up_local(self, shards: list[Any], cache_usage_per_shard: Any) -> None:
        """Delete nothing: every shard is present."""
        for number, shard in enumerate(shards):
            cache_usage_per_shard[number] = shard.get_raw_size()

    def get_index_size(self) -> int:
        """The signed size of the index."""
        return self._data.files[index_name(self.split)]
