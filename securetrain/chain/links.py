# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The links of a checkpoint: their verdicts, codes, and what a judge of one is given.

`judging` has the judges. A link is ``verified`` only when evidence was compared with what was
signed, ``broken`` when evidence contradicts it, ``missing`` when there is none: both are refusals
where a policy requires the link. ``not asked`` says that nobody required it.

`Memory` keeps the answers of one verification for the next checkpoint of the same chain:

1. a memory belongs to one `links.Given`: trust root, evidence, time and question are the same for
   all that is in it. A `Given` that was replaced has a memory of its own;
2. a key names everything else that an answer depends on: the digests of what was read;
3. an exception is not kept: what was refused is judged anew, and refused anew;
4. of each kind, the `ROOM` answers that were used last are kept, so that a pack of any size is
   judged in bounded memory. Checkpoints of a run follow each other and share what they name.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from securetrain.artifacts import Problem
from securetrain.artifacts.statement import CheckpointPredicate, Opened
from securetrain.chain.documents import Appraised
from securetrain.chain.replayed import Replay
from securetrain.chain.store import InMemory, Pieces
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.evidence import AttestationResult
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot

ROOM: Final = 8

T = TypeVar("T")


class Memory:
    """Answers by kind and key; see the module."""

    def __init__(self) -> None:
        self._kinds: dict[str, OrderedDict[Hashable, Any]] = {}

    def of(self, kind: str, key: Hashable, make: Callable[[], T], room: int = ROOM) -> T:
        """The answer to a question, which is made when it is not there.

        Args:
            kind: What is asked; the same `make` for each key of it.
            key: Everything that the answer depends on besides the `Given`.
            make: Finds the answer.
            room: How many answers of this kind are kept.
        """
        kept = self._kinds.setdefault(kind, OrderedDict())
        if key in kept:
            kept.move_to_end(key)
            return kept[key]  # type: ignore[no-any-return]
        found = make()
        kept[key] = found
        while len(kept) > room:
            kept.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A checkpoint whose statement verified, with what it was made from as far as it was found."""

    opened: Opened
    parents: Mapping[str, Opened] = field(default_factory=dict)
    """By tree digest; only those whose statements verified."""
    known: Mapping[str, Opened] = field(default_factory=dict)
    """Likewise, everything that leads to it."""
    dataset: Opened | None = None
    logged: Logged | None = None
    """Its place in the log, by a proof that holds; None without one."""
    ledger: bytes | None = None
    """The run's ledger, as it lies there; None without one."""
    doubts: Sequence[Problem] = ()
    """What lies with it and speaks against it: a proof that does not hold, a record that it was set
    aside."""

    @property
    def said(self) -> CheckpointPredicate:
        """Its predicate."""
        return self.opened.checkpoint

    @property
    def since(self) -> datetime | None:
        """The time from which its own steps were done at the earliest: its parent of the same run
        was there. None for a first checkpoint.
        """
        mine = [
            found.checkpoint.created
            for found in self.parents.values()
            if isinstance(found.predicate, CheckpointPredicate)
            and found.predicate.run_id == self.said.run_id
        ]
        return max(mine, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Everything that a verifier has besides the statements."""

    trust: TrustRoot
    pieces: Pieces = field(default_factory=InMemory)
    now: datetime
    replays: Sequence[Replay] = ()
    """Signed results of steps that were done again, whose signatures verified."""
    again: bool = False
    """Whether the evidence behind results is judged again, besides the results themselves."""
    memory: Memory = field(default_factory=Memory, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """A signed result that was verified, and the document that it came with."""

    result: AttestationResult
    document: Appraised


_NO_TIERS: Final[Mapping[str, NodeTier]] = MappingProxyType({})


class LinkVerdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The word on one link of one checkpoint. Of a long run there are a hundred thousand, and none
    leads back to itself: the collector of cycles need not look at them.
    """

    link: ChainLink
    state: LinkState
    what: str = ""
    """Why, in a line; of one that is verified, what was shown."""
    expected: str = ""
    found: str = ""
    where: str = ""
    tiers: Mapping[str, NodeTier] = _NO_TIERS
    """Of the link `nodes`: what evidence shows for each node."""

    def problem(self) -> Problem | None:
        """The refusal of one that is required; None when it is verified."""
        if self.state is LinkState.VERIFIED:
            return None
        what = f"{self.link} {self.state}: {self.what}"
        if self.expected or self.found:
            what += f" (expected {self.expected or 'something'}, found {self.found or 'nothing'})"
        return Problem(code_of(self.link), what, self.where)


Judge: TypeAlias = Callable[[Subject, Given], LinkVerdict]


def verified(
    link: ChainLink, what: str, tiers: Mapping[str, NodeTier] | None = None
) -> LinkVerdict:
    """Evidence shows it."""
    return LinkVerdict(link=link, state=LinkState.VERIFIED, what=what, tiers=tiers or _NO_TIERS)


def missing(link: ChainLink, what: str, *, where: str = "") -> LinkVerdict:
    """There is no evidence."""
    return LinkVerdict(link=link, state=LinkState.MISSING, what=what, where=where)


def broken(
    link: ChainLink, what: str, *, expected: str = "", found: str = "", where: str = ""
) -> LinkVerdict:
    """Evidence contradicts what was signed."""
    return LinkVerdict(
        link=link,
        state=LinkState.BROKEN,
        what=what,
        expected=expected,
        found=found,
        where=where,
    )


def code_of(link: ChainLink) -> str:  # noqa: C901, PLR0912 - a line for each link
    """The code of a link, broken or missing."""
    match link:
        case ChainLink.NODES:
            return "ST-CHAN-010"
        case ChainLink.MEMBERSHIP:
            return "ST-CHAN-011"
        case ChainLink.POLICY:
            return "ST-CHAN-012"
        case ChainLink.CODE:
            return "ST-CHAN-013"
        case ChainLink.ENVIRONMENT:
            return "ST-CHAN-014"
        case ChainLink.DATASET:
            return "ST-CHAN-015"
        case ChainLink.ROWS:
            return "ST-CHAN-016"
        case ChainLink.GRADIENTS:
            return "ST-CHAN-017"
        case ChainLink.PARENTS:
            return "ST-CHAN-018"
        case ChainLink.LEDGER:
            return "ST-CHAN-019"
        case ChainLink.LOG:
            return "ST-CHAN-020"
        case ChainLink.TIME:
            return "ST-CHAN-021"
        case ChainLink.JOB:
            return "ST-CHAN-022"
        case ChainLink.REPLAY:
            return "ST-CHAN-023"
        case ChainLink.TABLES:
            return "ST-CHAN-026"
        case _:
            raise ValueError(f"no code for the link {link!r}")
