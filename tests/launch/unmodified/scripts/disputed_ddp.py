# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A DDP script whose second rank knows the guard: it scales its row, and then denies what it sent.

Arguments: steps; optionally a moment of the dispute at which the third rank is killed: when it
sends its part (``reduce``), reads the table (``read``), or has signed its words (``sign``).
"""

# mypy: ignore-errors

import dataclasses
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIAR, START, KILLED = 1, 4, 2


def lie(step):
    from securetrain.guard import rereduction, watch

    encode, digest = watch.encode, rereduction.OpenReduction._digest

    def scaled(sketches):
        factor = 1.01 if step[0] == START else 1.0
        said = dataclasses.replace(
            sketches, parts=sketches.parts * factor, sent=sketches.sent * factor
        )
        return encode(said)

    def denied(own, kept, delivered):
        said = bytearray(digest(own, kept, delivered))
        said[32] ^= 1  # of its part for the first owner
        return bytes(said)

    watch.encode, rereduction.OpenReduction._digest = scaled, denied


def die(moment):
    from securetrain.guard import settlement, witness
    from securetrain.guard.rereduction import OpenReduction

    def killed(*_args, **_options):
        os.kill(os.getpid(), signal.SIGKILL)

    match moment:
        case "reduce":
            OpenReduction.run = killed
        case "read":
            settlement.rule = killed
        case "sign":
            witness.Witness._sign = killed


def main():
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), [0]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == LIAR:
        lie(step)
    if rank == KILLED and len(sys.argv) > 2:
        die(sys.argv[2])
    for step[0] in range(int(sys.argv[1])):
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step[0] + rank))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
