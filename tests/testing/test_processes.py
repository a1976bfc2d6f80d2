# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import re
import signal
import time

import pytest

from securetrain.testing.processes import RankError, run_ranks
from tests.tables import items
from tests.vocabulary import refused

pytestmark = pytest.mark.dist


def _sum_of_ranks(offset):
    import torch
    import torch.distributed as dist

    value = torch.tensor([float(dist.get_rank() + offset)], requires_grad=True)
    (value * 2).sum().backward()  # autograd works after the fork
    dist.all_reduce(value.data)
    assert value.grad is not None
    return float(value), float(value.grad)


def _fail_on_rank_1():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise KeyError("the reason")
    return dist.get_rank()


def _end_rank_1(how):
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os._exit(9) if how == "status" else os.kill(os.getpid(), signal.SIGSEGV)
    return dist.get_rank()


def _hang():
    time.sleep(600)


def test_every_rank_gives_its_result():
    assert run_ranks(_sum_of_ranks, 2, 10) == [(21.0, 2.0), (21.0, 2.0)]


def test_a_rank_that_raises_is_reported_with_its_traceback():
    refused(RankError, r"rank 1:[\s\S]*the reason", run_ranks, _fail_on_rank_1, 2)


@items(
    "how, said",
    ("status", "rank 1 ended with status 9 and without a result"),
    ("signal", "rank 1 was ended by Segmentation fault (signal 11)"),
)
def test_a_rank_that_dies_is_reported_with_its_end(how, said):
    refused(RankError, re.escape(said), run_ranks, _end_rank_1, 2, how)


def test_ranks_that_hang_are_killed():
    refused(RankError, r"ranks \[0, 1\] did not finish", run_ranks, _hang, 2, timeout=4)
