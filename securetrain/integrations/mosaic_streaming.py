# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""MosaicML Streaming over a signed dataset.

Rules, in order:

1. ``index.json`` is a file of the statement, and its bytes are verified before they are parsed;
2. a shard that the index names must be a plain ``.mds`` file of the statement, in the folder of the
   index, of the signed size. Compressed shards are refused (ST-USAG-015): Streaming would unpack
   them beside the dataset and read what lies there;
3. a column that holds pickles is refused (ST-DATA-190), whatever ``allow_unsafe_types`` says, and
   an encoding that is not known here is, too (ST-USAG-015);
4. every read of a sample goes through `Dataset.read`: offsets and bytes are verified before
   they are used. Nothing is copied to a cache, and nothing of the dataset is ever deleted.

Order, shuffling, resumption, mixing of streams and batches stay Streaming's own.
"""

from typing import Any

from securetrain.artifacts import Dataset
from securetrain.integrations.versions import framework


def signed_stream(data: Dataset, split: str = "", **options: Any) -> Any:
    """Make a ``streaming.Stream`` for ``StreamingDataset(streams=[...])``.

    Args:
        data: The dataset, open for as long as the stream is read.
        split: The folder of the index, as Streaming means it; empty for the dataset's own.
        options: Streaming's: ``proportion``, ``repeat`` or ``choose``.

    Raises:
        UsageError: ST-USAG-004 and ST-USAG-019 without mosaicml-streaming, ST-USAG-015 when the
            index is not one of plain MDS shards.
        IntegrityError: ST-DATA-190 for pickles; while reading, ST-DATA-122 to 200.
    """
    framework("mosaicml-streaming")
    # A module of its own, since its classes are made of Streaming's.
    from securetrain.integrations.verified_stream import VerifiedStream

    return VerifiedStream(data, split, **options)
