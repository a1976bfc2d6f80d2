# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run one function on several gloo ranks of this machine, importing torch once for all of them.

The ranks are forked from a server process that has torch and the trainer loaded and has used none
of it (autograd must not have run before a fork), so that four ranks cost one import. They meet
through a file and talk over loopback only. Everything that crosses is between a process and its
own children.
"""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, TypeVar

R = TypeVar("R")

PRELOAD: Final = (
    *("torch", "torch.distributed.fsdp", "torch.nn.parallel", "numpy"),
    # What training imports takes every rank as long as torch would; here it is imported once.
    "securetrain.train.run",
)
_GRACE: Final = 10.0


class RankError(RuntimeError):
    """A rank raised, died or ran out of time."""


def run_ranks(
    function: Callable[..., R], world_size: int, *args: Any, timeout: float = 60.0
) -> list[R]:
    """Call `function(*args)` on every rank inside an initialized gloo group.

    Args:
        function: A module-level function; it and `args` and its result must be picklable.
        world_size: How many ranks.
        args: Passed to every rank; `torch.distributed.get_rank()` tells them apart.
        timeout: Seconds for all of it, start included; also the group's own time-out.

    Returns:
        The results in rank order.

    Raises:
        RankError: With the traceback of the first rank that failed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        store = str(Path(folder) / "store")
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [
            context.Process(
                target=_rank_main,
                args=(function, args, rank, world_size, store, timeout, pipes[rank][1]),
                daemon=True,
            )
            for rank in range(world_size)
        ]
        try:
            for process, (_, sender) in zip(ranks, pipes, strict=True):
                process.start()
                sender.close()  # so that a rank that dies reads as end-of-file
            return _gather([pipe[0] for pipe in pipes], ranks, time.monotonic() + timeout)
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join(_GRACE)
                    process.close()
            for receiver, _ in pipes:
                receiver.close()


def _gather(
    receivers: "list[Connection[Any, Any]]", ranks: Sequence[BaseProcess], deadline: float
) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = [rank for rank in range(len(receivers)) if rank not in results]
        ready = wait([receivers[rank] for rank in waiting], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RankError(f"ranks {waiting} did not finish in time")
        for rank in waiting:
            if receivers[rank] not in ready:
                continue
            try:
                good, value = receivers[rank].recv()
            except EOFError:
                raise RankError(f"rank {rank} {_end_of(ranks[rank])}") from None
            if not good:
                raise RankError(f"rank {rank}:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(receivers))]


def _end_of(process: BaseProcess) -> str:
    process.join(_GRACE)
    status = process.exitcode
    if status is None:
        return "closed its pipe and goes on"
    if status < 0:
        return f"was ended by {signal.strsignal(-status)} (signal {-status})"
    return f"ended with status {status} and without a result"


def _rank_main(  # noqa: PLR0917 - Process passes them by position
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    store: str,
    timeout: float,
    sender: "Connection[Any, Any]",
) -> None:
    gc.freeze()  # what the server loaded is no rank's garbage; to look at it would copy its pages
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        import torch  # noqa: PLC0415 - already loaded by the server
        import torch.distributed as dist  # noqa: PLC0415

        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
        # A rank that ends at once would cut the connections that others are still making.
        dist.monitored_barrier()
        result = function(*args)
        dist.destroy_process_group()
        sender.send((True, result))
    except BaseException:  # noqa: BLE001 - whatever a rank ends with is reported by the parent
        sender.send((False, traceback.format_exc()))
    finally:
        sender.close()
        sys.stdout.flush()
        sys.stderr.flush()
