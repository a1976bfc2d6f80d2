# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The links of a checkpoint: their verdicts, codes, and what a judge of one is given.

`judging` has the judges. A link is ``verified`` only when evidence was compared with what was
signed, ``broken`` when evidence contradicts it, ``missing`` when there is none, ``the signer's
word`` when the key that says it may lie on a machine that it speaks of: all three are refusals
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
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec

from securetrain.artifacts import Expectation, Problem
from securetrain.artifacts.lineage import folder
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened
from securetrain.chain.documents import Appraised
from securetrain.chain.records import Replay
from securetrain.chain.store import InMemory, Pieces
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.evidence import AttestationResult
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """Files that lay with a checkpoint, where they were taken over by digest."""

    digests: Mapping[str, str | None]
    """By name; None for one that there is not."""
    get: Callable[[str, int], bytes]
    """Reads one of a digest, of at most so many bytes."""
    name: ClassVar[str] = "checkpoint"
    base: ClassVar[str] = "checkpoint"

    def has(self, name: str) -> bool:
        """See `CheckpointFiles`; so with the others."""
        return self.digests.get(name) is not None

    def read(self, name: str, limit: int) -> bytes:
        """Whatever it reads is verified."""
        return self.get(self.digests[name] or "", limit)

    def names(self, folder: str) -> list[str]:
        """Of a folder, those that were taken over."""
        return [one for one in self.digests if one.startswith(f"{folder}/")]

    def above(self) -> "PackedFiles":
        """A pack has no folders."""
        return self


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
    beside: folder.CheckpointFiles = field(default_factory=lambda: PackedFiles({}, lambda *_: b""))
    """What lies with it: head, proof, waivers and the record that it was set aside."""
    logged: Logged | None = None
    """Its place in the log, by a proof that holds; None without one."""
    ledger: bytes | None = None
    """The run's ledger, as it lies there; None without one."""

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
    waivers: Sequence[bytes] = ()
    """Operators' waivers, as they were given."""
    again: bool = False
    """Whether the evidence behind results must be judged again, whoever signed the results."""
    policy: Policy | None = None
    """The verifier's own."""
    expect: Expectation | None = None
    """The checkpoint that the verifier wants."""
    memory: Memory = field(default_factory=Memory, init=False, compare=False, repr=False)

    @property
    def appraises(self) -> bool:
        """Tell whether nobody's word on a tier counts."""
        return self.again or (self.policy is not None and self.policy.chain.appraise)

    def expects(self, policy: str) -> bool:
        """Tell whether the verifier has named the policy with a digest as the run's."""
        mine = None if self.policy is None else self.policy.checkpoint.expect
        asked = (self.expect, None if mine is None else Expectation(policy=mine.policy))
        return any(one is not None and one.names(policy) for one in asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """A signed result that was verified, and the document that it came with."""

    result: AttestationResult
    document: Appraised


_NO_TIERS: Final[Mapping[str, NodeTier]] = MappingProxyType({})


class LinkVerdict(msgspec.Struct, frozen=True, gc=False):
    """The word on one link of one checkpoint. Of a long run there are a hundred thousand, and none
    leads back to itself: the collector of cycles need not look at them.
    """

    link: ChainLink
    what: str = ""
    """Why, in a line; of one that is verified, what was shown."""
    tiers: Mapping[str, NodeTier] = _NO_TIERS
    """Of the link `nodes`: what evidence shows for each node."""
    expected: str = ""
    found: str = ""
    where: str = ""
    state: LinkState = LinkState.NOT_ASKED

    def problem(self) -> Problem | None:
        """The refusal of one that is required; None when it is verified."""
        if self.state is LinkState.VERIFIED:
            return None
        what = f"{self.link} {self.state}: {self.what}"
        if self.expected or self.found:
            what += f" (expected {self.expected or 'something'}, found {self.found or 'nothing'})"
        return Problem(code_of(self.link), what, self.where)


Judge: TypeAlias = Callable[[Subject, Given], LinkVerdict]


verified: Final = partial(LinkVerdict, state=LinkState.VERIFIED)
"""Evidence shows it."""
claimed: Final = partial(LinkVerdict, state=LinkState.CLAIMED)
"""It is the word of a key that may lie on a machine which it speaks of."""
missing: Final = partial(LinkVerdict, state=LinkState.MISSING)
"""There is no evidence."""
broken: Final = partial(LinkVerdict, state=LinkState.BROKEN)
"""Evidence contradicts what was signed."""


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
