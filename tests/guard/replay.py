# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks on the gradients of a real training, replayed before detectors.

A byte transformer of about 55 k parameters (seven groups) is trained on the standard library's
sources by `n` ranks. In every step each attack bends a copy of the honest gradients, and its own
detector sees the sketches: open loop, so that one training serves all attacks. The momentum of an
attack holds what was reduced in its world, excluded ranks left out.
"""

import argparse
import hashlib
import math
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from securetrain.guard.assessment import Assessment
from securetrain.guard.detector import Detector
from securetrain.guard.rows import StepRows
from securetrain.guard.sketch import Run, SketchShape, derive, sketch_runs
from securetrain.policy.schema import GradientData
from tests.guard.reference_sketch import places

Spans: TypeAlias = dict[str, list[tuple[int, int]]]

WIDTH, LAYERS, CONTEXT = 32, 4, 64
GUILTY = 2
DECAY = 0.9


class Block(nn.Module):
    """Attention and MLP."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.mix(self.first(x)).view(*x.shape[:2], 3, 4, WIDTH // 4).unbind(2)
        near = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        later = torch.ones(near.shape[-2:], dtype=torch.bool).triu(1)
        seen = torch.einsum("bhqk,bkhd->bqhd", near.masked_fill(later, -1e9).softmax(-1), v)
        x = x + self.out(seen.flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """A byte transformer: embedding, blocks, head."""

    def __init__(self):
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens):
        x = self.bytes(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@cache
def corpus(domain=None, *, packages=False):
    """Bytes of Python sources; a domain is one part of them. Packages: of other files."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = folder.glob("[a-z]*/*.py" if packages else "*.py")
    paths = sorted(path for path in found if path.parent.name != "site-packages")[:160]
    if domain is not None:
        paths = paths[domain % 8 :: 8]
    data = b"".join(path.read_bytes()[:60_000] for path in paths)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@dataclass
class Training:
    """Honest gradients, step by step."""

    ranks: int
    seed: int
    steps: int
    tokens: int = 256
    per_rank: bool = False
    lr: float = 3e-3
    packages: bool = False
    """Of other data."""

    def __post_init__(self):
        torch.manual_seed(self.seed)
        self.model = Model()
        names = [name for name, _ in self.model.named_parameters()]
        sizes = [p.numel() for p in self.model.parameters()]
        parts = [group_of(name) for name in names]
        self.groups = tuple(dict.fromkeys(parts))
        self.spans: Spans = {group: [] for group in self.groups}
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            spans = self.spans[part]
            first = spans.pop()[0] if spans and spans[-1][1] == start else start
            spans.append((first, start + size))
            start += size
        self.numel = start

    def _loss(self, parameters: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        logits = functional_call(self.model, parameters, (batch[:, :-1],))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def gradients(self) -> Iterator[np.ndarray]:
        """(ranks, numel) float32 of each step."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)
        gradient = vmap(grad(self._loss), in_dims=(None, 0))  # of all ranks at once
        rows = self.tokens // CONTEXT
        for step in range(self.steps):
            for group in optimizer.param_groups:
                warm = min(1.0, (step + 1) / 20)
                group["lr"] = self.lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / self.steps))
            batches = []
            for rank in range(self.ranks):
                data = corpus(rank if self.per_rank else None, packages=self.packages)
                starts = torch.randint(len(data) - CONTEXT - 1, (rows,), generator=generator)
                index = starts[:, None] + torch.arange(CONTEXT + 1)
                batches.append(data[index].long())
            now = {name: p.detach() for name, p in self.model.named_parameters()}
            each = gradient(now, torch.stack(batches))
            found = torch.cat([part.flatten(1) for part in each.values()], dim=1)
            yield found.numpy()
            start = 0
            mean = found.mean(dim=0)
            for parameter in self.model.parameters():
                parameter.grad = mean[start : start + parameter.numel()].view_as(parameter).clone()
                start += parameter.numel()
            optimizer.step()


def group_of(name):
    """The name up to the first number: layers.3."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return parts[0]


# -- attacks: bend (ranks, numel) in place ---------------------------------------------------------


def others(g, who=GUILTY):
    return np.delete(g, who, axis=0)


def flip(g, world, step):
    g[GUILTY] *= -1


def times(factor):
    def attack(g, world, step):
        g[GUILTY] *= factor

    return attack


def gaussian(g, world, step):
    noise = np.random.default_rng(step).standard_normal(g.shape[1]).astype(np.float32)
    g[GUILTY] = noise * (np.linalg.norm(g[GUILTY]) / np.linalg.norm(noise))


def alie(z):
    def attack(g, world, step):
        rest = others(g)
        g[GUILTY] = rest.mean(axis=0) - z * rest.std(axis=0)

    return attack


def _largest(g, fits):
    rest = others(g)
    mean, way = rest.mean(axis=0), rest.std(axis=0)
    low, high = 0.0, 20.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(rest, mean - middle * way) else (low, middle)
    g[GUILTY] = mean - low * way


def min_max(g, world, step):
    rest = others(g)
    squares = (rest**2).sum(axis=1)
    most = (squares[:, None] + squares - 2 * rest @ rest.T).max()
    _largest(g, lambda rest, bad: ((rest - bad) ** 2).sum(axis=1).max() <= most)


def min_sum(g, world, step):
    rest = others(g)
    squares = (rest**2).sum(axis=1)
    most = (squares[:, None] + squares - 2 * rest @ rest.T).sum(axis=1).max()
    _largest(g, lambda rest, bad: ((rest - bad) ** 2).sum() <= most)


def inner_product(strength):
    def attack(g, world, step):
        g[GUILTY] = -strength * others(g).mean(axis=0)

    return attack


def _direction(world, g, *, shaped=False):
    if "way" not in world:
        way = np.random.default_rng(9).standard_normal(g.shape[1]).astype(np.float32)
        if shaped:
            way *= others(g).std(axis=0)
        world["way"] = way / np.linalg.norm(way)
    return world["way"]


def drift(size, *, shaped=False):
    """The same way in every step; shaped: with the spectrum of honest noise."""

    def attack(g, world, step):
        push = np.median(np.linalg.norm(g, axis=1)) * _direction(world, g, shaped=shaped)
        g[GUILTY] += size * push

    return attack


def layer_flip(g, world, step):
    for start, end in world["spans"]["layers.1"]:
        g[GUILTY, start:end] *= -1


def null_space(g, world, step):
    """Own gradient and 1.5 sigma, without any part in the space that past seeds span."""
    push = 1.5 * others(g).std(axis=0)
    for parameters in world.get("past", ())[-8:]:
        for spans, p in zip(world["spans"].values(), parameters, strict=True):
            ((start, end),) = spans
            push[start:end] -= seen_part(push[start:end], p)
    g[GUILTY] = g[GUILTY] - push


def seen_part(x, parameters):
    """What a sketch sees of a vector: its projection on the first key's rows."""
    index, sign = (found[0] for found in places(parameters))
    index = index % parameters.shape.numbers
    sums = np.bincount(index, weights=sign * x) / np.maximum(np.bincount(index), 1)
    return sign * sums[index]


def matched(g, world, step):
    """Norm, distances and cosines of an honest rank; its noise points the same way each time."""
    mean = others(g).mean(axis=0)
    g[GUILTY] = mean + _direction(world, g) * np.linalg.norm(g[GUILTY] - mean)


def two_flippers(g, world, step):
    g[GUILTY] *= -1
    g[5] *= -1


def rotating(g, world, step):
    g[step % len(g)] *= -1


def every(steps, attack):
    """On in one step of `steps`."""

    def sometimes(g, world, step):
        if step % steps == 0:
            attack(g, world, step)

    return sometimes


def duty(on, off, attack):
    """On for some steps, off for some."""

    def sometimes(g, world, step):
        if step % (on + off) < on:
            attack(g, world, step)

    return sometimes


ATTACKS: dict[str, Callable[..., None]] = {
    "clean": lambda g, world, step: None,
    "flip": flip,
    "x3": times(3),
    "x-3": times(-3),
    "gaussian": gaussian,
    "alie.5": alie(0.5),
    "alie1": alie(1.0),
    "alie1.5": alie(1.5),
    "min-max": min_max,
    "min-sum": min_sum,
    "ipm.5": inner_product(0.5),
    "ipm1.5": inner_product(1.5),
    "drift.5": drift(0.5),
    "drift.25": drift(0.25),
    "shaped.5": drift(0.5, shaped=True),
    "layer": layer_flip,
    "null": null_space,
    "matched": matched,
    "two": two_flippers,
    "rotating": rotating,
    "duty 5/5": duty(5, 5, flip),
    "duty 3/17 x3": duty(3, 17, times(3)),
}
BOTH = {"two": {GUILTY, 5}}


@dataclass
class Sketcher:
    """The guard's own sketches, under a fresh seed for each step; k numbers a group."""

    spans: Spans
    k: int
    seed: int = 0
    keys: int = 1
    step: int = field(init=False, default=0)

    def draw(self):
        """Go on to the next seed."""
        self.step += 1
        self.parameters = [
            derive(
                hashlib.sha256(f"{self.seed}|{self.step}".encode()).digest(),
                group,
                numel=sum(b - a for a, b in spans),
                parts=1,
                shape=SketchShape(numbers=self.k, keys=self.keys),
            )
            for group, spans in self.spans.items()
        ]

    def rows(self, vectors):
        """(rows, numel) -> (groups, rows, size)"""
        flat = torch.from_numpy(np.ascontiguousarray(vectors))
        out = np.empty((len(self.spans), len(vectors), self.k * self.keys))
        for place, (spans, p) in enumerate(zip(self.spans.values(), self.parameters, strict=True)):
            starts = np.cumsum([0, *(b - a for a, b in spans)])
            runs = [
                Run(vector[a:b], 0, int(start), row)
                for row, vector in enumerate(flat)
                for (a, b), start in zip(spans, starts, strict=False)
            ]
            out[place] = sketch_runs(runs, p, rows=len(vectors)).numpy()
        return out.astype(np.float32).astype(np.float64)  # rows travel in fp32


@dataclass
class World:
    """One attack, the detector that sees it, and what they did."""

    name: str
    detector: Detector
    numel: int
    start: int
    spans: Spans
    seen: list[Assessment] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.momentum = np.zeros(self.numel, dtype=np.float32)
        self.facts["spans"] = self.spans

    def step(self, honest, base_rows, sketcher, step, skip):
        g, changed = honest, np.zeros(0, dtype=np.int64)
        if step >= self.start and self.name != "clean":
            g = honest.copy()
            ATTACKS[self.name](g, self.facts, step)
            changed = np.flatnonzero((g != honest).any(axis=1))
        rows = base_rows
        if len(changed):
            rows = base_rows.copy()
            rows[:, changed] = sketcher.rows(g[changed])
        momentum = sketcher.rows(self.momentum[None])[:, 0] if step else None
        names = tuple(self.spans)
        if skip is not None and step % 2:
            keep = [i for i, name in enumerate(names) if name != skip]
            names = tuple(names[i] for i in keep)
            rows = rows[keep]
            momentum = None if momentum is None else momentum[keep]
        answer = self.detector.observe(StepRows(groups=names, gradients=rows, momentum=momentum))
        past = self.facts.setdefault("past", [])
        past.append(sketcher.parameters)
        del past[:-8]
        self.seen.append(answer)
        use = [rank for rank in range(len(g)) if rank not in answer.excluded]
        if use:
            self.momentum = DECAY * self.momentum + (1 - DECAY) * g[use].mean(axis=0)


def replay(training, names, *, start=40, k=256, keys=1, skip=None, detector=Detector):
    """Run attacks on one training; returns the worlds by name."""
    data = GradientData.PER_RANK if training.per_rank else GradientData.SHUFFLED
    budget = 100.0 if training.per_rank else 20.0
    worlds = {
        name: World(
            name,
            detector(training.ranks, budget=budget, data=data),
            training.numel,
            start,
            training.spans,
        )
        for name in names
    }
    sketcher = Sketcher(training.spans, k, seed=training.seed + 2, keys=keys)
    for step, honest in enumerate(training.gradients()):
        sketcher.draw()
        base = sketcher.rows(honest)
        for world in worlds.values():
            world.step(honest, base, sketcher, step, skip)
    return worlds


def summary(world):
    """Figures of one attack: delays, share, honest ranks named."""
    guilty = BOTH.get(world.name, {GUILTY})
    if world.name in {"rotating", "clean"}:
        guilty = set()
    after = world.seen[world.start :]
    found = [set(a.excluded) for a in after]
    first = next((i for i, who in enumerate(found, 1) if who & guilty), None)
    whole = next((i for i, who in enumerate(found, 1) if guilty and who >= guilty), None)
    exact = [who == guilty for who in found[whole:]] if whole else []
    rotated = world.name == "rotating"
    honest = sum(len(who - guilty) for who in found)
    honest += sum(len(a.excluded) for a in world.seen[: world.start])
    return {
        "first": first,
        "all": whole,
        "exact": round(float(np.mean(exact)), 3) if exact else None,
        "honest": honest if not rotated else sum(len(a.newly_named) for a in after),
        "undecided": next((i for i, a in enumerate(after, 1) if a.undecided), None),
        "somebody": round(max(a.somebody for a in world.seen), 1),
        "spikes": sum(a.spike for a in world.seen),
        "peak": round(max(a.peak for a in world.seen), 2),
        "why": next((str(a.why[r]) for a in after for r in a.newly_named), ""),
    }


def main():
    """Print a table of delays: the study of docs/explanation/gradient-guard.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--start", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("-k", type=int, default=256)
    parser.add_argument("--per-rank", action="store_true")
    parser.add_argument("--skip")
    parser.add_argument("attacks", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.attacks or [n for n in ATTACKS if n != "two" or options.ranks >= 8]
    training = Training(
        options.ranks, options.seed, options.steps, options.tokens, options.per_rank
    )
    worlds = replay(training, names, start=options.start, k=options.k, skip=options.skip)
    for name, world in worlds.items():
        sys.stdout.write(f"{name:14s} {summary(world)}\n")


if __name__ == "__main__":
    main()
