# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The link `replay`: somebody else has done the steps again, and signed what came of it.

Rules:

1. a result counts by the signature of a key of the role ``ci``, which whoever gives it has checked;
2. it is about this checkpoint when run, tree, statement, steps and the checkpoint that the steps
   began with are the same;
3. one that found the steps false breaks the link, whatever others say;
4. steps that were not done again, because others were drawn, count when the drawn ones were, under
   the confidence that was signed. Steps that nobody could do again show nothing.
"""

from securetrain.artifacts.statement import ParentRole
from securetrain.chain.links import Given, LinkVerdict, Subject, broken, missing, verified
from securetrain.chain.replayed import Comparison, Replay, ReplayedSegment, Word
from securetrain.core.vocabulary import ChainLink


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
    """Rule 2."""
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
    """Rule 4: so many segments were done again as were drawn, and none of the others is open."""
    words = [one.word for one in said.segments]
    return words.count(Word.VERIFIED) >= drawn > 0 and {Word.OPEN, Word.BROKEN}.isdisjoint(words)
