# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks: gradients with a drifting mean and power-law noise, sketched as in a job."""

import dataclasses
import math

import pytest
import torch

from securetrain.guard.outliers import Detector
from securetrain.guard.sketch import derive, shape_for, sketch


class Simulation:
    """`ranks` honest gradients a step; the mean's length relative to the noise is `signal`."""

    def __init__(self, ranks, *, signal=3.0, power=0.5, seed=0, dimension=3000):
        self.ranks, self.signal, self.dimension = ranks, signal, dimension
        self.generator = torch.Generator().manual_seed(seed)
        self.shape = shape_for(ranks)
        spectrum = torch.arange(1, self.dimension + 1).float() ** -power
        self.spectrum = spectrum / spectrum.norm()
        self.mean = self.noise()
        self.window = self._parameters(b"w" * 32)
        self.step = 0
        self.detector = Detector(ranks, warmup_steps=20, threshold=8.0)

    def noise(self, *size):
        return torch.randn(*size, self.dimension, generator=self.generator) * self.spectrum

    def _parameters(self, seed):
        one = derive(seed, "chunk", numel=self.dimension, parts=1, shape=self.shape)
        signs = one.block_signs.expand(self.ranks, -1, -1, -1)
        return dataclasses.replace(one, parts=self.ranks, block_signs=signs)

    def honest(self):
        self.mean = 0.98 * self.mean + 0.2 * self.noise()
        falling = self.signal * (1 - 0.7 * min(1.0, self.step / 200))
        gradients = self.mean / self.mean.norm() * falling + self.noise(self.ranks)
        self.step += 1
        return gradients * (3 * math.exp(-self.step / 100) + 0.5)

    def fresh(self):
        draw = torch.randint(0, 256, (32,), generator=self.generator, dtype=torch.uint8)
        return self._parameters(bytes(draw.tolist()))

    def observe(self, gradients, fresh=None):
        flat = gradients.flatten()
        fresh_rows = sketch(flat, fresh or self.fresh()).float().double()
        window_rows = sketch(flat, self.window).float().double()
        return self.detector.observe(fresh_rows, window_rows, self.shape)

    def run(self, attack=None, *, steps=80, start=50):
        """Assessments from `start` on; the attack replaces rank 1's gradient."""
        seen = []
        for step in range(steps):
            gradients = self.honest()
            if attack is not None and step >= start:
                gradients[1] = attack(self, gradients)
            assessment = self.observe(gradients)
            if step >= start:
                seen.append(assessment)
        return seen


@pytest.fixture
def simulation():
    return Simulation
