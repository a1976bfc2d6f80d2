# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The links to what is kept by digest, and to the other signed things of a run.

Rules:

1. a document counts when the statement binds its digest and the bytes of that digest are one of
   the right kind, in full;
2. the policy's bytes are those whose digest the statement names, too;
3. a parent or dataset counts when its own signature verified (by the caller) and its statement is
   the very one that is bound: another statement on the same bytes is another link;
4. the ledger counts when its chain holds under the trust root's keys, the trust root says which key
   may write which events, every line is by a key that may, and the head that was bound is in it:
   what was cut away before that cannot be hidden. A checkpoint that it says was set aside is none
   to rely on, unless a waiver excuses that.

The link `replay` says that somebody else has done the steps again, and signed what came of it:

5. a result counts by the signature of a key of the role ``ci``, which whoever gives it has checked;
6. it is about this checkpoint when run, tree, statement, steps and the checkpoint that the steps
   began with are the same;
7. one that found the steps false breaks the link, whatever others say;
8. steps that were not done again, because others were drawn, count when the drawn ones were, under
   the confidence that was signed. Steps that nobody could do again show nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from securetrain.artifacts.lineage import waivers
from securetrain.artifacts.statement.statements import Opened, ParentRole
from securetrain.chain import documents
from securetrain.chain.links import Given, LinkVerdict, Subject, broken, missing, verified
from securetrain.chain.records import Comparison, Replay, ReplayedSegment, Word
from securetrain.chain.store import document
from securetrain.core import canonical
from securetrain.core.vocabulary import ChainLink
from securetrain.ledger import Reading, events, read_ledger
from securetrain.policy.schema import Policy

D = TypeVar("D", bound=documents.Document)


def judge_replay(subject: Subject, given: Given) -> LinkVerdict:
    """Judge whether the steps were done again, and gave this checkpoint."""
    link = ChainLink.REPLAY
    if not subject.said.step:
        return verified(link, "no step was done")
    about = [(one, part) for one in given.replays for part in _about(one, subject)]
    for one, part in about:
        if part.word is Word.BROKEN:
            why = "; ".join(part.problems) or "the steps do not give it"
            return broken(link, f"by a replay of {one.at.isoformat()}: {why}"[:2000])
    for one, part in about:
        if part.word is Word.VERIFIED:
            how = "bit by bit" if one.comparison is Comparison.EXACT else "within bounds"
            what = f"steps {part.after + 1} to {part.last} done again, equal {how}"
            return verified(link, what)
    for one, part in about:
        drawn = one.sample
        if part.word is Word.PLAUSIBLE and drawn is not None and _all_drawn(one, drawn.drawn):
            confidence, forged = map(float.fromhex, (drawn.confidence, drawn.forged))
            return verified(
                link,
                f"{drawn.drawn} of {drawn.of} segments were drawn and done again: with confidence"
                f" {confidence:g}, less than {forged:g} of them is forged",
            )
    if about:
        word = about[0][1].word
        return missing(link, f"a replay says that its steps are {word}: they were not done again")
    return missing(link, "no signed replay of its steps")


def _about(said: Replay, subject: Subject) -> list[ReplayedSegment]:
    """Rule 6."""
    before = [one.digest for one in subject.said.parents if one.role is ParentRole.PREVIOUS]
    parent = subject.parents.get(before[0]) if before else None
    if said.run != subject.said.run_id or len(before) > 1 or (before and parent is None):
        return []
    wanted = (
        subject.opened.digest,
        subject.opened.statement,
        before[0] if before else "",
        0 if parent is None else parent.checkpoint.step,
        subject.said.step,
    )
    return [
        one
        for one in said.segments
        if (one.end, one.statement, one.begin, one.after, one.last) == wanted
    ]


def _all_drawn(said: Replay, drawn: int) -> bool:
    """Rule 8: so many segments were done again as were drawn, and none of the others is open."""
    words = [one.word for one in said.segments]
    return words.count(Word.VERIFIED) >= drawn > 0 and {Word.OPEN, Word.BROKEN}.isdisjoint(words)


def judge_policy(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the policy in force: rules 1 and 2."""
    link, said = ChainLink.POLICY, subject.said
    if said.bound.policy is None:
        return missing(link, "the statement binds no policy")
    if said.bound.policy != said.policy.digest:
        return broken(link, "two policies", expected=said.policy.digest, found=said.bound.policy)
    digest = said.bound.policy
    found = given.memory.of("policy", digest, lambda: _policy(digest, given))
    if found is None:
        return missing(link, f"the evidence {digest[:16]}")
    name, version = found
    if name != said.policy.id:
        return broken(link, "its name", expected=said.policy.id, found=name)
    return verified(link, f"{name} {version}")


def _policy(digest: str, given: Given) -> tuple[str, str] | None:
    """The name and version of the policy with a digest; None when it is not there."""
    data = given.pieces.get(digest)
    if data is None:
        return None
    policy = canonical.decode(data, Policy, where="the policy", canonical=True)
    return policy.metadata.id, str(policy.metadata.version)


def judge_job(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the job by rule 1."""

    def word(job: documents.Job) -> LinkVerdict:
        if job.declared is not None and given.pieces.get(job.declared) is None:
            return missing(ChainLink.JOB, f"what the program declared ({job.declared[:16]})")
        named = job.module or (job.program.name if job.program else "")
        return verified(ChainLink.JOB, named)

    return _by_document(ChainLink.JOB, subject.said.bound.job, given, documents.Job, word)


def judge_code(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the code by rule 1; a manifest that names nothing shows nothing."""

    def word(code: documents.Code) -> LinkVerdict:
        if not code.distributions:
            what = "the manifest names no distribution: nothing ran without one"
            return broken(ChainLink.CODE, what)
        own = sum(one.by is documents.Witness.LAUNCHER for one in code.files)
        what = f"{len(code.files)} files, {own} of them read by the launcher"
        return verified(ChainLink.CODE, f"{what}; {len(code.distributions)} distributions")

    return _by_document(ChainLink.CODE, subject.said.bound.code, given, documents.Code, word)


def judge_environment(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the environment by rule 1."""

    def word(found: documents.Environment) -> LinkVerdict:
        what = f"torch {found.torch}, {found.processor.model}"[:200]
        return verified(ChainLink.ENVIRONMENT, what)

    bound = subject.said.bound.environment
    return _by_document(ChainLink.ENVIRONMENT, bound, given, documents.Environment, word)


def judge_dataset(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the dataset by rule 3."""
    del given
    link, said = ChainLink.DATASET, subject.said
    if not said.dataset.digest:
        return missing(link, "the statement names no dataset")
    if said.bound.dataset is None:
        return missing(link, "the statement binds no statement of its dataset")
    if subject.dataset is None:
        return missing(link, f"the dataset {said.dataset.digest[:16]}")
    if differs := _same(link, subject.dataset, said.dataset.digest, said.bound.dataset):
        return differs
    name = subject.dataset.dataset.name
    if said.dataset.name != name:
        return broken(link, "its name", expected=name, found=said.dataset.name)
    return verified(link, name)


def judge_parents(subject: Subject, given: Given) -> LinkVerdict:
    """Judge every parent by rule 3."""
    del given
    link, said = ChainLink.PARENTS, subject.said
    bound = said.bound.parents
    if said.parents and not bound:
        return missing(link, "the statement binds no statement of its parents")
    if len(bound) != len(said.parents):
        return broken(
            link, "its parents", expected=str(len(said.parents)), found=f"{len(bound)} statements"
        )
    for parent, statement in zip(said.parents, bound, strict=True):
        found = subject.parents.get(parent.digest)
        if found is None:
            return missing(link, f"the parent {parent.digest[:16]}")
        if differs := _same(link, found, parent.digest, statement):
            return differs
        if parent.role is ParentRole.PREVIOUS and (wrong := _not_before(subject, found)):
            return broken(link, f"the parent {parent.digest[:16]}: {wrong}")
    return verified(link, f"{len(bound)} parents" if bound else "a first checkpoint")


def judge_ledger(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the ledger by rule 4."""
    link, bound = ChainLink.LEDGER, subject.said.bound.ledger_head
    if bound is None:
        return missing(link, "the statement binds no head of a ledger")
    if subject.ledger is None:
        return missing(link, "the run's ledger")
    heard = _read_ledger(subject.ledger, given)
    reading, heads = heard.reading, heard.heads
    if not reading.names_writers:
        what = "the trust root says of no key what it may write, so any line may be any worker's"
        return missing(link, f"{what} (roles ledger-coordinator, -launcher, -rank, -worker)")
    if not reading.begun:
        return missing(link, "the ledger's beginning: its first line is not this run's")
    foreign = next((line for line in reading.ignored if line.foreign), None)
    if foreign is not None:
        return broken(link, str(foreign))
    read = reading.verified
    told, number = subject.said.bound.ledger_entries, heads.get(bound)
    if number is None and told is not None and told > len(read.entries):
        what = "its end is missing"
        return broken(link, what, expected=f"{told} entries", found=f"{len(read.entries)} entries")
    if number is None or told not in {None, number}:
        return broken(link, "the head is not in it", expected=bound, found=read.head)
    if subject.opened.digest in heard.set_aside and not _is_waived(subject, given):
        return broken(link, "it says that this checkpoint was set aside")
    end = "" if reading.closed else ", and it has no closing entry: later ones may be missing"
    return verified(link, f"{number} of {len(read.entries)} entries were bound{end}")


def _is_waived(subject: Subject, given: Given) -> bool:
    """Tell whether a waiver that was given, or that lies with it, excuses a checkpoint."""
    opened, run = subject.opened, subject.said.run_id
    named = waivers.excused(given.waivers, given.trust, run, given.now)
    return opened.digest in named or waivers.excuse(subject.beside, opened, given.trust, given.now)


@dataclass(frozen=True, slots=True)
class _Heard:
    """A ledger that was read."""

    data: bytes
    reading: Reading
    heads: Mapping[str, int]
    """By each head of it, how many entries that covers."""
    set_aside: frozenset[str]
    """The digests of checkpoints."""


def _read_ledger(data: bytes, given: Given) -> _Heard:
    """The ledger, read once. The bytes are kept with that, so that no others can come to lie where
    they lay: the key is their place in memory.
    """

    def read() -> _Heard:
        reading = read_ledger(data, given.trust, where="ledger")
        entries = reading.verified.entries
        heads = [entry.body.prev for entry in entries[1:]]
        heads += [reading.verified.head] if entries else []
        told = [one for one in reading.events if isinstance(one, events.CheckpointQuarantined)]
        return _Heard(
            data=data,
            reading=reading,
            heads={head: number for number, head in enumerate(heads, 1)},
            set_aside=frozenset(one.digest for one in told),
        )

    return given.memory.of("ledger", id(data), read, room=2)


def judge_log(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the place in the log; the caller has verified the proof."""
    del given
    if subject.logged is None:
        return missing(ChainLink.LOG, "no proof that the statement was logged")
    return verified(ChainLink.LOG, f"entry {subject.logged.index}")


def judge_time(subject: Subject, given: Given) -> LinkVerdict:
    """Judge by the witnesses: they saw the statement, and not before it says that it was made."""
    del given
    link, seen = ChainLink.TIME, subject.logged.seen if subject.logged is not None else None
    if seen is None:
        return missing(link, "no witness says when it was signed")
    # Witnesses sign whole seconds: what was made in the same second was not seen before that.
    if (made := subject.said.created).replace(microsecond=0) > seen:
        return broken(
            link,
            "it was seen before it was made",
            expected=seen.isoformat(),
            found=made.isoformat(),
        )
    return verified(link, f"made before {seen.isoformat()}")


def _by_document(
    link: ChainLink,
    digest: str | None,
    given: Given,
    kind: type[D],
    word: Callable[[D], LinkVerdict],
) -> LinkVerdict:
    """The word on a document, once for all checkpoints that bind it."""

    def judged() -> LinkVerdict:
        if digest is None:
            return missing(link, f"the statement binds no {link}")
        found = document(given.pieces, digest, kind)
        return missing(link, f"the evidence {digest[:16]}") if found is None else word(found)

    return given.memory.of(str(link), digest, judged)


def _same(link: ChainLink, found: Opened, digest: str, statement: str) -> LinkVerdict | None:
    for name, expected, has in (
        ("its bytes", digest, found.digest),
        ("its statement", statement, found.statement),
    ):
        if expected != has:
            return broken(link, name, expected=expected, found=has)
    return None


def _not_before(subject: Subject, parent: Opened) -> str:
    """Say why a checkpoint cannot be the previous one; empty when it can."""
    said, before = subject.said, parent.checkpoint
    if before.created > said.created:
        return f"it is younger, of {before.created.isoformat()}"
    if before.run_id == said.run_id and before.seq >= said.seq:
        return f"it has number {before.seq}, and this one {said.seq}"
    return ""
