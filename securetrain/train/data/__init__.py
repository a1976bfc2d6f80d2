# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens out of signed datasets.

From the bottom up: ``source`` verified bytes of a split; ``token_streams`` bytes and token
bins; ``documents`` and ``parquet`` texts; ``counts`` how many tokens each has; ``packing`` texts as
one stream; ``order`` where a row begins; ``rows`` rows; ``prefetch`` rows made ahead; ``open`` all
of it from a job.
"""

from securetrain.train.data.rows import Rows, RowSource, share
from securetrain.train.data.source import ByteSplit
from securetrain.train.data.token_streams import ByteTokens

__all__ = ["ByteSplit", "ByteTokens", "RowSource", "Rows", "share"]
