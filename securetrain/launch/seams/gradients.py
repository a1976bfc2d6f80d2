# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The seams by which a worker's gradients are watched without its script knowing.

==================================================  ==============================================
torch.nn.parallel.distributed                       a model was wrapped by DDP; a communication hook
                                                    of the script goes through the guard's; ``join``
torch.distributed.fsdp._fully_shard._fully_shard    a module was sharded; buffers that allow no hook
torch.distributed.fsdp.fully_sharded_data_parallel  the same by FSDP1
deepspeed.runtime.engine                            DeepSpeed, which is not watched
torch.nn.utils.clip_grad, torch.amp.grad_scaler     gradients are about to be used
torch.optim.optimizer                               an optimizer is about to step
torch.autograd                                      gradients were computed: by whom are they used?
==================================================  ==============================================

What the guard does with them is `guard.ScriptGuard`; here it is said, recorded and reported. The
guard's room is imported with the first model, or with the first step in a group of ranks.
"""

import atexit
import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.core import RunDir, is_rehearsal
from securetrain.core.errors import GuardError, SecureTrainError
from securetrain.core.vocabulary import NOT_WATCHED
from securetrain.launch.process.workerlog import GradientReport
from securetrain.launch.seams import patches
from securetrain.launch.seams.import_hooks import Patch
from securetrain.policy.schema import Gradients

if TYPE_CHECKING:
    from securetrain.guard import (
        ScriptGuard,
        SketchWriter,
        StepRecord,
        Suspicion,
        Verdict,
        WordSigner,
    )

_NAMED: Final = 64
"""Ranks and reasons that a report holds."""
_USES: Final = ("clip_grad_norm_", "clip_grad_value_")
_FSDP1: Final = "torch.distributed.fsdp.fully_sharded_data_parallel"
_FSDP2_BUFFERS: Final = ("set_allocate_memory_from_process_group_for_comm", "set_symm_mem_for_comm")


@dataclass(slots=True, kw_only=True)
class GradientWatch:
    """The gradients of one worker."""

    settings: Gradients
    say: Callable[[str], None]
    """One line for people."""
    record: Callable[[Callable[[Any], Any]], None]
    """Write an event, made from `ledger.events`."""
    sketches: Path | None
    """The file of steps' records; None but on rank 0."""
    signer: str = ""
    """The launcher's socket, which says which node each rank is on."""
    run: RunDir | None = None
    """Where the signed words of disputes are kept; None keeps and signs none."""
    is_node_leader: bool = False
    """Whether this is the first rank of its node, which reports others to the rendezvous."""
    changed: Callable[[], None]
    """The report has something new."""
    models: list[str] = field(default_factory=list)
    named: dict[int, set[str]] = field(default_factory=dict)
    """The ranks that verdicts name, with the codes."""
    excluded: set[int] = field(default_factory=set)
    """Ranks whose gradients counted zero at some time."""
    backwards: int = 0
    """Gradients that were computed in a group of ranks."""
    steps: list[float] = field(default_factory=list)
    """Steps of optimizers there: when the last one was, and the longest time between two."""
    _guard: "ScriptGuard | None" = None
    _writer: "SketchWriter | None" = None

    def patches(self) -> dict[str, Patch]:
        """The seams, by module."""
        method = functools.partial(functools.partial, patches.wrap_method)
        ddp, fsdp, fsdp1 = "DistributedDataParallel", "fully_shard", "FullyShardedDataParallel"
        return {
            "torch.nn.parallel.distributed": functools.partial(
                patches.apply_all,
                (
                    method(self._after_ddp, ddp, "__init__"),
                    method(self._comm_hook, ddp, "register_comm_hook"),
                    method(self._joining, ddp, "join"),
                ),
            ),
            "torch.distributed.fsdp._fully_shard._fully_shard": functools.partial(
                patches.apply_all,
                (
                    functools.partial(patches.wrap, self._after_sharding, fsdp),
                    *(method(self._other_buffers, "FSDPModule", name) for name in _FSDP2_BUFFERS),
                ),
            ),
            _FSDP1: functools.partial(
                patches.apply_all,
                (
                    method(self._after_fsdp1, fsdp1, "__init__"),
                    method(self._hook_fsdp1, fsdp1, "register_comm_hook"),
                    method(self._own_clipping, fsdp1, "clip_grad_norm_"),
                ),
            ),
            "torch.distributed.fsdp.sharded_grad_scaler": method(
                self._sharded_scaler, "ShardedGradScaler", "unscale_"
            ),
            "deepspeed.runtime.engine": method(self._before_deepspeed, "DeepSpeedEngine", "step"),
            "torch.nn.utils.clip_grad": functools.partial(
                patches.apply_all,
                (
                    *(functools.partial(patches.wrap, self._before_use, name) for name in _USES),
                    functools.partial(patches.wrap, self._total_norm, "_get_total_norm"),
                ),
            ),
            "torch.amp.grad_scaler": functools.partial(
                patches.apply_all,
                (
                    *(
                        method(self._before_scaler, "GradScaler", name)
                        for name in ("unscale_", "step")
                    ),
                    method(self._after_unscale, "GradScaler", "_unscale_grads_"),
                ),
            ),
            "torch.optim.optimizer": self._hook_optimizers,
            "torch.autograd": functools.partial(patches.wrap, self._counting, "backward"),
        }

    @property
    def by_hand(self) -> str:
        """The reason why no optimizer stepped on what was computed; empty where one did."""
        if self.steps or not self.backwards:
            return ""
        return "gradients were computed, and no optimizer of torch has stepped on them"

    def end(self) -> None:
        """The script has ended well.

        Raises:
            GuardError: ST-GRAD-020, it trained by hand where the policy requires it to be watched.
        """
        if why := self.by_hand:
            self._unwatched(why)
            if self.settings.require_watched:
                raise GuardError("ST-GRAD-020", why, "gradients")

    def report(self, *, is_last: bool) -> GradientReport:
        """Everything until now.

        Args:
            is_last: Whether the process ends: in its midst an optimizer may step yet.
        """
        guard = self._guard
        why = self.by_hand if is_last else ""
        if guard is None:
            return GradientReport(
                unwatched_steps=self.backwards if why else 0, reasons=(why,) if why else ()
            )
        guard.look_back()
        totals = guard.totals
        return GradientReport(
            models=tuple(self.models[:_NAMED]),
            judged=totals.judged,
            refused=totals.refused,
            settled=totals.settled,
            excluded=tuple(sorted(self.excluded)[:_NAMED]),
            named={
                str(rank): tuple(sorted(self.named[rank])) for rank in sorted(self.named)[:_NAMED]
            },
            unwatched_steps=guard.unwatched_steps,
            seconds=math.ceil(self.steps[1]) if self.steps else 0,
            reasons=(*filter(None, [why]), *guard.reasons)[:_NAMED],
        )

    @property
    def guard(self) -> "ScriptGuard":
        """The guard, made when it is first needed."""
        if self._guard is None:
            # Imports torch and numpy.
            from securetrain.guard import (  # noqa: PLC0415
                GuardTextfile,
                Listener,
                ScriptGuard,
                SketchWriter,
            )

            if self.sketches is not None:
                run = RunDir(self.sketches.parent)
                textfile = GuardTextfile(run.guard_metrics, {"run": run.root.name})
                self._writer = SketchWriter(self.sketches, textfile, run.tensorboard)
                atexit.register(self._writer.close)  # events are held back for minutes
            listener = Listener(
                watched=self._watched,
                unwatched=self._unwatched,
                judged=self._judged,
                refused=self._refused,
                suspected=self._suspected if self.is_node_leader else None,
                signer=self._words(),
            )
            self._guard = ScriptGuard(self.settings, listener, self._nodes())
        return self._guard

    def _nodes(self) -> tuple[int, ...]:
        if not self.signer:
            return ()
        from securetrain.identity.signing import nodes_of, shared_socket  # noqa: PLC0415 - slow

        return nodes_of(shared_socket(Path(self.signer)).welcome())

    def _words(self) -> "WordSigner | None":
        if not self.signer or self.run is None:
            return None
        from securetrain.guard import launcher_words  # noqa: PLC0415 - slow

        return launcher_words(
            Path(self.signer),
            self.run,
            keeps=self.is_node_leader,
            record=lambda entry: self.record(functools.partial(_given, entry)),
        )

    # -- seams -------------------------------------------------------------------------------------

    def _after_ddp(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
            init(model, *args, **kwargs)
            if not is_rehearsal():
                self.guard.replicated(model)

        return __init__

    def _comm_hook(self, register: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(register)
        def register_comm_hook(model: Any, state: object, hook: Any) -> None:
            if not self.guard.accept_hook(model, state, hook):
                register(model, state, hook)

        return register_comm_hook

    def _joining(self, join: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(join)
        def joined(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.guard.give_up(model, "the ranks have uneven inputs (join)")
            return join(model, *args, **kwargs)

        return joined

    def _after_sharding(self, fully_shard: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fully_shard)
        def shard_and_reserve(module: Any, *args: Any, **kwargs: Any) -> Any:
            result = fully_shard(module, *args, **kwargs)
            if is_rehearsal():
                return result
            for one in result if isinstance(result, list | tuple) else (result,):
                self.guard.sharded(one)
            return result

        return shard_and_reserve

    def _other_buffers(self, setter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(setter)
        def set_buffers(module: Any, *args: Any, **kwargs: Any) -> Any:
            self.guard.give_up(module, f"the script uses {setter.__name__}")
            return setter(module, *args, **kwargs)

        return set_buffers

    def _after_fsdp1(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
            init(model, *args, **kwargs)
            if not is_rehearsal():
                self.guard.flattened(model)

        return __init__

    def _hook_fsdp1(self, register: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(register)
        def register_comm_hook(model: Any, state: object, hook: Any) -> None:
            self.guard.hook_otherwise(model)
            register(model, state, hook)

        return register_comm_hook

    def _own_clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """FSDP1 clips by a norm that it reduces itself: judge first, and bind that norm."""
        patches.hearing_reductions(clip, lambda _tensor: None)  # it must be one that can be heard

        @functools.wraps(clip)
        def bound(model: Any, max_norm: float, norm_type: float = 2.0) -> Any:
            guard = self._guard
            if guard is None:
                return clip(model, max_norm, norm_type)
            guard.before_use(model.parameters())
            order = float(norm_type)

            def hear(reduced: Any) -> None:
                """The sum of powers, or the largest."""
                power = 1.0 if order == float("inf") else order
                total = reduced ** (1.0 / power)
                instead = guard.bind_flat_norm(model, total, order)
                if instead is not total:
                    reduced.copy_(instead**power)

            with sys.modules["torch"].no_grad():
                return patches.hearing_reductions(clip, hear)(model, max_norm, norm_type)

        return bound

    def _sharded_scaler(self, unscale: Callable[..., Any]) -> Callable[..., Any]:
        """FSDP1's scaler reduces its flags itself: judge first, and bind them behind it."""
        judged_first = self._before_scaler(unscale)

        @functools.wraps(unscale)
        def bound(scaler: Any, optimizer: Any) -> Any:
            result = judged_first(scaler, optimizer)
            if self._guard is not None and scaler.is_enabled():
                found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]  # noqa: SLF001 - there is no public question
                self._guard.bind_flags(optimizer, found, flat=True)
            return result

        return bound

    def _before_deepspeed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def step_of_engine(*args: Any, **kwargs: Any) -> Any:
            self._stepped()
            self.guard.stepped_otherwise("DeepSpeed")
            return step(*args, **kwargs)

        return step_of_engine

    def _before_use(self, use: Callable[..., Any]) -> Callable[..., Any]:
        """Judge before gradients are clipped, or their norm is asked for."""

        @functools.wraps(use)
        def judged_first(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            given = parameters
            if self._guard is not None:
                if not hasattr(parameters, "grad"):
                    given = parameters = list(parameters)
                self._guard.before_use([given] if hasattr(given, "grad") else given)
            return use(parameters, *args, **kwargs)

        return judged_first

    def _before_scaler(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Judge before GradScaler looks for infinities."""

        @functools.wraps(method)
        def judged_first(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._guard is not None and scaler.is_enabled():
                groups = optimizer.param_groups
                parameters = [p for group in groups for p in group["params"]]
                self._guard.before_use(parameters, scaled=True)
            return method(scaler, optimizer, *args, **kwargs)

        return judged_first

    def _total_norm(self, norm_of: Callable[..., Any]) -> Callable[..., Any]:
        """Judge before a norm is computed, and let no rank's share of it ruin the others'."""

        @functools.wraps(norm_of)
        def bound(
            tensors: Any,
            norm_type: float = 2.0,
            error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002 - torch's signature
            foreach: bool | None = None,  # noqa: FBT001 - the same
        ) -> Any:
            given = [tensors] if hasattr(tensors, "grad") else list(tensors)
            if self._guard is None:
                return norm_of(given, norm_type, error_if_nonfinite, foreach)
            self._guard.before_use(given)
            total = norm_of(given, norm_type, False, foreach)
            total = self._guard.bind_norm(given, total, float(norm_type))
            if error_if_nonfinite and not bool(total.isfinite()):
                norm_of(given, norm_type, True, foreach)
            return total

        return bound

    def _after_unscale(self, unscale: Callable[..., Any]) -> Callable[..., Any]:
        """Let no rank's flag make the others skip a step, or not skip it."""

        @functools.wraps(unscale)
        def bound(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            flags = unscale(scaler, optimizer, *args, **kwargs)
            if self._guard is not None:
                self._guard.bind_flags(optimizer, flags)
            return flags

        return bound

    def _hook_optimizers(self, module: Any) -> None:
        patches.find(module, "register_optimizer_step_pre_hook")(self._before_step)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized() or is_rehearsal():
            return None
        self._stepped()
        return self.guard.before_step(optimizer, args, kwargs)

    def _stepped(self) -> None:
        now = time.monotonic()
        last, longest = self.steps or (now, 0.0)
        self.steps = [now, max(longest, now - last)]

    def _counting(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Count what is computed among ranks: a script may use gradients without an optimizer."""

        @functools.wraps(backward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            dist = sys.modules.get("torch.distributed")
            if dist is not None and dist.is_available() and dist.is_initialized():
                self.backwards += dist.get_world_size() > 1 and not is_rehearsal()
            return backward(*args, **kwargs)

        return counted

    # -- what is heard -----------------------------------------------------------------------------

    def _watched(self, model: str) -> None:
        self.models.append(model)
        if self.sketches is not None:
            self.say(f"gradients: watched ({model})")
            self.record(lambda events: events.GradientsWatched(subject=model[:200]))
        self.changed()

    def _unwatched(self, reason: str) -> None:
        self.say(f"{NOT_WATCHED}: {reason}")
        if self.settings.require_watched:
            error = GuardError("ST-GRAD-020", reason, "gradients")
            self.record(lambda events: events.UnwatchedStepRefused.of(error))
        else:
            self.record(lambda events: events.GradientsNotWatched(reason=reason[:500]))
        self.changed()

    def _refused(self, error: GuardError) -> None:
        self.record(lambda events: events.UnwatchedStepRefused.of(error))

    def _suspected(self, one: "Suspicion") -> None:
        self.record(
            lambda events: events.RankSuspected(
                subject=f"rank {one.rank}", rank=one.rank, cause=one.code, said=one.what
            )
        )

    def _judged(self, step: "StepRecord") -> None:
        verdict = step.verdict
        if self._writer is not None:
            self._writer.write(step)
        self.excluded.update(verdict.newly_excluded)
        for rank in verdict.outliers:
            self.named.setdefault(rank, set()).update(verdict.codes)
        if verdict.ok and not (verdict.settled or verdict.newly_excluded or verdict.readmitted):
            return
        self.changed()
        if self.sketches is not None:
            self._record_verdict(verdict)

    def _record_verdict(self, verdict: "Verdict") -> None:
        """Say and record what rank 0 says for all."""
        subject = f"step {verdict.step}"
        code = verdict.codes[0] if verdict.codes else "ST-GRAD-002"
        finding = GuardError(
            code, f"{subject}: {verdict.reason} (ranks: {_words(verdict.outliers)})"
        )
        if not verdict.proceed:
            self.say(str(finding))
            self.record(lambda events: events.StepRefused.of(finding, subject))
        if verdict.newly_excluded:
            self.say(
                f"{subject}: excluded: rank {_words(verdict.newly_excluded)}: {verdict.reason}"
            )
        if verdict.readmitted:
            self.say(f"{subject}: counts again: rank {_words(verdict.readmitted)}")
        from securetrain.guard import verdict_events  # noqa: PLC0415 - imports cryptography

        for entry in verdict_events(verdict):
            self.record(functools.partial(_given, entry))
        try:
            verdict.raise_if_halted()
        except SecureTrainError as error:
            halt = error
            self.record(lambda events: events.RunHalted.of(halt, subject))


def _given(entry: object, _events: object) -> object:
    return entry


def _words(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) or "none that can be named"
