# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The newest checkpoint of a run that may be believed: one state machine without any I/O.

What is known comes in as values; `judging`, `head`, `waivers`, `quarantine` and `folder` read
it. Loading, verifying, resuming, evicting, numbering and removing ask here.

1. A checkpoint is in one state of the table below. An event that its row does not name changes
   nothing; the run's ledger tells of ``enter``, ``doubt`` and ``gone`` only.
2. A checkpoint is believed to be the newest when all of this holds, in order; a waiver of operators
   for exactly this digest excuses b to f where the table of codes says so, and so does that the run
   itself set its newest one aside and went back to exactly this one:

   a. it has not expired;
   b. no record beside it says that it was set aside;
   c. the head, when there is one or the policy asks for one, is good, of this run and not below
      what this node has seen: a store may show an old head with an old checkpoint;
   d. it is the head's own, or one that the head does not know yet (a crash came between the two)
      and that names the head's as the one before it;
   e. it is not older than what this node, or any node of the same load, has seen of the run, nor
      another one of that number; and this node has never seen that it was set aside;
   f. the run's own ledger, where that is asked, does not say that it was set aside, and names it
      last, or it follows the one that is named last: a crash may come before the entry.

3. An evicted node's checkpoints are in doubt when they were made in an epoch of that node and not
   before it last proved itself; at the same moment is not before. When and in which epoch is what
   the ledger says. A checkpoint that the ledger does not know has its own statement's word, but not
   when the evicted node was rank 0, which signs it, nor for an epoch that has not begun.
4. The newest `keep` are never removed, nor those of steps that `every` divides, nor protected ones.
5. No number is used twice: the next one is above the head's and everything this node has seen.
6. A death may come between a checkpoint's data and its entry in the ledger. The run rolls forward:
   what follows the ledger's last by its signed parent, and is believed by rule 2, is entered before
   anything else happens, one after the other. Where two follow the same one nothing is entered.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import reduce
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from securetrain.artifacts.statement.statements import (
    Count,
    Hex32,
    Opened,
    ParentRole,
    Text,
    Time,
)
from securetrain.artifacts.tree.layout import STATEMENT, Problem
from securetrain.core import CODES, Retry

HEAD: Final = "head.json"
CLOCK_SKEW: Final = timedelta(minutes=10)
NO_EPOCH: Final = -1


class State(StrEnum):
    """The progress of a checkpoint from saving to removal."""

    STAGED = "staged"
    """It is being written, under a name that nothing reads."""
    SAVED = "saved"
    """Whole and signed; neither the head nor the ledger names it."""
    HEADED = "headed"
    """The run's signed head names it."""
    ENTERED = "entered"
    """The run's ledger names it."""
    SUPERSEDED = "superseded"
    """A newer one is known."""
    SET_ASIDE = "set-aside"
    REMOVING = "removing"
    """It has the name of what goes; a crash may have come before its files went."""
    REMOVED = "removed"


class Event(StrEnum):
    """A change of a checkpoint's state."""

    COMMIT = "commit"
    HEAD = "head"
    ENTER = "enter"
    PASS = "pass"  # noqa: S105 - a newer one passes it
    DOUBT = "doubt"
    MOVE = "move"
    GONE = "gone"


_TABLE: Final = """
state       commit  head     enter    pass        doubt      move      gone
staged      saved   -        -        -           -          -         -
saved       -       headed   entered  superseded  set-aside  -         -
headed      -       headed   entered  superseded  set-aside  -         -
entered     -       entered  entered  superseded  set-aside  -         removed
superseded  -       -        entered  superseded  set-aside  removing  removed
set-aside   saved   -        entered  -           set-aside  -         -
removing    -       -        -        -           -          removing  removed
removed     saved   -        entered  -           set-aside  -         removed
"""
_COLUMNS, *_ROWS = [line.split() for line in _TABLE.strip().splitlines()]
TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    State(row[0]): {
        Event(event): State(cell)
        for event, cell in zip(_COLUMNS[1:], row[1:], strict=True)
        if cell != "-"
    }
    for row in _ROWS
}
"""Rule 1: the state after an event."""


def step(state: State, event: Event) -> State:
    """The state after an event."""
    return TABLE[state].get(event, state)


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The newest checkpoint of a run that was seen."""

    seq: Count
    digest: Hex32


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The newest checkpoint of a run, as a checkpoint key has signed it."""

    run_id: Text
    seq: Count
    step: Count
    digest: Hex32
    prev: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """SHA-256 of the bytes of the head before this one; empty for the first."""
    log_index: Count | None = None
    """Where the transparency log has the checkpoint's statement; None when it is in none."""
    created: Time
    expires: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One checkpoint, as the ledger knows it."""

    name: str
    step: int
    digest: str
    time: datetime
    epoch: int
    """`NO_EPOCH` when none had begun."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """The guard takes a run back."""

    to: int
    """The step."""
    ranks: str
    """Those that are excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The checkpoints of a run, as its ledger tells of them (`head`)."""

    made: tuple[Made, ...] = ()
    """Oldest first."""
    set_aside: frozenset[str] = frozenset()
    """Digests of those that were set aside and not made again."""
    epoch: int = NO_EPOCH
    """The one that has begun last, in this launch."""
    restart: str = ""
    """The digest of the checkpoint that the run went back to last; empty when it never did, or went
    back to the beginning."""
    going_back: Rollback | None = None
    """A rollback that was begun: no `RestartPoint` ends it."""
    distrusted: frozenset[tuple[str, str]] = frozenset()
    """Evictions that were dealt with: the node, and its ``last_good``."""

    @property
    def by_digest(self) -> dict[str, Made]:
        """The checkpoints by their digests."""
        return {made.digest: made for made in self.made}

    @property
    def last(self) -> Made | None:
        """The last checkpoint that was made and not set aside."""
        return self.made[-1] if self.made else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that is known about a run besides the checkpoints; what is left out is not asked."""

    now: datetime | None = None
    head: Head | None = None
    head_required: bool = False
    floor: Floor | None = None
    """Of this node."""
    heard: Mapping[str, Floor] = field(default_factory=dict)
    """Those of others, by the words for who has seen it."""
    excused: frozenset[str] = frozenset()
    """Digests that rule 2 excuses."""
    set_aside: frozenset[str] = frozenset()
    """Digests of which this node has seen that they were set aside."""
    records: Mapping[str, Problem] = field(default_factory=dict)
    """By digest: the problem of the record beside a checkpoint that was set aside."""
    history: History | None = None
    """The run's own ledger."""


OpenedT = TypeVar("OpenedT", bound=Opened)


@dataclass(frozen=True, slots=True)
class Belief(Generic[OpenedT]):
    """The newest checkpoint that may be believed, and why the others may not."""

    newest: OpenedT | None
    problems: Sequence[Sequence[Problem]]
    """Of each that was given, in that order; one without any may be believed."""
    states: Sequence[State]
    """In the same order."""


def newest_believed(found: Sequence[OpenedT], known: Known) -> Belief[OpenedT]:
    """Rule 2. Of several, the one with the highest step: that is where a start goes on."""
    # One by one: equal bytes have one digest, and may have been signed under several numbers.
    problems = [[*expired(one, known.now), *doubts(one, known)] for one in found]
    believed = [one for one, why_not in zip(found, problems, strict=True) if not why_not]
    newest = max(believed, key=lambda one: one.checkpoint.step, default=None)
    return Belief(newest, problems, [state_of(one, known) for one in found])


def expired(one: Opened, now: datetime | None) -> list[Problem]:
    """Rule 2a; everybody asks it, whether or not the newest one is wanted."""
    expires = one.checkpoint.expires
    if expires is None or now is None or now < expires:
        return []
    return [_problem("ST-CKPT-153", f"it expired at {expires.isoformat()}")]


def doubts(one: Opened, known: Known) -> list[Problem]:
    """Rules 2b to 2f."""
    record = known.records.get(one.digest)
    problems = [] if record is None else [record]
    head, seq, digest = known.head, one.checkpoint.seq, one.digest
    if head is not None:
        problems += _head(head, one.checkpoint.run_id, known.now)
        problems += _below(known.floor, head.seq, head.digest, "the head")
        problems += _against_head(one, head)
    elif known.head_required:
        what = "there is no signed head of the run, and the policy asks for one"
        problems.append(_problem("ST-CKPT-152", what, HEAD))
    problems += _below(known.floor, seq, digest, "the checkpoint")
    for who, floor in known.heard.items():
        problems += _below(floor, seq, digest, "the checkpoint", who)
    if digest in known.set_aside:
        problems.append(_problem("ST-CKPT-160", "this node has seen that it was set aside"))
    if known.history is not None:
        problems += _against_ledger(one, known.history)
    if digest in known.excused:
        problems = [problem for problem in problems if not _is_excusable(problem)]
    return problems


def state_of(one: Opened, known: Known) -> State:
    """The state of a signed checkpoint, by what is known of its run (rule 1)."""
    events = []
    if known.head is not None and known.head.digest == one.digest:
        events.append(Event.HEAD)
    if known.history is not None and one.digest in known.history.by_digest:
        events.append(Event.ENTER)
    found = {problem.code for problem in doubts(one, known)}
    if "ST-CKPT-150" in found or "ST-CKPT-151" in found:
        events.append(Event.PASS)
    if "ST-CKPT-160" in found:
        events.append(Event.DOUBT)
    return reduce(step, events, State.SAVED)


class Order(StrEnum):
    """The relation of one checkpoint of a run to another."""

    SAME = "same"
    OLDER = "older"
    FORKED = "forked"
    """Another one of the same number: somebody has signed two histories."""
    NEWER = "newer"


def order(seq: int, digest: str, than: Floor | Head) -> Order:
    """Compare a checkpoint with one that was seen; equal bytes are the same checkpoint."""
    if digest == than.digest:
        return Order.SAME
    if seq == than.seq:
        return Order.FORKED
    return Order.OLDER if seq < than.seq else Order.NEWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A node that is not believed any more."""

    epoch: int
    """The last one that it was a member of."""
    led: bool
    """Whether it was rank 0, which signs checkpoints."""
    until: datetime
    """When it last proved itself, by this node's clock."""


def in_doubt(gone: Eviction, one: Opened | None, made: Made | None, epoch: int) -> bool:
    """Rule 3.

    Args:
        gone: The eviction.
        one: The checkpoint, when it was found.
        made: The ledger's word on it, if it has any.
        epoch: The one that is about to begin.
    """
    if made is not None:
        return made.epoch <= gone.epoch and not made.time < gone.until
    assert one is not None, "a checkpoint is found or known"
    said = one.checkpoint
    if said.epoch is not None and said.epoch > gone.epoch:
        return said.epoch >= epoch
    return gone.led or not said.created < gone.until


def removable(
    found: Sequence[OpenedT], *, keep: int, every: int, protected: Collection[str]
) -> list[OpenedT]:
    """The checkpoints of a run that may go, oldest first (rule 4).

    Args:
        found: All of them.
        keep: How many of the newest stay; 0 keeps all.
        every: Those of steps that this divides stay; 0 for none.
        protected: Digests of those that stay.
    """
    oldest_first = sorted(found, key=lambda one: one.checkpoint.seq)
    return [
        one
        for one in (oldest_first[:-keep] if keep else ())
        if one.digest not in protected and not (every and one.checkpoint.step % every == 0)
    ]


def next_seq(seq: int, run_id: str, head: Head | None, floor: Floor | None) -> int:
    """The number of the next checkpoint, at least `seq` (rule 5)."""
    headed = -1 if head is None or head.run_id != run_id else head.seq
    return max(seq, headed + 1, 0 if floor is None else floor.seq + 1)


def not_entered(found: Sequence[OpenedT], known: Known) -> list[OpenedT]:
    """The checkpoints that the ledger is to be told of now, oldest first (rule 6).

    Args:
        found: Those of the run.
        known: With the time and the run's history.
    """
    assert known.history is not None, "the ledger's last is what they follow"
    ahead: list[OpenedT] = []
    history = known.history
    while True:
        here = replace(known, history=history)
        follows = [one for one in found if _follows(one, here, history)]
        if len(follows) != 1:
            return ahead
        one = follows[0]
        ahead.append(one)
        made = Made(
            name="",
            step=one.checkpoint.step,
            digest=one.digest,
            time=one.checkpoint.created,
            epoch=NO_EPOCH,
        )
        history = replace(history, made=(*history.made, made))


def _follows(one: Opened, known: Known, history: History) -> bool:
    is_last = history.last is not None and one.digest == history.last.digest
    return not (is_last or expired(one, known.now) or doubts(one, known))


def _head(head: Head, run_id: str, now: datetime | None) -> list[Problem]:
    problems = []
    if head.run_id != run_id:
        what = f"the head is of run {head.run_id}, the checkpoint of run {run_id}"
        problems.append(_problem("ST-CKPT-170", what, HEAD))
    assert now is not None, "a head is judged at a time"
    if head.expires <= now:
        what = f"the head expired at {head.expires.isoformat()}: nothing newer was shown since"
        problems.append(_problem("ST-CKPT-152", what, HEAD))
    if head.created > now + CLOCK_SKEW:
        what = f"the head is of the future ({head.created.isoformat()})"
        problems.append(_problem("ST-CKPT-152", what, HEAD))
    return problems


def _below(
    floor: Floor | None, seq: int, digest: str, what: str, who: str = "this node"
) -> list[Problem]:
    if floor is None:
        return []
    match order(seq, digest, floor):
        case Order.FORKED:
            text = f"{what} {digest[:16]} has number {seq}, and {who} has seen {floor.digest[:16]}"
            return [_problem("ST-CKPT-171", text)]
        case Order.OLDER:
            text = f"{what} has number {seq}, and {who} has seen number {floor.seq} of this run"
            return [_problem("ST-CKPT-151", text)]
    return []


def _against_head(one: Opened, head: Head) -> list[Problem]:
    seq = one.checkpoint.seq
    match order(seq, one.digest, head):
        case Order.OLDER:
            text = f"checkpoint {seq}, the head of the run is {head.seq} (step {head.step})"
            return [_problem("ST-CKPT-151", text)]
        case Order.FORKED:
            text = f"{one.digest[:16]} has number {seq}, the head says {head.digest[:16]}"
            return [_problem("ST-CKPT-171", text)]
        case Order.NEWER if _previous(one) != [head.digest]:
            text = "the head of the run does not know it, and it does not follow the head's"
            return [_problem("ST-CKPT-170", f"{text} checkpoint")]
    return []


def _against_ledger(one: Opened, history: History) -> list[Problem]:
    last, at, problems = history.last, one.checkpoint.step, []
    if one.digest in history.set_aside:
        text = f"the checkpoint of step {at} was set aside, whatever its directory says"
        problems.append(_problem("ST-CKPT-160", text))
    if last is not None and one.digest == last.digest:
        return problems
    if last is not None and at <= last.step:
        text = (
            f"a checkpoint of step {at}, but the ledger's last is that of step {last.step}"
            f" ({last.digest[:16]})"
        )
        problems.append(_problem("ST-CKPT-150" if at < last.step else "ST-CKPT-170", text))
    elif _previous(one) != ([] if last is None else [last.digest]):
        text = "the ledger does not know it, and it does not follow the ledger's last checkpoint"
        problems.append(_problem("ST-CKPT-170", text))
    return problems


def _previous(one: Opened) -> list[str]:
    parents = one.checkpoint.parents
    return [parent.digest for parent in parents if parent.role is ParentRole.PREVIOUS]


def _is_excusable(problem: Problem) -> bool:
    return CODES[problem.code].retry is Retry.WAIVED


def _problem(code: str, what: str, file: str = STATEMENT) -> Problem:
    return Problem(code, what, file)
