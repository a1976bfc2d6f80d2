# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard of a script that knows nothing of it.

`securetrain run` calls this object from seams of torch (`launch.gradients`):

===============================  ==================================================================
a model was wrapped              a slot is reserved in it (slots.py)
its first reduction              a guard moves in, unless the script has attached one itself
gradients are about to be used   (clipping, GradScaler, an optimizer's step, the end of a closure)
                                 what was reduced since the last time is judged
an optimizer steps               gradients of a refused step are dropped, so that it changes nothing
===============================  ==================================================================

Rules:

1. gradients of a refused step are zeros until the optimizer steps, because a script may look at
   them, and None in the step, because zeros still move weights by momentum and weight decay;
2. every gradient that an optimizer of a job with two or more ranks uses was seen, or the step
   counts as not watched: the first one is said at once, and refused where the policy requires it
   (ST-GRAD-020);
3. what all ranks have to do together follows from the reductions alone, which all do together.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from securetrain.core.errors import GuardError
from securetrain.guard import slots
from securetrain.guard.attachment import attach, seen_parameters
from securetrain.guard.bound_numbers import Aftermath
from securetrain.guard.buffer_sync import buffers_of, release_buffers
from securetrain.guard.flat import flat_count, flat_root, has_flat, release_flat, reserve_flat
from securetrain.guard.guard import GUARDS, GradientGuard
from securetrain.guard.probe import Probe
from securetrain.guard.verdict import Totals
from securetrain.guard.watched import Listener, Watched, no_rollback, zero
from securetrain.guard.whereabouts import backward_pass, in_backward, is_distributed, is_inner
from securetrain.policy.schema import Gradients, GuardResponse

_UNSEEN: Final = "ST-GRAD-006"
UNWATCHED: Final = "ST-GRAD-020"


class ScriptGuard:
    """Watches every model of this process.

    Args:
        settings: The policy's section.
        listener: Hears what happens.
        nodes: The node of each rank of the job; see `GradientGuard`.
    """

    def __init__(
        self, settings: Gradients, listener: Listener, nodes: Sequence[int] | None = None
    ) -> None:
        self._settings = settings
        self._nodes = nodes
        self._objection: GuardError | None = None
        self._listener = listener
        self._models: list[Watched] = []
        self._reasons: dict[str, None] = {}
        self._why: dict[int, str] = {}
        """Why a model is not watched, by the ids of its parameters."""
        self._elsewhere: dict[str, None] = {}
        """Wrappers of the script that are not watched."""
        self.unwatched_steps = 0
        """Steps of optimizers on gradients that nobody judged."""
        self._scaled = False
        """A loss scaler was used: it looks at all gradients first."""
        self._totals = Totals()
        self._counted: weakref.WeakKeyDictionary[GradientGuard, Totals] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why steps were not watched, each once; empty when all were."""
        return tuple(self._reasons)

    @property
    def totals(self) -> Totals:
        """Steps judged and refused in this process, over all models, also those that are gone."""
        self._count()
        return self._totals

    # -- models ------------------------------------------------------------------------------------

    def replicated(self, model: DistributedDataParallel) -> None:
        """DDP has wrapped a model."""
        self._forget(model)
        if model.process_group.size() == 1:
            self._explain(model, "its group has one rank: there is nothing to compare with")
        elif not slots.reserve_replicated(model, self._move_in):
            self._explain(model, "DDP's mixed precision has a communication hook of its own")
        else:
            buffers_of(model, self._settings)

    def sharded(self, module: nn.Module) -> None:
        """fully_shard has sharded a module."""
        if isinstance(module, FSDPModule):
            self._forget(module)
            slots.reserve_sharded(module, self._move_in_root)

    def flattened(self, module: FullyShardedDataParallel) -> None:
        """FSDP1 has sharded a module."""
        self._forget(module)
        if reason := reserve_flat(module, lambda one: self._move_in(flat_root(one))):
            self._explain(module, reason)

    def wrapped_otherwise(self, name: str) -> None:
        """A wrapper that is not watched was used."""
        self._elsewhere[name] = None

    def stepped_otherwise(self, name: str) -> None:
        """Something that is not watched is about to step.

        Raises:
            GuardError: ST-GRAD-020.
        """
        self.wrapped_otherwise(name)
        if is_distributed():
            self._note(_not_watched(self._elsewhere))

    def hook_otherwise(self, model: nn.Module) -> None:
        """The script registers a communication hook where it has to be its own."""
        self.give_up(model, _FOREIGN)

    def accept_hook(self, model: DistributedDataParallel, state: object, hook: Any) -> bool:
        """The script registers a communication hook: put it into the model's slot, if it has one.

        Raises:
            TypeError, ValueError: torch does not take this hook.
        """
        slot = slots.bucket_slot(model)
        if slot is None:
            return False
        model._check_comm_hook(hook)  # noqa: SLF001 - what register_comm_hook does first
        slot.take(state, hook)
        if slot.foreign is not None:
            self.give_up(model, _FOREIGN)
        return True

    def give_up(self, model: nn.Module, reason: str) -> None:
        """The script does something with a model that cannot be watched."""
        slots.release(model)
        release_flat(model)
        release_buffers(model)
        self._models = [one for one in self._models if one.model() is not model]
        self._explain(model, reason)

    def _move_in_root(self, module: nn.Module) -> None:
        """The first reduction of a sharded model: find its root."""
        states = module._get_fsdp_state()._state_ctx.all_states  # type: ignore[operator]  # noqa: SLF001
        roots = [state._modules[0] for state in states if state._is_root]  # noqa: SLF001
        self._move_in(roots[0] if roots else module)

    @slots.eager
    def _move_in(self, model: nn.Module) -> None:
        """Attach a guard to a model whose first gradients are about to be reduced. Collective."""
        if any(model in guard.parts for guard in GUARDS) or id(model) in self._why:
            return
        self._models = [one for one in self._models if one.model() is not None]
        if self._settings.response is GuardResponse.ROLLBACK:
            self._objection = no_rollback()
            self.give_up(model, self._objection.what)
            return
        try:
            guard = attach(
                model,
                None,
                self._settings,
                on_record=self._listener.judged,
                nodes=self._nodes,
                on_suspicion=self._listener.suspected,
                signer=self._listener.signer,
            )
        except GuardError as error:
            # In a backward pass nothing may be raised: the others would wait.
            self.give_up(model, error.what)
            return
        kind = "FSDP1" if has_flat(model) else "fully_shard"
        kind = "DDP" if isinstance(model, DistributedDataParallel) else kind
        seen = seen_parameters(model)
        watched = Watched(
            model=weakref.ref(model),
            guard=guard,
            parameters=seen,
            reductions=slots.installed_reductions(model),
            is_flat=kind == "FSDP1",
        )
        self._models.append(watched)
        self._counted[guard] = guard.totals
        guard.on_reduction(lambda: self._reducing(watched))
        count = flat_count(model) if kind == "FSDP1" else len(seen)
        self._listener.watched(f"{kind}, {count} parameters, {guard.size} ranks")

    def _reducing(self, one: Watched) -> None:
        """Gradients of a model are being reduced: were the last ones used unseen?

        Raises:
            GuardError: ST-GRAD-020. All ranks are in the same reduction, and none goes on.
        """
        task = backward_pass()
        model = one.model()
        if model is None or (one.probe is not None and one.probe.task == task):
            return
        self._look_back(one)
        one.probe = Probe.of(model, task)

    def _look_back(self, one: Watched) -> None:
        probe, one.probe = one.probe, None
        if probe is not None and probe.has_changed():
            self._note(_PAST)

    def look_back(self) -> None:
        """The script ends, or says how far it is: were the last gradients used unseen?"""
        for one in self._models:
            if one.probe is not None and one.probe.has_changed():
                one.probe = None
                self._say(_PAST)

    def _forget(self, model: nn.Module) -> None:
        """A model is wrapped anew, or is another one where an old one was."""
        for key in (id(model), *map(id, model.parameters())):
            self._why.pop(key, None)

    def _explain(self, model: nn.Module, reason: str) -> None:
        self._why |= dict.fromkeys((id(model), *map(id, model.parameters())), reason)

    # -- steps -------------------------------------------------------------------------------------

    @slots.eager
    def before_use(self, parameters: Iterable[Any], *, scaled: bool = False) -> None:
        """The script is about to use the gradients of parameters, or gradients that it took.
        Collective where something was reduced.

        Args:
            parameters: Of one model or several.
            scaled: A loss scaler is about to look at them.
        """
        self._scaled = self._scaled or scaled
        if is_distributed() and not in_backward():
            self._object()
            self._judge(frozenset(map(id, parameters)), keep=True)

    @slots.eager
    def bind_norm(self, tensors: Iterable[Any], total: Any, order: float) -> Any:
        """The norm of gradients by which the script is about to clip: `total`, or what was
        delivered where that contradicts it. Collective where `total` is pending.

        Raises:
            GuardError: ST-GRAD-005, the policy halts the run; ST-GRAD-010, a rank did not speak.
        """
        if not is_distributed() or in_backward():
            return total
        ids = frozenset(map(id, tensors))
        for one in self._models:
            model = one.model()
            grads = [] if model is None else [p.grad for p in model.parameters()]
            held = [grad for grad in grads if grad is not None]
            if held and not one.is_flat and any(id(grad) in ids for grad in held):
                whole = all(id(grad) in ids for grad in held)
                mine = [grad for grad in held if id(grad) in ids]
                after = one.guard.bind_norm(total, mine, order, whole=whole)
                self._take(one, after)
                return after.value
        return total

    @slots.eager
    def bind_flat_norm(self, model: nn.Module, total: Tensor, order: float) -> Tensor:
        """The same for FSDP1's own clipping of a model. Collective.

        Raises:
            GuardError: ST-GRAD-005, the policy halts the run; ST-GRAD-010, a rank did not speak.
        """
        for one in self._models:
            if one.model() is model:
                grads = [p.grad for p in model.parameters() if p.grad is not None]
                after = one.guard.bind_norm(total, grads, order, flat=True)
                self._take(one, after)
                return after.value
        return total

    @slots.eager
    def bind_flags(
        self, optimizer: Optimizer, flags: dict[Any, Tensor], *, flat: bool = False
    ) -> None:
        """A loss scaler has looked for infinities in an optimizer's gradients: the flags by which
        it skips the step. Collective where gradients are sharded.

        Raises:
            GuardError: ST-GRAD-005, the policy halts the run; ST-GRAD-010, a rank did not speak.
        """
        if not is_distributed():
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for one in self._models:
            mine = [p for p in parameters if id(p) in one.parameters and p.grad is not None]
            # FSDP1 may leave a rank without numbers of these: it takes part all the same.
            known = any(id(p) in one.parameters for p in parameters)
            for flag in flags.values() if mine or (flat and known) else ():
                after = one.guard.bind_flag(flag, mine, flat=flat)
                flag.copy_(after.value)
                self._take(one, after)

    def _take(self, one: Watched, after: Aftermath) -> None:
        """Follow a second verdict."""
        refused = after.verdict is not None and not after.verdict.proceed
        one.refused = one.refused or refused or after.drop
        model = one.model()
        if after.verdict is not None:
            after.verdict.raise_if_halted()
        if (refused or after.drop) and model is not None:
            zero([(p, p.grad) for p in model.parameters() if p.grad is not None])

    @slots.eager
    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """An optimizer is about to step: torch's pre-hook. Collective where something was reduced.

        Returns:
            Other arguments when there is a closure, which computes the gradients.

        Raises:
            GuardError: ST-GRAD-005, the policy halts the run; ST-GRAD-020, it requires that
                gradients are watched, and these are not.
        """
        if not is_distributed():
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._settle(optimizer)
            return None

        def judged_closure() -> Any:
            result = closure()
            self._settle(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": judged_closure}
        return (args[0], judged_closure, *args[2:]), kwargs

    def _object(self) -> None:
        if self._objection is not None:
            self._listener.refused(self._objection)
            raise self._objection

    def _settle(self, optimizer: Optimizer) -> None:
        if any(id(optimizer) in one.stepped for one in self._models) and is_inner(optimizer):
            return  # step of a subclass calls the one of its base
        self._object()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        ids = frozenset(map(id, parameters))
        if in_backward():
            self._note_in_backward(ids)
            return
        for one in self._models:
            if one.optimizer is None and not one.parameters.isdisjoint(ids):
                one.optimizer = weakref.ref(optimizer)
                one.guard.use_optimizer(optimizer)
        self._judge(ids, keep=False)
        self._count()
        for reason in self._unwatched(optimizer, parameters):
            self._note(reason)
        for one in self._models:
            if not one.parameters.isdisjoint(ids):
                one.stepped.add(id(optimizer))
                if one.refused and (model := one.model()) is not None:
                    one.refused = False  # what comes next may be reduced by another wrapper
                    for parameter in model.parameters():
                        parameter.grad = None

    def _note_in_backward(self, ids: frozenset[int]) -> None:
        for one in self._models:
            if not one.parameters.isdisjoint(ids):
                one.probe = None  # it is known who changes the weights
        self._note("an optimizer steps inside of the backward pass")

    def _judge(self, ids: frozenset[int], *, keep: bool) -> None:
        """Judge what was reduced of the models that have one of these parameters."""
        for one in list(self._models):
            model = one.model()
            if model is None or not one.guard.has_gradient:
                continue
            if one.parameters.isdisjoint(ids) and not any(
                id(p.grad) in ids for p in model.parameters()
            ):
                continue
            grads = [(p, p.grad) for p in model.parameters() if keep and p.grad is not None]
            self._look_back(one)
            one.step += 1
            one.stepped.clear()
            try:
                verdict = one.guard.judge(one.step, scaled=self._scaled)
            except GuardError as error:
                if error.code != _UNSEEN:
                    raise
                self.give_up(model, error.what)
                continue
            one.refused = not verdict.proceed
            verdict.raise_if_halted()
            if one.refused and not verdict.overflow:
                zero(grads)

    def _count(self) -> None:
        for guard in list(GUARDS):
            now = guard.totals
            if (before := self._counted.get(guard)) is None:
                # A guard of the script may go on from a checkpoint: only its last steps are new.
                steps = min(now.judged, 1 + now.refused_in_a_row)
                before = Totals(
                    judged=now.judged - steps,
                    refused=now.refused - now.refused_in_a_row,
                    settled=now.settled,
                )
            self._counted[guard] = now
            self._totals = Totals(
                judged=self._totals.judged + now.judged - before.judged,
                refused=self._totals.refused + now.refused - before.refused,
                settled=self._totals.settled + now.settled - before.settled,
            )

    def _unwatched(self, optimizer: Optimizer, parameters: list[Tensor]) -> Iterable[str]:
        """The reasons why gradients that the optimizer is about to use were not judged."""
        used = [p for p in parameters if p.grad is not None]
        seen: set[int] = set()
        # A model may be wrapped twice: what the one has not reduced the other may have.
        alive = [one for one in self._models if id(optimizer) not in one.stepped]
        fresh = frozenset[int]().union(*(one.parameters for one in alive))
        for one in self._models:
            if (model := one.model()) is None:
                continue
            seen |= one.parameters
            mine = any(id(p) in one.parameters for p in used)
            if any(id(p) in one.parameters - fresh for p in used):
                yield f"an optimizer steps twice on gradients of {_name(model)} without a reduction"
            slot = slots.bucket_slot(model) if isinstance(model, DistributedDataParallel) else None
            if mine and not slots.are_installed(one.reductions):
                yield "the script has put another reduce-scatter in place of the guard's"
            if mine and slot is not None and (slot.sparse or slot.foreign is not None):
                yield "gradients are sparse" if slot.sparse else _FOREIGN
        for guard in GUARDS:
            parts = guard.parts
            if all(guard is not one.guard for one in self._models):
                seen |= {id(p) for part in parts for p in part.parameters()}
                if guard.has_gradient and any(id(p) in seen for p in used):
                    yield "the script attached a guard and did not call judge"
        unseen = [p for p in used if id(p) not in seen]
        if unseen:
            yield self._reason(unseen[0], all(id(p) not in seen for p in parameters))

    def _reason(self, parameter: Tensor, is_whole: bool) -> str:  # noqa: FBT001 - one fact
        if (why := self._why.get(id(parameter))) is not None:
            return why
        if not is_whole:
            shape = "x".join(map(str, parameter.shape)) or "scalar"
            models = [model for one in self._models if (model := one.model()) is not None]
            if any(parameter is one for model in models for one in model.parameters()):
                return (
                    f"a parameter ({shape}) was frozen when DDP took the model: it is not reduced"
                )
            return f"a parameter ({shape}) lies outside of the model that is watched"
        if self._elsewhere:
            return _not_watched(self._elsewhere)
        return "no model was wrapped by DistributedDataParallel or fully_shard"

    def _say(self, reason: str) -> None:
        self.unwatched_steps += 1
        if reason not in self._reasons:
            self._reasons[reason] = None
            self._listener.unwatched(reason)

    def _note(self, reason: str) -> None:
        """A step is not watched."""
        self._say(reason)
        if self._settings.require_watched:
            raise GuardError(UNWATCHED, f"this step is not watched: {reason}", "gradients")


_PAST: Final = "weights change without a step of an optimizer that torch knows"
_FOREIGN: Final = "the script has registered a communication hook of its own"


def _not_watched(names: Iterable[str]) -> str:
    return f"{' and '.join(names)} is not watched"


def _name(model: nn.Module) -> str:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return type(inner).__name__
