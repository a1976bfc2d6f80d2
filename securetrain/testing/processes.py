# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Several gloo ranks for the price of one torch import.

::

    from securetrain.testing.processes import run_ranks

    def exchange(value: int) -> list[int]:  # a module-level function
        ...                                 # torch.distributed is initialized here

    assert run_ranks(exchange, 4, 7) == [...]  # one result for each rank

The ranks are forked from a server process that imported torch once for the whole test session, meet
through a file and talk over loopback. A rank that raises, dies or hangs fails the call with its
traceback, and every rank is killed before it returns.
"""

from securetrain.drills import PRELOAD, RankError, run_ranks

__all__ = ["PRELOAD", "RankError", "run_ranks"]
