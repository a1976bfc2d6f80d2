# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""When an offence began, what is gone back for, and who is reported."""

import pytest

from securetrain.guard.exclusion import Ground
from securetrain.guard.response import Findings
from securetrain.guard.suspicions import (
    CALM,
    MARGIN,
    Beginnings,
    Suspicion,
    silent_ones,
    suspicions,
)
from securetrain.guard.verdict import RankScore, Totals, Verdict
from securetrain.policy.schema import GuardResponse


def table(*evidence: float | None) -> tuple[RankScore, ...]:
    return tuple(
        RankScore(rank=rank, finite=True, evidence=one) for rank, one in enumerate(evidence)
    )


def looked(beginnings: Beginnings, step: int, *evidence: float, out: int | None = None) -> Findings:
    findings = Findings(table=table(*evidence))
    if out is not None:
        findings.newly_excluded = {out}
    beginnings.look(step, findings)
    return findings


def test_an_offence_began_about_the_last_calm_step():
    beginnings = Beginnings()
    for step in range(1, 21):
        looked(beginnings, step, 0.0, CALM)
    for step in range(21, 25):
        looked(beginnings, step, 0.0, CALM + 0.1)
    found = looked(beginnings, 25, 0.0, 11.0, out=1)
    assert (found.since, found.reaches_back) == (20 - MARGIN, True)


def test_what_is_named_at_once_was_never_applied():
    beginnings = Beginnings()
    for step in range(1, 21):
        looked(beginnings, step, 0.0, 0.0)
    found = looked(beginnings, 21, 0.0, 60.0, out=1)
    assert not found.reaches_back


def test_the_earliest_of_several_counts_and_strangers_do_not():
    beginnings = Beginnings()
    looked(beginnings, 9, 0.0, 0.0)
    for step in range(10, 14):
        looked(beginnings, step, 5.0, 0.0)
    found = Findings(table=table(11.0, 11.0), newly_excluded={0, 1, 7})
    beginnings.look(14, found)
    assert found.since == 9 - MARGIN
    unknown = Findings(newly_excluded={7})
    beginnings.look(15, unknown)
    assert (unknown.since, unknown.reaches_back) == (None, False)


def test_whoever_is_seen_for_the_first_time_was_calm_until_then():
    beginnings = Beginnings()
    for step in range(1, 6):
        looked(beginnings, step, 0.0, CALM + 1.0)
    assert looked(beginnings, 6, 0.0, 11.0, out=1).reaches_back
    assert beginnings.state()["1"] == 1


def test_it_survives_a_checkpoint_and_never_goes_below_the_beginning():
    beginnings, again = Beginnings(), Beginnings()
    looked(beginnings, 2, 0.0, 0.0)
    again.restart(beginnings.state())
    assert again.calm == {0: 2, 1: 2}
    assert looked(again, 9, 0.0, 20.0, out=1).since == 0
    again.restart({"not a rank": 3})
    assert again.calm == {}


@pytest.mark.parametrize("response", GuardResponse)
def test_only_the_response_rollback_goes_back_and_only_for_what_was_applied(response):
    for reaches_back in (True, False):
        findings = Findings(newly_excluded={2}, reaches_back=reaches_back, since=7)
        findings.add("ST-GRAD-002", "rank 2 is an outlier")
        verdict, totals = findings.verdict(12, Totals(), response, 5)
        back = response is GuardResponse.ROLLBACK and reaches_back
        assert (verdict.response is GuardResponse.ROLLBACK) is back
        assert verdict.roll_back_to == (7 if back else None)
        assert totals.rolled_back == int(back)
        if back:
            assert not verdict.proceed
            findings.since = None
            assert findings.verdict(12, Totals(), response, 5)[0].roll_back_to == 11


def verdict(**changes) -> Verdict:
    given = {
        "step": 4,
        "ok": False,
        "response": GuardResponse.SKIP_STEP,
        "codes": ("ST-GRAD-002", "ST-GRAD-011"),
        "newly_excluded": (1, 3),
        "proven": (3,),
        "reason": "why",
    }
    return Verdict(**{**given, **changes})


def test_evict_node_reports_who_was_excluded_and_on_what():
    found = list(suspicions(verdict(), GuardResponse.EVICT_NODE))
    assert found == [
        Suspicion(rank=1, code="ST-GRAD-002", what="step 4: why"),
        Suspicion(rank=3, code="ST-GRAD-011", what="step 4: why"),
    ]
    unseen = verdict(codes=(), proven=(3,))
    codes = [one.code for one in suspicions(unseen, GuardResponse.EVICT_NODE)]
    assert codes == ["ST-GRAD-002", "ST-GRAD-003"]
    bare = verdict(codes=("ST-GRAD-001", "ST-GRAD-012"), newly_excluded=(1,), proven=())
    assert [one.code for one in suspicions(bare, GuardResponse.EVICT_NODE)] == ["ST-GRAD-001"]


@pytest.mark.parametrize(
    "response", [one for one in GuardResponse if one is not GuardResponse.EVICT_NODE]
)
def test_no_other_response_reports_what_a_verdict_says(response):
    assert not list(suspicions(verdict(), response))


def test_who_is_silent_is_reported_under_its_code():
    assert list(silent_ones((2,), 60.0)) == [
        Suspicion(rank=2, code="ST-GRAD-010", what="it did not speak to the guard within 60 s")
    ]
    assert not list(silent_ones((), 60.0))


def test_proof_is_told_from_statistics():
    findings = Findings()
    findings.offend(0, Ground.STATISTICS, (4, 5))
    findings.offend(1, Ground.PROOF, (4, 5))
    assert findings.proven == {5}
    findings.merge(Findings(proven={9}))
    assert findings.proven == {5, 9}
