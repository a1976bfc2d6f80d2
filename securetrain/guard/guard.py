# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard of one training process: attach once, judge every step.

A step, on every rank:

1. during the backward pass the hooks reduce as torch does and hand over what was reduced
   (hooks.py);
2. `judge` waits for delivery, draws the last seed, sketches (collect.py) and all-gathers one row:
   transcript digest, sketches of parts and of groups, of the result and of the optimizer's first
   moment (statements.py);
3. every rank computes the same findings from the same table: finite, outliers (detector.py),
   integrity of the reduction (integrity.py);
4. all ranks act on one finding, whatever one of them tells the others (common_finding.py); two or
   three compare hashes, with the next step's first message or, where the policy confirms tables,
   at once: who was told another table shows there (ST-GRAD-004);
5. when ranks hold different pieces of the model, all ranks tell each other what their group found
   (agreement.py), so that a step that is refused anywhere is refused everywhere;
6. the policy's response (response.py). A refused step's gradients are dropped (`grad = None`)
   unless the policy only observes: a trainer that forgets to look at the verdict does not step on
   them.

Which gradients: of each piece of the model (watch.py) the local gradient of every rank that holds
it, before any reduction over data- and context-parallel ranks and after those over tensor-parallel
ones. See docs/explanation/gradient-guard.md.

Cost per step: `draws + 1` all-gathers, two small ones more from four ranks on, and one of 258 bytes
where the model lies in pieces; rows of k numbers for each part and three for each group; and one
read each of the gradient, the result and the first moment. On an oversubscribed machine every
extra collective waits for the slowest rank (benchmarks/step.py).

What mode `detect` covers: faults, poisoned shards, byzantine ranks, and reductions that were
tampered with. What it does not: see detector.py (faint, rotating and majority attacks) and
integrity.py (the owner of an FSDP shard).
"""

import itertools
import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError, UsageError
from securetrain.guard.agreement import JobAgreement
from securetrain.guard.bound_numbers import Aftermath, Bound, bind_flag, bind_norm, watch_of
from securetrain.guard.collect import RETAIN_BYTES
from securetrain.guard.flat import flat_modules, has_flat
from securetrain.guard.guard_state import STATE_VERSION, GuardState, PieceState
from securetrain.guard.hooks import sharded_modules
from securetrain.guard.lone_watch import LoneWatch
from securetrain.guard.presence import Deadline, default_store
from securetrain.guard.response import Findings
from securetrain.guard.step_table import Judged
from securetrain.guard.suspicions import (
    Beginnings,
    OnSuspicion,
    Suspicion,
    silent_ones,
    suspicions,
)
from securetrain.guard.tensor_norms import TensorNorms
from securetrain.guard.verdict import StepRecord, Totals, Verdict
from securetrain.guard.watch import GroupWatch, Watch
from securetrain.guard.witness import WordSigner
from securetrain.policy.schema import Gradients, GuardMode, GuardResponse


class GradientGuard:
    """Watches the gradients of one model.

    Args:
        group: the ranks that hold what this rank holds and see other tokens; None is the default
            group, or one rank alone without one.
        settings: the policy's section.
        experts: the same for experts, where they are spread over other ranks than the rest.
        on_record: called once a step with the record, on every rank that passes one.
        job_group: all ranks of the job, where some hold other pieces of the model (tensor or
            pipeline parallel): a step that one of them refuses is refused by all.
        nodes: the node of each rank of the job, by number: what statistics say excludes ranks of
            one node in a window. None: all count as one node's.
        on_suspicion: told whom to report to the rendezvous: who is silent, and under the response
            `evict-node` who is excluded.
        signer: signs this rank's words in disputes; without it they are not signed.
        randomness: gives n unpredictable bytes.
        retain_bytes: local gradient bytes that may wait for a seed.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        settings: Gradients,
        *,
        experts: ProcessGroup | None = None,
        on_record: Callable[[StepRecord], None] | None = None,
        job_group: ProcessGroup | None = None,
        nodes: Sequence[int] | None = None,
        on_suspicion: OnSuspicion | None = None,
        signer: WordSigner | None = None,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
        retain_bytes: int = RETAIN_BYTES,
    ) -> None:
        match settings.mode:
            case GuardMode.DETECT:
                pass
            case GuardMode.OFF:
                raise ValueError("the policy turns the guard off: do not make one")
            case _:
                raise ValueError(f"unknown guard mode {settings.mode!r}")
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        self._groups = [g for g in (group, experts) if g is not None and g.size() > 1]
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._ranks = (self._rank,) if group is None else _ranks_of(group)
        self._settings = settings
        self._on_record = on_record
        self._nodes = tuple(nodes) if nodes else None
        self._on_suspicion = on_suspicion
        self._signer = signer
        self._beginnings = Beginnings()
        self._job_group = job_group if job_group is not None and job_group.size() > 1 else None
        self._agreement: JobAgreement | None = None
        self._randomness = randomness
        self._retain_bytes = retain_bytes
        self._watches: list[Watch] = []
        self._parts: tuple[nn.Module, ...] = ()
        self._objection: GuardError | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._deadline = Deadline(
            store=default_store(),
            rank=self._rank,
            name=str(next(_NUMBERS)),
            seconds=settings.deadline_seconds,
            report=self._report_silent,
        )
        self._loaded: list[PieceState] = []
        self._totals = Totals()
        self._norms = TensorNorms()
        self._step = 0

    @property
    def totals(self) -> Totals:
        """Counts since the run began."""
        return self._totals

    @property
    def size(self) -> int:
        """The number of ranks that compare their gradients."""
        return len(self._ranks)

    @property
    def judged(self) -> Judged | None:
        """The table of the last step; None in the open, or of pieces of a model."""
        watches = self._watches if self._job_group is None else []
        found = [one.judged for one in watches if isinstance(one, GroupWatch)]
        return found[0] if len(found) == len(watches) == 1 else None

    def follow(self, seeds: Sequence[bytes]) -> None:
        """Use the recorded seeds for the next step, which is done again (`Collector.follow`)."""
        for watch in self._watches:
            if isinstance(watch, GroupWatch):
                watch.collector.follow(seeds)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """The model, or the stages of a pipeline; empty before `attach`."""
        return self._parts

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for part in self._parts for parameter in part.parameters()]

    @property
    def has_gradient(self) -> bool:
        """True when a gradient was reduced that `judge` has not seen. Equal on every rank."""
        return any(isinstance(w, GroupWatch) and w.has_pieces for w in self._watches)

    def use_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare gradients with this optimizer's first moment from now on. Without it, or where it
        keeps none, the guard keeps a running mean of the reduced gradients.
        """
        self._optimizer = optimizer
        for watch in self._watches:
            if isinstance(watch, GroupWatch):
                watch.moments.use(optimizer)

    def on_reduction(self, callback: Callable[[], None]) -> None:
        """Have something called at each reduction from now on, after `attach`."""
        for watch in self._watches:
            if isinstance(watch, GroupWatch):
                watch.collector.on_add = callback

    def attach(self, *parts: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Hook what this rank holds, already wrapped by fully_shard or DDP: the model, or the
        stages of a pipeline. Collective, once.

        Raises:
            GuardError: ST-GRAD-006, a gradient of the model would not be seen.
        """
        if self._parts:
            raise _unseen("this guard is attached already", "make one guard per model")
        self._optimizer = optimizer or self._optimizer
        self._watches = self._make_watches(parts)
        self._parts = parts
        self._restore_pieces()
        GUARDS.add(self)

    def _agree(self) -> JobAgreement | None:
        """The job's agreement. It is made when all ranks come together, not in a backward pass:
        there the stages of a pipeline wait for each other. Collective over the job the first time.
        """
        if self._agreement is None and self._job_group is not None:
            self._agreement = JobAgreement(self._job_group, self._ranks, self._deadline)
        return self._agreement

    def judge(self, step: int, *, scaled: bool = False) -> Verdict:
        """Judge the gradients of the backward pass that just ended. Collective.

        Call it before clipping, before a loss scaler and before the optimizer steps.

        Args:
            step: its number.
            scaled: whether a loss scaler looks at the gradients next. Overflows are left to it, and
                to their gradients, as long as a scale can be the cause.

        Raises:
            GuardError: ST-GRAD-006, no gradient was seen since the last call; ST-GRAD-010, a rank
                did not speak before the deadline.
        """
        if self._objection is not None:
            raise self._objection
        if not self._parts:
            raise _unseen("the guard is not attached to a model", "call attach first")
        findings, batches, sent_bytes = Findings(scaled=scaled), 0, 0
        self._step = step
        self._deadline.step += 1
        elsewhere: set[int] = set()
        for watch in self._watches:
            drawn, sent = watch.judge(findings, elsewhere)
            watch.hand_over(step)
            elsewhere |= {watch.ranks[index] for index in watch.exclusion.excluded}
            batches, sent_bytes = batches + drawn, sent_bytes + sent
        self._beginnings.look(step, findings)
        agreement = self._agree()
        if agreement is not None:
            sent_bytes += agreement.exchange(findings)
        verdict, self._totals = findings.verdict(
            step, self._totals, self._settings.response, self._settings.max_refused_steps
        )
        self._use(verdict)
        if self._on_record is not None:
            self._on_record(
                StepRecord(
                    verdict=verdict,
                    totals=self._totals,
                    world_size=len(self._ranks),
                    batches=batches,
                    sent_bytes=sent_bytes,
                )
            )
        self._report(suspicions(verdict, self._settings.response))
        return verdict

    def _use(self, verdict: Verdict) -> None:
        """Clip the gradients, or drop those of a refused step."""
        if verdict.response is GuardResponse.CLIP:
            self._norms.clip(self._parameters)
        elif not verdict.proceed and not verdict.overflow:
            for parameter in self._parameters:
                parameter.grad = None
        elif verdict.ok and self._settings.response is GuardResponse.CLIP:
            self._norms.learn(self._parameters)

    def _report_silent(self, missing: tuple[int, ...]) -> None:
        self._report(silent_ones(missing, self._settings.deadline_seconds))

    def _report(self, found: Iterable[Suspicion]) -> None:
        if self._on_suspicion is not None:
            for one in found:
                self._on_suspicion(one)

    def bind_norm(
        self,
        total: Tensor,
        grads: Sequence[Tensor],
        order: float = 2.0,
        *,
        whole: bool = True,
        flat: bool = False,
    ) -> Aftermath:
        """Check the norm by which all ranks are about to clip against what was delivered; for
        gradients that are sharded (bound_numbers.py). Collective.

        Args:
            total: torch's.
            grads: of which it is the norm.
            order: of the norm.
            whole: all gradients of the model are among them.
            flat: they are FSDP1's, and the norm is of all ranks' shards.

        Raises:
            GuardError: ST-GRAD-010, a rank did not speak.
        """
        watch = None if self._job_group else watch_of(self._watches, grads, flat=flat)
        if watch is None or order <= 0:
            return Aftermath(value=total)
        bound = bind_norm(watch, total, grads, order, whole=whole)
        return self._follow(watch, bound)

    def bind_flag(
        self, found_inf: Tensor, parameters: Sequence[Tensor], *, flat: bool = False
    ) -> Aftermath:
        """The same for the flag by which a loss scaler skips a step of sharded gradients.
        Collective.

        Args:
            found_inf: the largest of all ranks' flags.
            parameters: whose gradients were looked at.
            flat: see `bind_norm`.

        Raises:
            GuardError: ST-GRAD-010, a rank did not speak.
        """
        grads = [p.grad for p in parameters if p.grad is not None]
        watch = None if self._job_group else watch_of(self._watches, grads, flat=flat)
        if watch is None:
            return Aftermath(value=found_inf)
        return self._follow(watch, bind_flag(watch, found_inf, grads))

    def _follow(self, watch: GroupWatch, bound: Bound) -> Aftermath:
        """Give a second verdict on the step that was judged last, where something is wrong."""
        if bound.found is None:
            return Aftermath(value=bound.said)
        findings, before, settings = Findings(), self._totals, self._settings
        watch.answer(findings, bound.found)
        verdict, totals = findings.verdict(
            self._step, before, settings.response, settings.max_refused_steps
        )
        self._totals = msgspec.structs.replace(
            totals, judged=before.judged, calibrating=before.calibrating, without=before.without
        )
        if self._on_record is not None:
            size = len(self._ranks)
            self._on_record(
                StepRecord(
                    verdict=verdict, totals=self._totals, world_size=size, batches=0, sent_bytes=8
                )
            )
        if settings.response is GuardResponse.OBSERVE:
            return Aftermath(value=bound.said, verdict=verdict)
        named = {watch.ranks[index] for index in bound.found.named}
        return Aftermath(value=bound.bound, verdict=verdict, drop=self._rank in named)

    def state_dict(self) -> dict[str, Any]:
        """Plain ints, floats, strings, lists and dicts; equal on every rank. Collective where the
        model lies in pieces.
        """
        pieces = [
            PieceState(
                ranks=watch.ranks,
                piece=watch.piece,
                detector=watch.detector.state(),
                exclusion=watch.exclusion.state(),
            )
            for watch in self._watches
        ] or self._loaded
        agreement = self._agree()
        if agreement is not None:
            told = agreement.gather_from_leaders(msgspec.json.encode(pieces))
            pieces = [one for data in told for one in msgspec.json.decode(data, type=_PIECES)]
        state = GuardState(totals=self._totals, pieces=pieces, calm=self._beginnings.state())
        result: dict[str, Any] = msgspec.to_builtins(state)
        return result

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; about pieces that were held otherwise, thresholds are learned
        anew.

        Raises:
            UsageError: ST-USAG-008, the state is not one of this version.
        """
        try:
            loaded = msgspec.convert(state, GuardState, strict=True)
        except msgspec.ValidationError as error:
            raise _bad_state(str(error)) from error
        if loaded.version != STATE_VERSION:
            raise _bad_state(f"version {loaded.version} is not {STATE_VERSION}")
        self._totals = loaded.totals
        self._loaded = loaded.pieces
        self._beginnings.restart(loaded.calm)
        self._restore_pieces()

    # -- what there is to watch --------------------------------------------------------------------

    def _make_watches(self, parts: tuple[nn.Module, ...]) -> list[Watch]:
        if isinstance(parts[0], DistributedDataParallel):
            if len(parts) > 1 or len(self._groups) != 1:
                raise _unseen("DDP replicates a model that is in one piece", "use fully_shard")
            whole = self._group_watch(self._groups[0])
            whole.watch_replicated(parts[0])
            return [whole]
        if has_flat(parts[0]):
            if len(parts) > 1 or len(self._groups) != 1:
                raise _unseen("FSDP1 shards a model that is in one piece", "use fully_shard")
            whole = self._group_watch(self._groups[0])
            whole.watch_flat(flat_modules(parts[0]))
            return [whole]
        if not any(isinstance(m, FSDPModule) for part in parts for m in part.modules()):
            if self._groups:
                raise _unseen(
                    "the model is neither sharded by fully_shard nor wrapped by "
                    "DistributedDataParallel, so nothing reduces its gradients",
                    "wrap it before attach",
                )
            return [self._lone([p for part in parts for p in part.named_parameters()])]
        return self._sharded_watches(parts)

    def _sharded_watches(self, parts: tuple[nn.Module, ...]) -> list[Watch]:
        modules, watches = sharded_modules(parts), list[Watch]()
        alone = [one for one in modules if one.ranks == (self._rank,)]
        rest = [one for one in modules if one.ranks != (self._rank,)]
        for group in self._groups:
            mine = [one for one in rest if one.ranks == tuple(sorted(_ranks_of(group)))]
            if not mine:
                raise _unseen(
                    f"nothing is sharded over ranks {list(_ranks_of(group))}",
                    "give the guard the group over which fully_shard spreads the model",
                )
            rest = [one for one in rest if one not in mine]
            watch = self._group_watch(group)
            watch.watch_sharded(mine, self._report_error)
            watches.append(watch)
        if rest:
            raise _unseen(
                f"{rest[0].chunk} is sharded over ranks {list(rest[0].ranks)}, about which the"
                " guard was not told",
                "give the guard the group over which fully_shard spreads the model",
            )
        if alone:
            named = [(one.chunk, p.sharded_param) for one in alone for p in one.group.fsdp_params]
            watches.append(self._lone(named))
        return watches

    def _group_watch(self, group: ProcessGroup) -> GroupWatch:
        nodes = self._nodes
        watch = GroupWatch(
            group,
            self._settings,
            self._randomness,
            self._retain_bytes,
            deadline=self._deadline,
            nodes=None if nodes is None else [nodes[rank] for rank in _ranks_of(group)],
            signer=self._signer,
        )
        if self._optimizer is not None:
            watch.moments.use(self._optimizer)
        return watch

    def _lone(self, parameters: list[tuple[str, nn.Parameter]]) -> LoneWatch:
        return LoneWatch(parameters, self._rank, self._settings)

    def _restore_pieces(self) -> None:
        """Use what was loaded about the pieces that this rank holds."""
        known = {(one.ranks, one.piece): one for one in self._loaded}
        for watch in self._watches:
            learned = known.get((watch.ranks, watch.piece))
            if learned is not None:
                watch.restore(learned.detector, learned.exclusion)

    def _report_error(self, error: GuardError) -> None:
        self._objection = self._objection or error


_PIECES: Final = list[PieceState]
GUARDS: Final[weakref.WeakSet[GradientGuard]] = weakref.WeakSet()
"""Those of this process that are attached."""
_NUMBERS: Final = itertools.count()
"""Of the guards of this process; ranks of a job make them in the same order."""


def _ranks_of(group: ProcessGroup) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _unseen(what: str, fix: str) -> GuardError:
    return GuardError("ST-GRAD-006", what, "the model given to the guard", fix)


def _bad_state(what: str) -> UsageError:
    return UsageError(
        "ST-USAG-008", f"not a guard state: {what}", "guard state", "start with a new guard"
    )
