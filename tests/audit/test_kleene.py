# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import itertools

from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, all_of, any_of, unknown

U = unknown("because")
VALUES = {True: TRUE, False: FALSE, None: U}


def test_the_truth_tables_are_kleenes():
    for a, b in itertools.product(VALUES, repeat=2):
        both = all_of([VALUES[a], VALUES[b]]).value
        either = any_of([VALUES[a], VALUES[b]]).value
        assert both is (False if False in (a, b) else None if None in (a, b) else True)
        assert either is (True if True in (a, b) else None if None in (a, b) else False)


def test_empty_joins():
    assert all_of([]).value is True
    assert any_of([]).value is False


def test_what_made_it_unknown_is_kept_and_few():
    many = [unknown(f"r{i}") for i in range(10)]
    assert all_of([U, TRUE]).reasons == ("because",)
    assert any_of([FALSE, U]).reasons == ("because",)
    assert all_of(many).reasons == ("r0", "r1", "r2")


def test_not_unknown_is_unknown():
    assert (~U).value is None
    assert (~TRUE).value is False
    assert (~FALSE).value is True
    assert isinstance(~U, Truth)
