# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script that averages gradients by itself: nothing is wrapped, so nobody watches."""

import sys

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(sys.argv[1])):
        model(torch.randn(8, 4)).square().sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    sys.stdout.write(f"{sys.argv[1]} steps\n")
    dist.destroy_process_group()


main()
