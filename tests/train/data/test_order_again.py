# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verifier works out the rows of a step by itself, and comes to those that the trainer reads."""

import random

from securetrain.train.data.order import EpochOrder, Order, RandomOrder
from securetrain.train.data.rows import Rows


def test_the_verifiers_order_is_the_trainers():
    draw = random.Random(11)
    for _ in range(60):
        seed, places = draw.randrange(1 << 53), draw.choice([1, 2, 3, 17, 4096, 10**6 + 3])
        batch, length = draw.choice([1, 4, 7]), draw.choice([8, 33])
        made = Rows.__new__(Rows)
        made.seq_len = length
        orders: list[Order] = [
            RandomOrder(seed=seed, split="train", starts=places),
            EpochOrder(
                seed=seed,
                split="train",
                windows=places,
                seq_len=length,
                batch_rows=batch,
                epochs=1 << 20,
                sequential=draw.random() < 0.3,
                where="",
            ),
        ]
        made._order = draw.choice(orders)
        again = made.described(batch)
        for step in (1, 2, draw.randrange(1, 1 << 16)):
            for row in range(batch):
                assert again.start(step, row) == made.start(step, row)
