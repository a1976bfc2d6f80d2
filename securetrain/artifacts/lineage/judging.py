# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that is asked of a verified statement besides the bytes that it is about.

One place, so that a loader and a verifier cannot ask differently. In order: whether it is the one
that was asked for (`expectation`); expiry; the ranks' own signatures (`members`); the policy's
rules (`rules`); then whether the checkpoint is the newest that may be believed (`machine`), by the
record beside it (`quarantine`) and, when somebody asks, by its surroundings (`look`).

The surroundings of a checkpoint are read and verified here, and judged by `machine`. An old
checkpoint has a good signature, too. The head that lies beside it, the memory of this node
and the waivers of operators tell whether it is the one to go on from. The same is asked over all
ranks of a load: each brings its node's floor, and one honest node that has seen more is enough.

This node's memory of every run, so that nobody can show it less later.

A file of this node alone (0600), outside of any store that others write. Rules:

1. for each run and each signing key the highest sequence number that was loaded or saved, with its
   digest; it never goes down;
2. only keys that the trust root still names count: the number that a leaked key drove up to a
   billion dies with the key (fast-forward);
3. checkpoints that were set aside are remembered, so that deleting the record beside them does not
   bring them back;
4. a file that cannot be read is a refusal and never an empty one;
5. when the newest one was set aside by the run itself, because a node was evicted, the number
   stays, and exactly the checkpoint that the run went back to is excused, until something newer was
   seen;
6. beside a number, the signed head that shows it is kept: other nodes believe nothing else.
"""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.lineage import head as head_file
from securetrain.artifacts.lineage import machine, quarantine, waivers
from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.lineage.machine import Floor, Known
from securetrain.artifacts.statement import expectation, members, rules
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Count,
    Hex32,
    Opened,
    Text,
)
from securetrain.artifacts.tree.layout import Problem
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_missing_dir,
    read_file,
    write_atomic,
)
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.policy.schema import Policy

LIMIT: Final = 16 << 20
HEAD_LIMIT: Final = 8 << 10
"""Bytes of a head that is kept; one with more signatures is not shown to others."""
VERSION: Final = 1


class _Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    seq: Count
    head: Annotated[bytes, Meta(max_length=HEAD_LIMIT)]
    """A head's envelope."""


class _Excuse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    digest: Hex32
    instead_of: Hex32
    """The floor's checkpoint; of any other floor it excuses nothing."""


class _Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    floors: dict[Hex32, Floor] = {}
    """By key id."""
    heads: dict[Hex32, _Shown] = {}
    """By key id."""
    excuse: _Excuse | None = None
    set_aside: Annotated[list[Hex32], Meta(max_length=65536)] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    runs: dict[Text, _Run]


@dataclass(frozen=True, slots=True)
class Floors:
    """The file; several processes of a node may share it."""

    path: Path

    def floor(self, run_id: str, keys: Collection[str]) -> Floor | None:
        """The highest floor of a run among keys that still count; None when there is none.

        Raises:
            IntegrityError: ST-CKPT-151 when the file cannot be believed.
        """
        return _highest(self._read().runs.get(run_id, _Run()), keys)

    def head(self, run_id: str, keys: Collection[str]) -> bytes | None:
        """The signed head that shows the newest checkpoint, for other nodes; None without one.

        Raises:
            IntegrityError: ST-CKPT-151.
        """
        run = self._read().runs.get(run_id, _Run())
        found = [shown for key, shown in run.heads.items() if key in keys]
        newest = max(found, key=lambda shown: shown.seq, default=None)
        return None if newest is None else newest.head

    def excused(self, run_id: str, keys: Collection[str]) -> frozenset[str]:
        """The digest that rule 5 excuses now, if any.

        Raises:
            IntegrityError: ST-CKPT-151.
        """
        run = self._read().runs.get(run_id, _Run())
        floor = _highest(run, keys)
        if run.excuse is None or floor is None or run.excuse.instead_of != floor.digest:
            return frozenset()
        return frozenset({run.excuse.digest})

    def excuse(
        self, run_id: str, digest: str, gone: Collection[str], keys: Collection[str]
    ) -> bool:
        """The run went back to a checkpoint: rule 5.

        Args:
            run_id: The run.
            digest: What it went back to.
            gone: The checkpoints that it set aside, by its own signed word.
            keys: Those that count.

        Returns:
            Whether it is excused now.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002 when it cannot be written.
        """

        def excusing(run: _Run) -> _Run:
            floor = _highest(run, keys)
            if floor is None or floor.digest == digest or floor.digest not in gone:
                return run
            excuse = _Excuse(digest=digest, instead_of=floor.digest)
            return msgspec.structs.replace(run, excuse=excuse)

        self._change(run_id, excusing)
        return digest in self.excused(run_id, keys)

    def is_set_aside(self, run_id: str, digest: str) -> bool:
        """Tell whether this node has seen that a checkpoint was set aside.

        Raises:
            IntegrityError: ST-CKPT-151.
        """
        return digest in self._read().runs.get(run_id, _Run()).set_aside

    def raise_to(self, run_id: str, floor: Floor, keys: Collection[str], head: bytes = b"") -> None:
        """Remember a checkpoint that was loaded or saved; lower numbers change nothing.

        Args:
            run_id: The run.
            floor: The checkpoint.
            keys: The keys that signed it.
            head: The signed head that shows it, when there is one.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002 when it cannot be written.
        """

        def raised(run: _Run) -> _Run:
            floors, heads = dict(run.floors), dict(run.heads)
            for key in keys:
                if key not in floors or floors[key].seq < floor.seq:
                    floors[key] = floor
                if 0 < len(head) <= HEAD_LIMIT and (key not in heads or heads[key].seq < floor.seq):
                    heads[key] = _Shown(seq=floor.seq, head=head)
            return msgspec.structs.replace(run, floors=floors, heads=heads)

        self._change(run_id, raised)

    def remember_set_aside(self, run_id: str, digest: str) -> None:
        """Remember that a checkpoint was set aside.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002 when it cannot be written.
        """

        def with_it(run: _Run) -> _Run:
            kept = dict.fromkeys([*run.set_aside, digest])
            return msgspec.structs.replace(run, set_aside=list(kept))

        self._change(run_id, with_it)

    def adopt(self) -> None:
        """Make the folder, and take over the file of an earlier version, which lay beside it."""
        make_missing_dir(self.path.parent)
        before = self.path.parent.with_suffix(".json")
        if not os.path.lexists(self.path) and os.path.lexists(before):
            before.replace(self.path)

    def _read(self) -> _File:
        path = self.path
        if not os.path.lexists(path):
            path = path.parent.with_suffix(".json")  # of an earlier version, not yet adopted
        if not os.path.lexists(path):
            return _File(version=VERSION, runs={})
        try:
            data = read_file(path, LIMIT)
            file = canonical.decode(data, _File, limit=LIMIT, canonical=True)
        except UsageError as error:
            raise self._refused(error.what) from error
        if file.version != VERSION:
            raise self._refused(f"version {file.version}, this reader knows {VERSION}")
        return file

    def _change(self, run_id: str, change: Callable[[_Run], _Run]) -> None:
        make_missing_dir(self.path.parent)
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            file = self._read()
            before = file.runs.get(run_id, _Run())
            run = change(before)
            if run != before:
                changed = msgspec.structs.replace(file, runs={**file.runs, run_id: run})
                write_atomic(self.path, canonical.encode(changed), mode=PRIVATE_FILE)

    def _refused(self, what: str) -> Exception:
        return Problem("ST-CKPT-151", f"what this node has seen cannot be read: {what}").error(
            str(self.path)
        )


def _highest(run: _Run, keys: Collection[str]) -> Floor | None:
    found = [floor for key, floor in run.floors.items() if key in keys]
    return max(found, key=lambda floor: floor.seq, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The knowledge of a loader about the run besides the checkpoint."""

    floors: Floors | None = None
    """What this node has seen; None keeps nothing and asks for nothing."""
    waivers: tuple[bytes, ...] = ()
    """Signed by operators."""
    head: bool = True
    """Whether a head that lies beside the checkpoint is asked when the policy does not ask for one;
    not by a run that goes by its own ledger."""


def look(
    opened: Opened, folder: CheckpointFiles, trust: TrustRoot, freshness: Freshness, known: Known
) -> Known:
    """Add the surroundings of a checkpoint to what is known already.

    Args:
        opened: The checkpoint.
        folder: The folder that it lies in.
        trust: The keys that may sign heads and waivers.
        freshness: This node's knowledge.
        known: With the time, and whether a head is required.

    Raises:
        IntegrityError: ST-CKPT-110, 120, 152 (head), 123 (waiver) or 151 (floors).
    """
    assert known.now is not None
    keys = trust.keys_for(TrustRole.CHECKPOINT).keys()
    floors, run_id = freshness.floors, opened.checkpoint.run_id
    waived = waivers.excused(freshness.waivers, trust, run_id, known.now)
    ask_head = freshness.head or known.head_required
    known = replace(known, head=head_file.read_head(folder, trust) if ask_head else None)
    if floors is None:
        return replace(known, excused=waived)
    set_aside = {opened.digest} if floors.is_set_aside(run_id, opened.digest) else ()
    return replace(
        known,
        floor=floors.floor(run_id, keys),
        excused=waived | floors.excused(run_id, keys),
        set_aside=frozenset(set_aside),
    )


def remember(opened: Opened, floors: Floors) -> None:
    """Raise this node's floor to a checkpoint that was loaded or saved.

    Raises:
        IntegrityError: ST-CKPT-151.
        UsageError: ST-USAG-002.
    """
    floor = Floor(seq=opened.checkpoint.seq, digest=opened.digest)
    floors.raise_to(opened.checkpoint.run_id, floor, opened.key_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The knowledge and the demands of somebody who wants to use an artifact."""

    trust: TrustRoot
    policy: Policy | None
    now: datetime
    known: Freshness | None = None
    """Given, a checkpoint must be the newest of its run, whatever the policy says."""
    newest: bool = True
    """Whether it may have to be the newest: not of what another one was made from."""
    nodes: bool = True
    """Whether to ask for the tiers of the nodes, too."""
    expect: Expectation | None = None
    """The artifact that is wanted; None when any will do."""
    shown: rules.Shown = rules.NOTHING_SHOWN
    """What evidence shows of the nodes' tiers."""
    counts: Callable[[Opened, Any], Sequence[Problem]] | None = None
    """Counts steps by the evidence of the run, where the policy asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The problems of a statement."""

    problems: list[Problem]
    known: Known | None = None
    """The surroundings, when they were asked about."""
    excused: Sequence[Problem] = ()
    """What operators, or the run itself, let pass."""


def judge(opened: Opened, beside: CheckpointFiles, asked: Asked) -> Judged:
    """Ask everything, of what lies in a directory or of what a pack took over of that."""
    counts = asked.counts
    if counts is not None:
        asked = replace(asked, shown=replace(asked.shown, steps=True))
    problems = judge_statement(opened, asked)
    if not isinstance(opened.predicate, CheckpointPredicate):
        return Judged(problems=problems)
    problems += () if counts is None else counts(opened, beside)
    policy = None if asked.policy is None else asked.policy.checkpoint
    found = quarantine.check(beside, opened, asked.trust)
    records = {opened.digest: found[0]} if found else {}
    if records and asked.known is not None and asked.known.floors is not None:
        asked.known.floors.remember_set_aside(opened.predicate.run_id, opened.digest)
    known = Known(
        now=asked.now,
        records=records,
        head_required=asked.newest and policy is not None and policy.require_head,
    )
    asks = asked.known is not None or known.head_required
    try:
        if asks:
            fresh = asked.known or Freshness()
            known = look(opened, beside.above(), asked.trust, fresh, known)
    except IntegrityError as error:
        unread = Problem(error.code, error.what, error.where)
        return Judged(problems=[*problems, *found, unread])
    doubts = machine.doubts(opened, replace(known, excused=frozenset()))
    if doubts and waivers.excuse(beside, opened, asked.trust, asked.now):
        known = replace(known, excused=known.excused | {opened.digest})
    left = machine.doubts(opened, known)
    excused = [one for one in doubts if one not in left]
    return Judged(problems=[*problems, *left], known=known if asks else None, excused=excused)


def judge_statement(opened: Opened, asked: Asked) -> list[Problem]:
    """Ask what the statement alone can answer, wherever it lies."""
    problems = expectation.check(opened, asked.expect)
    if asked.policy is not None:
        problems += rules.check(
            opened, asked.policy, asked.now, nodes=asked.nodes, shown=asked.shown
        )
    if not isinstance(opened.predicate, CheckpointPredicate):
        return problems
    policy = None if asked.policy is None else asked.policy.checkpoint
    required = policy is not None and policy.require_rank_signatures
    return [
        *machine.expired(opened, asked.now),
        *members.check(opened.predicate, asked.trust, required=required),
        *problems,
    ]
