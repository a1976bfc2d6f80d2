# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard of a framework's models where no launcher watches.

Under ``securetrain run`` the launcher's seams watch every model already, and more closely: a hook
leaves it to them. Elsewhere, under ``torchrun`` say, a hook tells this object what a seam would:

=====================  ====================================================================
`wrapped`              a model is wrapped by DDP, fully_shard or FSDP1, before its first backward
`before_use`           gradients are about to be clipped, or looked at by a loss scaler
`scaler`               there is a loss scaler: `before_use` before it looks and before it steps
`otherwise`            something steps that cannot be watched (DeepSpeed)
torch's own hook       an optimizer is about to step: refused gradients are dropped
=====================  ====================================================================

What nobody watches is said once a reason, on standard error (`NOT WATCHED`), and refused where the
policy requires the guard. Only under ``securetrain run`` are verdicts in a ledger, norms and
scalers' flags bound to what was delivered, and words signed in disputes.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.artifacts import signer
from securetrain.core.vocabulary import NOT_WATCHED
from securetrain.integrations.ranks import rank
from securetrain.policy import load_policy
from securetrain.policy.schema import Gradients, GuardMode, Policy

if TYPE_CHECKING:
    from securetrain.guard import ScriptGuard, StepRecord

DEFAULT_POLICY: Final = "baseline"


@dataclass(slots=True, kw_only=True)
class Watch:
    """The gradients of one process."""

    settings: Gradients
    say: Callable[[str], None]
    """One line for people."""
    named: dict[int, set[str]] = field(default_factory=dict)
    """The ranks that verdicts name, with the codes."""
    excluded: set[int] = field(default_factory=set)
    """Ranks whose gradients counted zero at some time."""
    _guard: "ScriptGuard | None" = None
    _seen: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)
    """Models and scalers that are known."""

    @property
    def guard(self) -> "ScriptGuard":
        """The guard, made when it is first needed; from then on optimizers are heard."""
        if self._guard is None:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            from securetrain.guard import Listener, ScriptGuard

            listener = Listener(
                watched=lambda model: self._say_once(f"gradients: watched ({model})"),
                unwatched=lambda reason: self.say(f"{NOT_WATCHED}: {reason}"),
                judged=self._judged,
                refused=lambda error: self.say(str(error)),
            )
            self._guard = ScriptGuard(self.settings, listener)
            register_optimizer_step_pre_hook(self._guard.before_step)
        return self._guard

    @property
    def judged(self) -> int:
        """Steps that were judged."""
        return 0 if self._guard is None else self._guard.totals.judged

    def wrapped(self, model: Any) -> None:
        """Take a model, however deep its wrapper lies in others."""
        if model in self._seen:
            return
        self._seen.add(model)
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
        from torch.nn.parallel import DistributedDataParallel

        guard = self.guard
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                guard.replicated(module)
            elif isinstance(module, FSDPModule):
                guard.sharded(module)  # type: ignore[arg-type]
            elif isinstance(module, FullyShardedDataParallel):
                guard.flattened(module)

    def before_use(self, parameters: Iterable[Any], *, scaled: bool = False) -> None:
        """Judge what was reduced, before somebody looks at it. Collective.

        Raises:
            GuardError: ST-GRAD-005, the policy halts the run; ST-GRAD-021, it asks for what a
                script cannot do.
        """
        self.guard.before_use(list(parameters), scaled=scaled)

    def optimizer_parameters(self, optimizer: Any, *, scaled: bool = False) -> None:
        """The same for all that an optimizer steps on. Collective."""
        groups = optimizer.param_groups
        self.before_use([p for group in groups for p in group["params"]], scaled=scaled)

    def scaler(self, scaler: Any) -> None:
        """Take a loss scaler: it shall not look at gradients that nobody has judged."""
        if scaler is None or not scaler.is_enabled() or scaler in self._seen:
            return
        self._seen.add(scaler)
        for name in ("unscale_", "step"):
            setattr(scaler, name, self._judged_first(getattr(scaler, name)))

    def otherwise(self, name: str) -> None:
        """Note that something steps which cannot be watched.

        Raises:
            GuardError: ST-GRAD-020, the policy requires the guard.
        """
        self.guard.stepped_otherwise(name)

    def _judged_first(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def judged(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.optimizer_parameters(optimizer, scaled=True)
            return method(optimizer, *args, **kwargs)

        return judged

    def _say_once(self, line: str) -> None:
        if rank() == 0:
            self.say(line)

    def _judged(self, step: "StepRecord") -> None:
        """Keep whom the verdict names, and say on rank 0 what all ranks know."""
        verdict = step.verdict
        self.excluded.update(verdict.newly_excluded)
        for outlier in verdict.outliers:
            self.named.setdefault(outlier, set()).update(verdict.codes)
        if not verdict.proceed:
            named = ", ".join(map(str, verdict.outliers)) or "none that can be named"
            codes = " ".join(verdict.codes)
            self._say_once(
                f"step {verdict.step}: refused: {codes}: {verdict.reason} (ranks: {named})"
            )
        if verdict.newly_excluded:
            named = ", ".join(map(str, verdict.newly_excluded))
            self._say_once(f"step {verdict.step}: excluded: rank {named}: {verdict.reason}")


def watch(policy: Policy | Path | str | None) -> Watch | None:
    """Make the guard of this process; None where a launcher watches, or the policy turns it off.

    Args:
        policy: A policy, its name or its file; ``baseline`` by default. Under ``securetrain run``
            the run's own counts, and this is left aside.

    Raises:
        PolicyError: it cannot be read.
    """
    if signer.worker_signer() is not None:
        return None
    found = (
        policy if isinstance(policy, Policy) else load_policy(str(policy or DEFAULT_POLICY)).policy
    )
    if found.gradients.mode is GuardMode.OFF:
        _to_stderr(f"{NOT_WATCHED}: the policy turns the guard off (gradients.mode)")
        return None
    return _of_process(found.gradients)


@functools.cache
def _of_process(settings: Gradients) -> Watch:
    """One for a process: several models, and several trainings, have one guard."""
    return Watch(settings=settings, say=_to_stderr)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"securetrain rank {rank()}: {line}\n")
    sys.stderr.flush()
