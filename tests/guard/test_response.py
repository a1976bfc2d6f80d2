# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From evidence to a verdict, rule by rule. No processes."""

from typing import Any

import pytest

from securetrain.core.errors import GuardError
from securetrain.guard.assessment import Assessment
from securetrain.guard.exclusion import Ground
from securetrain.guard.integrity import IntegrityResult
from securetrain.guard.response import Findings
from securetrain.guard.verdict import Totals
from securetrain.policy.schema import GuardResponse
from tests import vocabulary
from tests.tables import items

RANKS = (4, 5, 6, 7)
"""By their numbers in the job; their places in the group count from zero."""
STEP, LIMIT = 30, 3


def assessment(**changes: Any) -> Assessment:
    given: dict[str, Any] = {
        "ranks": 4,
        "norms": (1.0, 1.1, 0.9, 1.0),
        "evidence": (0.0, 12.0, 0.0, 0.0),
        "limit": 10.75,
    }
    return Assessment(**given | changes)


def assessed(excluded=(), **changes):
    findings = Findings()
    findings.add_assessment(assessment(**changes), RANKS, excluded)
    return findings


def decided(findings, response=GuardResponse.SKIP_STEP, totals=None):
    return findings.verdict(STEP, totals or Totals(), response, LIMIT)


# -- what is found ---------------------------------------------------------------------------------


def test_nothing_found_is_nothing_refused():
    verdict, totals = decided(assessed())
    assert verdict.ok
    assert verdict.response is GuardResponse.OBSERVE
    assert totals == Totals(judged=1)
    assert [one.rank for one in verdict.table] == list(RANKS)
    assert [one.evidence for one in verdict.table] == [0.0, 12.0, 0.0, 0.0]


@items(
    "finding, ground, code",
    ("not_finite", Ground.NOT_FINITE, "ST-GRAD-001"),
    ("gross", Ground.GROSS, "ST-GRAD-002"),
    ("newly_named", Ground.STATISTICS, "ST-GRAD-002"),
)
def test_the_right_rank_is_named_and_an_excluded_one_refuses_nothing(finding, ground, code):
    findings = assessed(**{finding: (1,)})
    assert (findings.codes, findings.outliers) == ([code], {5})
    assert findings.offences == [(1, ground)]
    assert findings.attributed
    assert findings.refused
    assert not findings.contested
    assert "rank 5" in findings.reasons[0]
    known = assessed(excluded=(1,), **{finding: (1,)})
    assert known.offences == [(1, ground)], "evidence"
    assert not known.refused
    assert (known.codes, known.outliers) == ([], set())


def test_the_words_of_a_rank_that_is_excluded_refuse_nothing():
    findings = Findings()
    findings.add_unopened((1, 2), RANKS, known=(1,))
    assert findings.offences == [(1, Ground.PROOF), (2, Ground.PROOF)]
    assert findings.outliers == findings.proven == {6}
    assert findings.reasons == ["rank 6 did not open its commitment"]


def test_when_all_that_count_are_not_finite_nobody_is_named():
    for excluded, not_finite in (((), (0, 1, 2, 3)), ((2,), (0, 1, 3))):
        findings = assessed(excluded, not_finite=not_finite)
        assert findings.upstream
        assert (findings.outliers, findings.offences) == (set(), [])
        assert (findings.attributed, findings.contested) == (False, False)
    assert not assessed(not_finite=(0, 1, 2)).upstream
    alone = Findings()
    alone.add_assessment(assessment(ranks=1, norms=(None,), not_finite=(0,), evidence=()), (7,))
    assert alone.outliers == {7}, "nobody else can be meant"
    nobody = assessed(excluded=(0, 1, 2, 3), not_finite=(1,))
    assert not nobody.upstream
    assert not nobody.refused


def test_one_of_two_that_is_off_is_named_only_by_its_own_past():
    findings = assessed(pair=True)
    assert (findings.undecided, findings.attributed, findings.contested) == (True, False, False)
    findings = assessed(pair=True, gross=(1,))
    assert (findings.undecided, findings.outliers) == (False, {5})


@items(
    "norms, excluded, refused",
    ((1.0, 1.1, 0.9, 4.1), (), True),
    ((1.0, 1.1, 1.0, 4.0), (), False),
    ((1.0, 1.1, 0.9, 4.1), (3,), False),
    ((1.0, 1.1, 0.0, 1.0), (), False),
    ((1.0, None, 1.0, 1.0), (), False),
    ((None, None, None, None), (), False),
)
def test_somebody_is_undecided_and_refuses_only_what_is_far_off(norms, excluded, refused):
    """A rank without any gradient, as one whose layers were skipped, is not far off by that."""
    findings = assessed(excluded, norms=norms, undecided=True)
    assert (findings.undecided, findings.refused) == (refused, refused)
    assert (findings.attributed, findings.contested) == (not refused, False)
    assert findings.outliers == set()
    assert len(findings.reasons) == 1


def test_a_spike_of_all_names_nobody():
    findings = assessed(spike=True)
    assert (findings.upstream, findings.attributed, findings.outliers) == (True, False, set())
    alone = Findings()
    alone.add_assessment(assessment(ranks=1, norms=(9.0,), evidence=(), spike=True), (7,))
    assert (alone.attributed, alone.outliers) == (True, {7})


def test_a_reduction_that_is_wrong_is_contested_and_names_nobody():
    findings = Findings()
    findings.add_integrity(IntegrityResult(ratio=7.0, holders=(2,)), RANKS)
    assert findings.codes == ["ST-GRAD-003"]
    assert (findings.integrity, findings.disputed) == (7.0, {6})
    assert (findings.contested, findings.attributed, findings.outliers) == (True, False, set())
    fine = Findings()
    fine.add_integrity(IntegrityResult(ratio=0.5), RANKS)
    assert (fine.integrity, fine.refused) == (0.5, False)


def test_a_disagreement_takes_back_what_one_rank_has_found():
    findings = assessed(not_finite=(0, 1, 2, 3))
    findings.undecided = True
    findings.offend(1, Ground.GROSS, RANKS)
    findings.add_disagreement()
    assert findings.offences == []
    assert (findings.undecided, findings.upstream, findings.contested) == (False, False, True)


def test_what_was_found_later_takes_nothing_back():
    findings = Findings(upstream=True)
    findings.add("ST-GRAD-003", "x", attributed=False)
    findings.add("ST-GRAD-002", "y")
    findings.add_assessment(assessment(), RANKS)
    assert (findings.attributed, findings.contested, findings.upstream) == (False, True, True)


def test_only_a_step_in_which_something_was_found_and_is_no_more_is_settled():
    findings = assessed(gross=(1,))
    findings.excluded = {5}
    verdict, totals = decided(findings)
    assert (verdict.settled, totals.settled, totals.without) == (False, 0, 0)
    assert not decided(assessed())[0].settled
    findings.settle()
    assert decided(findings)[0].settled


# -- pieces of the model ---------------------------------------------------------------------------

FLAGS = ("refused", "contested", "overflow", "undecided", "upstream", "calibrating")
SETS = ("outliers", "disputed", "excluded", "newly_excluded", "readmitted", "proven", "disputes")


@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_so_of_one_piece_is_so_of_the_model(flag):
    for mine, others in ((False, False), (True, False), (False, True)):
        findings, other = Findings(), Findings()
        setattr(findings, flag, mine)
        setattr(other, flag, others)
        findings.merge(other)
        assert getattr(findings, flag) is (mine or others)


@pytest.mark.parametrize("name", SETS)
def test_who_is_meant_in_one_piece_is_meant(name):
    findings, other = Findings(), Findings()
    getattr(findings, name).add((1, 2))
    getattr(other, name).add((3, 4))
    findings.merge(other)
    assert getattr(findings, name) == {(1, 2), (3, 4)}


def test_the_rest_of_two_pieces():
    for mine, others in ((True, False), (False, True)):
        findings = Findings(attributed=mine)
        findings.merge(Findings(attributed=others))
        assert not findings.attributed
    findings = assessed(gross=(1,), peak=0.25, layers=(("a", 1, 2.0),))
    findings.merge(assessed(gross=(1,), not_finite=(2,), peak=0.5, layers=(("b", 2, 3.0),)))
    assert findings.codes == ["ST-GRAD-002", "ST-GRAD-001"]
    assert len(findings.reasons) == 2
    assert (findings.peak, len(findings.table)) == (0.5, 8)
    assert [(one.group, one.rank) for one in findings.layers] == [("a", 5), ("b", 6)]
    for one, other, both in ((None, 2.0, 2.0), (3.0, 2.0, 3.0), (3.0, None, 3.0)):
        findings = Findings(integrity=one)
        findings.merge(Findings(integrity=other))
        assert findings.integrity == both


# -- what is done ----------------------------------------------------------------------------------

SKIP, GO = GuardResponse.SKIP_STEP, GuardResponse.OBSERVE
LEFT_OUT, HALT = GuardResponse.EXCLUDE_RANK, GuardResponse.HALT
ACTING = [one for one in GuardResponse if one not in {GO, HALT}]


@pytest.mark.parametrize("response", ACTING)
def test_one_bad_rank_drops_steps_and_never_ends_the_run(response):
    totals = Totals()
    for _ in range(5 * LIMIT):
        verdict, totals = decided(assessed(gross=(1,)), response, totals)
        assert verdict.response is SKIP
    assert (totals.refused, totals.refused_in_a_row) == (5 * LIMIT, 5 * LIMIT)
    assert totals.hopeless_in_a_row == totals.settled == totals.without == 0


@pytest.mark.parametrize("response", ACTING)
@pytest.mark.parametrize("why", ["undecided", "upstream"])
def test_steps_that_nobody_can_be_excluded_for_end_the_run(response, why):
    totals = Totals()
    for count in range(1, LIMIT + 1):
        findings = Findings(undecided=why == "undecided", upstream=why == "upstream")
        findings.add("ST-GRAD-001", "x", attributed=False, hopeless=True)
        verdict, totals = decided(findings, response, totals)
        assert verdict.response is (HALT if count == LIMIT else SKIP)
        assert ("ST-GRAD-005" in verdict.codes) is (count == LIMIT)
    refused = vocabulary.refused(GuardError, f"step {STEP} was refused", verdict.raise_if_halted)
    assert refused.code == "ST-GRAD-005"
    _, totals = decided(assessed(gross=(1,)), response, totals)
    assert (totals.hopeless_in_a_row, totals.refused_in_a_row) == (0, LIMIT + 1)
    _, totals = decided(assessed(), response, totals)
    assert totals.refused_in_a_row == 0


@pytest.mark.parametrize("response", ACTING)
def test_a_step_that_was_settled_is_applied(response):
    findings = assessed(gross=(1,))
    findings.excluded = {5}
    findings.settle()
    verdict, totals = decided(findings, response)
    assert verdict.response is LEFT_OUT
    assert verdict.proceed
    assert verdict.settled
    assert not verdict.ok
    assert (totals.settled, totals.without, totals.refused) == (1, 1, 0)
    findings.undecided = True  # of some other rank, whose numbers are not in the gradients either
    verdict, totals = decided(findings, response, Totals(hopeless_in_a_row=LIMIT))
    assert (verdict.response, totals.hopeless_in_a_row) == (LEFT_OUT, 0)


def test_only_what_is_finite_and_hopeless_is_clipped():
    clip = GuardResponse.CLIP
    undecided = assessed(norms=(1.0, 1.0, 1.0, 9.0), undecided=True)
    assert decided(undecided, clip)[0].response is clip
    assert decided(undecided, SKIP)[0].response is SKIP
    assert decided(assessed(spike=True), clip)[0].response is clip
    assert decided(assessed(gross=(1,)), clip)[0].response is SKIP
    assert decided(assessed(not_finite=(0, 1, 2, 3)), clip)[0].response is SKIP


def test_the_run_goes_back_only_for_what_was_applied():
    back = GuardResponse.ROLLBACK
    for newly, reaches, response in (
        ({5}, True, back),
        ({5}, False, SKIP),
        (set(), True, SKIP),
    ):
        findings = assessed(gross=(1,))
        findings.newly_excluded, findings.reaches_back = newly, reaches
        verdict, totals = decided(findings, back)
        assert verdict.response is response
        assert verdict.roll_back_to == (STEP - 1 if response is back else None)
        assert totals.rolled_back == (response is back)
        assert decided(findings, SKIP)[0].response is SKIP
    findings = Findings(newly_excluded={5}, reaches_back=True, since=20)
    assert decided(findings, back)[0].roll_back_to == 20


@pytest.mark.parametrize("response", [*ACTING, HALT])
def test_an_overflow_is_left_to_the_scaler_unless_something_else_was_found(response):
    findings = Findings()
    findings.leave_to_scaler("x")
    totals = Totals(hopeless_in_a_row=LIMIT)
    verdict, _ = decided(findings, response, totals)
    assert (verdict.response, verdict.overflow) == (SKIP, True)
    findings.add("ST-GRAD-003", "y", attributed=False)
    assert decided(findings, response)[0].response is (HALT if response is HALT else SKIP)


def test_a_policy_that_halts_halts_for_what_was_found_and_one_that_observes_never():
    assert decided(assessed(), HALT)[0].response is GO
    verdict, _ = decided(assessed(gross=(1,)), HALT)
    assert verdict.response is HALT
    assert not verdict.proceed
    findings = assessed(not_finite=(0, 1, 2, 3))
    verdict, _ = decided(findings, GO, Totals(hopeless_in_a_row=LIMIT))
    assert verdict.response is GO
    assert verdict.proceed
    verdict.raise_if_halted()


def test_a_response_that_does_not_exist_is_refused():
    unknown: Any = "shrug"
    vocabulary.refused(ValueError, "shrug", decided, assessed(gross=(1,)), unknown)
