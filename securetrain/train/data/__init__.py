# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens out of signed datasets.

From the bottom up: ``source`` verified bytes of a split; ``token_streams`` bytes and token
bins; ``documents`` and ``parquet`` texts; ``counts`` how many tokens each has; ``packing`` texts as
one stream; ``order`` where a row begins; ``rows`` rows; ``prefetch`` rows made ahead; ``open`` all
of it from a job.

Share the rows of a step among ranks, without a message:

>>> from securetrain.train.data import share
>>> [share(8, rank, 4) for rank in range(4)]
[range(0, 2), range(2, 4), range(4, 6), range(6, 8)]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
