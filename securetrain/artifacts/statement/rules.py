# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The demands of a policy on a verified statement.

Rules for both kinds: not older than ``max_age_days``, and not from the future. For checkpoints
also: which one it is; the hash tree's algorithm; the lineage (run, dataset and policy are named,
and no checkpoint is its own parent); the gradient verdict; and, when an artifact is verified after
the run, the tiers that its nodes proved.

Check the kept words of a disputed reduction, long after it: whose they are, and what follows.

The keys must be certified for ranks of this run (members.py), each by a certificate that the trust
root's role ``node`` verifies. What the words say about each other is read by `identity.words`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts.statement import expectation
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.members import certified_key
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    GradientVerdict,
    Opened,
)
from securetrain.artifacts.tree.encryption import Recipient
from securetrain.artifacts.tree.layout import STATEMENT, Kind, Problem
from securetrain.core.errors import SecureTrainError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import words
from securetrain.identity.keys import PublicKey
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import GuardMode, Policy

CLOCK_SKEW: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The tiers that evidence shows, by node, and why it shows no more."""

    tiers: Mapping[str, NodeTier] = field(default_factory=dict)
    problem: Problem | None = None
    steps: bool = False
    """Whether records and replays are asked besides, where the policy counts steps."""


NOTHING_SHOWN: Final = Shown()


def check(
    opened: Opened, policy: Policy, now: datetime, *, nodes: bool, shown: Shown = NOTHING_SHOWN
) -> list[Problem]:
    """Every rule that the statement breaks.

    Args:
        opened: the verified statement.
        policy: what is asked.
        now: the time of the check.
        nodes: also ask for the tiers of the nodes (verification, not resuming inside a run whose
            own admission already asked).
        shown: what evidence shows of their tiers. The statement's own word on a tier above
            self-asserted counts for nothing where the policy asks for one.
    """
    match opened.predicate:
        case CheckpointPredicate() as predicate:
            problems = _age(Kind.CHECKPOINT, predicate.created, policy.checkpoint.max_age_days, now)
            problems += _checkpoint(predicate, opened.digest, policy)
            problems += _window(policy, shown)
            problems += expectation.check(opened, expected_by(policy))
            return problems + (_nodes(predicate, policy, now, shown) if nodes else [])
        case DatasetPredicate() as dataset:
            return _age(Kind.DATASET, dataset.created, policy.dataset.max_age_days, now)
        case _:
            raise ValueError(f"unknown predicate {type(opened.predicate).__name__}")


def expected_by(policy: Policy) -> Expectation | None:
    """The checkpoint that a policy wants."""
    asked = policy.checkpoint.expect
    return None if asked is None else Expectation(**msgspec.structs.asdict(asked))


def _age(kind: Kind, created: datetime, max_days: int | None, now: datetime) -> list[Problem]:
    if created > now + CLOCK_SKEW:
        return [
            Problem(
                kind.code(150),
                f"signed in the future ({created.isoformat()}, now {now.isoformat()})",
                STATEMENT,
            )
        ]
    if max_days is not None and now - created > timedelta(days=max_days):
        return [
            Problem(
                kind.code(150),
                f"signed {(now - created).days} days ago, the policy allows {max_days}",
                STATEMENT,
            )
        ]
    return []


def _checkpoint(predicate: CheckpointPredicate, digest: str, policy: Policy) -> list[Problem]:
    problems: list[Problem] = []
    asked = policy.checkpoint
    if predicate.tree.algorithm is not asked.algorithm:
        problems.append(
            _policy(
                f"hashed with {predicate.tree.algorithm}, the policy asks for {asked.algorithm}"
            )
        )
    verdict = predicate.gradients.verdict
    if asked.require_clean_verdict and verdict is not GradientVerdict.CLEAN:
        problems.append(_policy(f"the gradient verdict is {verdict}, the policy asks for clean"))
    elif policy.gradients.mode is GuardMode.DETECT and verdict is GradientVerdict.UNWATCHED:
        problems.append(_policy("the gradients were not watched, the policy asks for it"))
    problems += _encryption(predicate, asked.encrypt_to)
    if asked.require_lineage:
        named = {
            "run": predicate.run_id,
            "dataset": predicate.dataset.digest,
            "policy": predicate.policy.digest,
        }
        missing = [name for name, value in named.items() if not value]
        if missing:
            problems.append(_lineage(f"the statement does not name its {', '.join(missing)}"))
    if any(parent.digest == digest for parent in predicate.parents):
        problems.append(_lineage("the checkpoint is its own parent"))
    return problems


def _window(policy: Policy, shown: Shown) -> list[Problem]:
    """The steps before the checkpoint, where the policy counts them: whoever verifies or loads
    counts documents. The statement's own numbers count for nothing: its key writes any.
    """
    if shown.steps or not policy.checkpoint.counts_steps:
        return []
    what = "the policy counts steps, and no records of them were judged: securetrain verify does"
    return [Problem("ST-CHAN-017", f"{what}, and load(policy=chain.counted(...))", STATEMENT)]


def _encryption(predicate: CheckpointPredicate, keys: Sequence[str]) -> list[Problem]:
    """Every file must be encrypted for all recipients that the policy names."""
    wanted = {Recipient.parse(key).id for key in keys}
    return [
        _policy(f"{file.name} is not encrypted for all recipients of the policy")
        for file in predicate.files
        if not wanted <= (file.sealed.keys.keys() if file.sealed is not None else set())
    ][:20]


def _nodes(
    predicate: CheckpointPredicate, policy: Policy, now: datetime, shown: Shown
) -> list[Problem]:
    asked = policy.node
    if not predicate.nodes:
        return [_policy("the statement does not say which nodes took part")]
    if asked.min_tier > NodeTier.SELF_ASSERTED and (unshown := _unshown(predicate, shown)):
        return unshown
    allowed = asked.allow_self_asserted
    room = 0
    if allowed is not None and (allowed.until is None or now.date() <= allowed.until):
        room = allowed.max_nodes
    own_word = [node for node in predicate.nodes if node.tier == NodeTier.SELF_ASSERTED]
    low = [
        node
        for node in predicate.nodes
        if node.tier < asked.min_tier and node.tier != NodeTier.SELF_ASSERTED
    ]
    if len(own_word) > room:
        low += own_word
    return [
        _policy(f"node {node.node} is {node.tier}, the policy asks for {asked.min_tier}")
        for node in low[:20]
    ]


def _unshown(predicate: CheckpointPredicate, shown: Shown) -> list[Problem]:
    """The nodes whose tier is the statement's word alone, or more than evidence shows."""
    if not any(node.tier > NodeTier.SELF_ASSERTED for node in predicate.nodes):
        return []  # nothing is claimed that would need evidence
    if shown.problem is not None:
        return [shown.problem]
    found = []
    for node in predicate.nodes:
        tier = shown.tiers.get(node.node, NodeTier.SELF_ASSERTED)
        if node.tier > tier:
            what = f"node {node.node} says {node.tier}, evidence shows {tier}"
            found.append(Problem("ST-CHAN-010", what, STATEMENT))
    return found[:20]


def _policy(what: str) -> Problem:
    return Problem("ST-CKPT-121", what, STATEMENT)


def _lineage(what: str) -> Problem:
    return Problem("ST-CKPT-170", what, STATEMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWords:
    """A transcript that was read and checked."""

    transcript: words.Transcript
    ruling: words.Ruling
    uncertified: dict[int, str]
    """Ranks whose key counts for nothing, and why."""
    digest: str

    @property
    def is_signed(self) -> bool:
        """Every rank has signed every word, with a key that counts."""
        return not self.ruling.unsigned


def check_words(path: Path, trust: TrustRoot) -> CheckedWords:
    """Check a transcript.

    Raises:
        UsageError: ST-USAG-002 or ST-USAG-008; the latter also when the file is not what it is
            named after.
    """
    data = read_file(path, words.TRANSCRIPT_LIMIT)
    digest = hashlib.sha256(data).hexdigest()
    if path.stem != digest:
        raise UsageError(
            "ST-USAG-008",
            f"its SHA-256 is {digest}, which is not its name",
            str(path),
            "give a file of the run's disputes folder as it is; the ledger names its digest",
        )
    transcript = words.read_transcript(data)
    known: dict[str, PublicKey | str] = {"": "it has no certificate"}
    for text in transcript.certificates:
        if text not in known:
            known[text] = _key(text, transcript.run_id, trust)
    found = [known[text] for text in transcript.certificates]
    keys = [key if isinstance(key, PublicKey) else None for key in found]
    return CheckedWords(
        transcript=transcript,
        ruling=words.rule(transcript, keys),
        uncertified={
            rank: why
            for rank, why in zip(transcript.ranks, found, strict=True)
            if isinstance(why, str)
        },
        digest=digest,
    )


def _key(text: str, run_id: str, trust: TrustRoot) -> PublicKey | str:
    try:
        key, said = certified_key(text, trust, "the certificate")
    except SecureTrainError as error:
        return reason(error)
    if said.run_id != run_id:
        return f"its certificate is for run {said.run_id}, not {run_id}"
    return key
