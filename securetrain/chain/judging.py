# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The judges, one for each link, and what becomes of their verdicts.

Rules:

1. a link without a judge in this version is ``missing``: required, it is a refusal;
2. an exception in a judge is ``broken``, never a pass;
3. links are judged one by one: a broken one makes no other one pass or fail, and all are said;
4. of a chain, every checkpoint is asked for itself: with ``depth: all`` an ancestor that could not
   be found or opened has every required link missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from securetrain.chain import kept, nodes, steps
from securetrain.chain.links import Given, Judge, Subject, Verdict, broken, missing
from securetrain.chain.replayed_link import judge_replay
from securetrain.chain.tables import judge_tables
from securetrain.core.errors import SecureTrainError, reason
from securetrain.core.vocabulary import ChainLink, LinkState

JUDGES: Final[dict[ChainLink, Judge]] = {
    ChainLink.NODES: nodes.judge_nodes,
    ChainLink.MEMBERSHIP: nodes.judge_membership,
    ChainLink.POLICY: kept.judge_policy,
    ChainLink.JOB: kept.judge_job,
    ChainLink.CODE: kept.judge_code,
    ChainLink.ENVIRONMENT: kept.judge_environment,
    ChainLink.DATASET: kept.judge_dataset,
    ChainLink.ROWS: steps.judge_rows,
    ChainLink.GRADIENTS: steps.judge_gradients,
    ChainLink.PARENTS: kept.judge_parents,
    ChainLink.LEDGER: kept.judge_ledger,
    ChainLink.LOG: kept.judge_log,
    ChainLink.TIME: kept.judge_time,
    ChainLink.TABLES: judge_tables,
    ChainLink.REPLAY: judge_replay,
}
"""The judges of this version."""


_NOT_ASKED: Final = {link: Verdict(link=link, state=LinkState.NOT_ASKED) for link in ChainLink}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts on one checkpoint of a chain."""

    digest: str
    step: int
    run: str
    verdicts: Mapping[ChainLink, Verdict]


def judge(link: ChainLink, subject: Subject, given: Given) -> Verdict:
    """Judge one link; never raises (rule 2)."""
    found = JUDGES.get(link)
    if found is None:
        return missing(link, "this version cannot verify it")
    try:
        verdict = found(subject, given)
    except SecureTrainError as error:
        return broken(link, f"{error.code}: {reason(error)}", where=error.where)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is no pass
        return broken(link, f"it could not be judged: {type(error).__name__}: {error}"[:500])
    if verdict.link is not link:
        return broken(link, f"its judge spoke of {verdict.link}")
    return verdict


def judge_all(subject: Subject, given: Given, required: Iterable[ChainLink]) -> Judged:
    """Judge every link that is asked; the others are said not to be."""
    asked = frozenset(required)
    return Judged(
        digest=subject.opened.digest,
        step=subject.said.step,
        run=subject.said.run_id,
        verdicts={
            link: judge(link, subject, given) if link in asked else not_asked
            for link, not_asked in _NOT_ASKED.items()
        },
    )
