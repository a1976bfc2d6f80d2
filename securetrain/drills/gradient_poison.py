# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-POISON.

Four gloo ranks train a small byte-level language model on the interpreter's own help texts with
DistributedDataParallel. From step 30 on, one rank sends its gradients times -10. Plain: the model
ends worse than it began and no error is raised. Hardened: the guard names the rank (ST-GRAD-002),
that step is skipped, the rank counts zero from then on, and the model learns from the others.
"""

import math
import pydoc_data.topics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from securetrain.drills.ranks import run_ranks
from securetrain.drills.registry import DRILLS, Outcome, Side

if TYPE_CHECKING:
    import torch

    from securetrain.guard import GradientGuard

CODE: Final = DRILLS["D-GRAD-POISON"].expected_code
WORLD: Final = 4
ATTACKER: Final = 2
STEPS: Final = 60
ATTACK_FROM: Final = 30
POISON: Final = -10.0

_CONTEXT: Final = 8
_BATCH: Final = 32
_HELD_OUT: Final = 2048
_RATE: Final = 3e-3
_SEED: Final = 20260117
_SLACK: Final = 0.25
"""How much worse (nats per byte) the guarded model may be than before the attack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One training as rank 0 saw it: held-out losses in nats per byte."""

    before: float
    at_attack: float
    after: float
    codes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Refused steps and why."""
    named: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Refused steps and the ranks that the guard named."""
    excluded: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Steps in which ranks counted zero, and these ranks."""


def plain(_workdir: Path) -> Outcome:
    """Poison a plain training."""
    return judge_plain(*run_ranks(_both_plain, WORLD)[0])


def judge_plain(clean: Curve, poisoned: Curve) -> Outcome:
    """The attack succeeded when the model is worse than at the start and than the clean one."""
    ruined = not poisoned.after < poisoned.before
    worse = not poisoned.after < clean.after + 1.0
    return Outcome(
        side=Side.PLAIN,
        succeeded=ruined and worse,
        evidence=(
            f"Rank {ATTACKER} of {WORLD} sent its gradients times {POISON:g} from step"
            f" {ATTACK_FROM} on: held-out loss {poisoned.before:.2f} at the start,"
            f" {poisoned.at_attack:.2f} before the attack, {poisoned.after:.2f} at the end"
            f" ({clean.after:.2f} without the attack). No rank raised an error."
        ),
    )


def hardened(_workdir: Path) -> Outcome:
    """Poison the same training with the guard attached."""
    return judge_guarded(run_ranks(train, WORLD, POISON, True)[0])


def judge_guarded(guarded: Curve) -> Outcome:
    """Refused means: in every attacked step the attacker alone was named or counted zero, no honest
    step was refused and no honest rank left out, and the model kept its loss.
    """
    attacked = range(ATTACK_FROM, STEPS)
    named = [
        step
        for step in attacked
        if CODE in guarded.codes.get(step, ()) and guarded.named.get(step) == (ATTACKER,)
    ]
    left_out = [
        step
        for step in attacked
        if step not in guarded.codes and guarded.excluded.get(step) == (ATTACKER,)
    ]
    caught = named + left_out
    false_alarms = sorted((set(guarded.codes) | set(guarded.excluded)) - set(attacked))
    kept = guarded.after < guarded.at_attack + _SLACK
    ruined = not guarded.after < guarded.before
    codes = Counter(code for step in attacked for code in guarded.codes.get(step, ()))
    return Outcome(
        side=Side.HARDENED,
        succeeded=ruined,
        refused=len(caught) == len(attacked) and not false_alarms and kept,
        code=codes.most_common(1)[0][0] if codes else "",
        evidence=(
            f"The guard named rank {ATTACKER} alone at {len(named)} of {len(attacked)} attacked"
            f" steps ({', '.join(f'{code} x{n}' for code, n in codes.items()) or 'no code'}), which"
            f" were skipped, and left it out of {len(left_out)} more; {len(false_alarms)} false"
            f" alarms in {ATTACK_FROM} honest ones. Held-out loss {guarded.before:.2f} at the"
            f" start, {guarded.at_attack:.2f} before the attack, {guarded.after:.2f} at the end."
        ),
    )


def _both_plain() -> tuple[Curve, Curve]:
    return train(1.0, guarded=False), train(POISON, guarded=False)


def train(poison: float, guarded: bool) -> Curve:  # noqa: FBT001 - called through run_ranks
    """Train on this rank; collective.

    Args:
        poison: The attacker's factor on its loss (so, on its gradients) from ATTACK_FROM on.
        guarded: Whether a GradientGuard judges each step before it is applied.
    """
    import torch  # noqa: PLC0415 - only the ranks load torch
    import torch.distributed as dist  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    rank = dist.get_rank()
    torch.manual_seed(_SEED)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 24),
        torch.nn.Flatten(),
        torch.nn.Linear(24 * _CONTEXT, 96),
        torch.nn.GELU(),
        torch.nn.Linear(96, 256),
    )
    text = torch.frombuffer(bytearray(_corpus()), dtype=torch.uint8).long()
    windows = text.unfold(0, _CONTEXT + 1, 1)
    held_out, windows = windows[:_HELD_OUT], windows[_HELD_OUT + _CONTEXT :]

    def held_out_loss() -> float:
        with torch.no_grad():
            return float(cross_entropy(model(held_out[:, :-1]), held_out[:, -1]))

    wrapped = DistributedDataParallel(model)
    guard = _guard(wrapped) if guarded else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    before = at_attack = held_out_loss()
    codes: dict[int, tuple[str, ...]] = {}
    named: dict[int, tuple[int, ...]] = {}
    excluded: dict[int, tuple[int, ...]] = {}
    for step in range(STEPS):
        # Which rows a rank reads is a function of seed, step and rank: both sides see the same.
        order = torch.Generator().manual_seed(_SEED + step * WORLD + rank)
        rows = windows[torch.randint(len(windows), (_BATCH,), generator=order)]
        if step == ATTACK_FROM:
            at_attack = held_out_loss()
        factor = poison if rank == ATTACKER and step >= ATTACK_FROM else 1.0
        optimizer.zero_grad()
        (cross_entropy(wrapped(rows[:, :-1]), rows[:, -1]) * factor).backward()
        if guard is not None:
            verdict = guard.judge(step)
            if verdict.excluded:
                excluded[step] = tuple(sorted(verdict.excluded))
            if not verdict.ok:
                codes[step] = tuple(verdict.codes)
                named[step] = tuple(sorted(verdict.outliers))
                continue
        optimizer.step()
    after = held_out_loss()
    return Curve(
        before=before,
        at_attack=at_attack,
        after=after if math.isfinite(after) else math.inf,
        codes=codes,
        named=named,
        excluded=excluded,
    )


def _guard(model: "torch.nn.Module") -> "GradientGuard":
    import torch.distributed as dist  # noqa: PLC0415 - only the ranks load torch

    from securetrain.guard import GradientGuard  # noqa: PLC0415
    from securetrain.policy.schema import Gradients  # noqa: PLC0415

    # Only the limit on refused steps differs from the defaults: the drill wants to see every step.
    guard = GradientGuard(dist.group.WORLD, Gradients(max_refused_steps=STEPS))
    guard.attach(model)
    return guard


def _corpus() -> bytes:
    """The interpreter's own help texts: English technical prose that is always there."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics)).encode("utf-8")[: 256 << 10]
