# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from securetrain.guard.probation import TERM, Probation

LIMIT = 10.0


def decide(probation, *evidence):
    return probation.decide(evidence, LIMIT)


def test_the_worst_is_named_and_of_equals_the_first():
    probation = Probation(2)
    assert decide(probation, 0, 10, 12, 11).named == 2
    assert decide(probation, 0, 10, 5, 10).named == 1
    full = decide(probation, 10, 5, 5, 5)
    assert full.named is None
    assert full.undecided
    assert sorted(probation.out) == [1, 2]


def test_below_the_limit_nobody_is_named():
    probation = Probation(1)
    decision = decide(probation, 9.999, 0, 0, 0)
    assert decision.named is None
    assert not decision.undecided


def test_nobody_can_be_named_where_nobody_may_be_out():
    decision = decide(Probation(0), 11, 0, 0)
    assert decision.named is None
    assert decision.undecided


def test_a_term_is_served_and_doubled():
    probation = Probation(1)
    for offence in (1, 2, 3):
        assert decide(probation, 11, 0, 0, 0).named == 0
        back = [decide(probation, 2.9, 0, 0, 0).readmitted for _ in range(TERM << (offence - 1))]
        assert back[-1] == (0,)
        assert not any(back[:-1])
        assert probation.out == {}


def test_new_evidence_starts_it_again_and_lasting_evidence_prolongs_it():
    probation = Probation(1)
    decide(probation, 11, 0, 0, 0)
    for _ in range(TERM - 1):
        assert decide(probation, 0, 0, 0, 0).readmitted == ()
    again = decide(probation, 10, 0, 0, 0)
    assert again.again == (0,)
    assert again.named is None
    for _ in range(TERM - 1):
        assert decide(probation, 0, 0, 0, 0).readmitted == ()
    assert decide(probation, 3.1, 0, 0, 0).readmitted == (), "time served, evidence still high"
    assert decide(probation, 2.9, 0, 0, 0).readmitted == (0,)


def test_terms_have_an_end():
    probation = Probation(1)
    probation.offences[0] = 10_000
    decide(probation, 11, 0, 0, 0)
    assert probation.out[0].term <= 1 << 22


def test_records_go_round():
    probation = Probation(2)
    decide(probation, 11, 0, 0, 0)
    decide(probation, 0, 0, 12, 0)
    other = Probation(2)
    other.restart([probation.record(rank) for rank in (0, 2)], 4)
    assert other == probation
