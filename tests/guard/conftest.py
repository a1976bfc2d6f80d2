# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks: gradients with a drifting mean and power-law noise, sketched as in a job.

The directions of the power law are no coordinates, as in a network: a few coordinates that carried
most of a gradient would each have a sketch number to themselves.
"""

import math

import pytest
import torch

from securetrain.guard.outliers import Detector
from securetrain.guard.sketch import derive, shape_for, sketch


def mix(x):
    """The same vectors in other coordinates: signs, then a Walsh-Hadamard transform."""
    return _hadamard(x * _some_signs(x.shape[-1]))


def unmix(x):
    """The inverse of `mix`."""
    return _hadamard(x) * _some_signs(x.shape[-1])


def _some_signs(size):
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(5)) * 2 - 1


def _hadamard(x):
    size, half = x.shape[-1], 1
    while half < size:
        a, b = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack([a + b, a - b], dim=-2).flatten(-3)
        half *= 2
    return x / math.sqrt(size)


class Simulation:
    """`ranks` honest gradients a step; the mean's length relative to the noise is `signal`."""

    def __init__(self, ranks, *, signal=3.0, power=0.5, seed=0, dimension=4096):
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
        return derive(seed, "chunk", numel=self.dimension, parts=1, shape=self.shape)

    def honest(self):
        self.mean = 0.98 * self.mean + 0.2 * self.noise()
        falling = self.signal * (1 - 0.7 * min(1.0, self.step / 200))
        gradients = self.mean / self.mean.norm() * falling + self.noise(self.ranks)
        self.step += 1
        return gradients * (3 * math.exp(-self.step / 100) + 0.5)

    @staticmethod
    def rows(gradients, parameters):
        return torch.cat([sketch(row, parameters) for row in mix(gradients)]).float().double()

    def fresh(self):
        draw = torch.randint(0, 256, (32,), generator=self.generator, dtype=torch.uint8)
        return self._parameters(bytes(draw.tolist()))

    def observe(self, gradients, fresh=None):
        fresh_rows = self.rows(gradients, fresh or self.fresh())
        return self.detector.observe(fresh_rows, self.rows(gradients, self.window))

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
