# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tables of sketches without a model: what a detector reads, drawn at random."""

import numpy as np

from securetrain.guard.detector import Detector
from securetrain.guard.rows import StepRows


class Simulated:
    """Honest ranks: a slowly turning mean and heavier noise, under fresh signs in each step.

    Gradients are (groups, ranks, k); `optional` is the name of a group that is absent in every
    third step.
    """

    def __init__(self, ranks, *, groups=6, k=64, seed=0, noise=2.0, optional=None, **options):
        self.ranks, self.noise, self.k = ranks, noise, k
        self.names = tuple(f"layers.{place}" for place in range(groups))
        self.generator = np.random.default_rng(seed)
        self.mean = self.draw(groups, k)
        self.momentum = np.zeros((groups, k))
        self.detector = Detector(ranks, **options)
        self.optional = optional
        self.offsets = np.zeros((groups, ranks, k))
        self.step = 0

    def draw(self, *shape):
        return self.generator.standard_normal(shape)

    def honest(self):
        self.mean = 0.97 * self.mean + 0.25 * self.draw(*self.mean.shape)
        loud = np.exp(0.15 * self.draw(1, self.ranks, 1))
        noise = self.draw(len(self.names), self.ranks, self.k)
        return self.mean[:, None] + self.noise * loud * noise + self.offsets

    def observe(self, gradients, *, momentum=True):
        sign = np.where(self.draw(len(self.names), self.k) > 0, 1.0, -1.0)
        keep = [
            place
            for place, name in enumerate(self.names)
            if name != self.optional or self.step % 3 != 1
        ]
        known = momentum and self.step > 0
        seen = self.detector.observe(
            StepRows(
                groups=tuple(self.names[place] for place in keep),
                gradients=(gradients * sign[:, None])[keep],
                momentum=(self.momentum * sign)[keep] if known else None,
            )
        )
        use = [rank for rank in range(self.ranks) if rank not in seen.excluded]
        if use:
            self.momentum = 0.9 * self.momentum + 0.1 * gradients[:, use].mean(axis=1)
        self.step += 1
        return seen

    def run(self, steps, attack=None, *, start=0, stop=None):
        """Assessments of `steps` steps; the attack bends them from `start` to `stop`."""
        seen = []
        for step in range(steps):
            gradients = self.honest()
            if attack is not None and start <= step < (stop or steps):
                attack(gradients, self)
            seen.append(self.observe(gradients))
        return seen
