# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The attacks on a chain and its pack that are each taken with their check off: counted by link."""

from collections import Counter
from collections.abc import Mapping

from securetrain.core.vocabulary import ChainLink
from tests.chain import test_held, test_hostile_packs, test_packs, test_steps, test_tables
from tests.chain.switches import TAKEN, table

BYTES = "the bytes in a pack"
SUITES: dict[str, Mapping[str, object]] = {
    "statements": test_packs.LIES,
    "steps": test_steps.LIES,
    "tables": test_tables.LIES,
    "bytes": test_held.ATTACKS,
    "container": test_hostile_packs.ATTACKS,
}


def counted() -> Counter[str]:
    """By the link that names it; every one of them is run by its own test, with its control."""
    links = [link for lies in (test_packs.LIES, test_steps.LIES) for link, _ in lies.values()]
    links += [ChainLink.TABLES] * len(test_tables.LIES)
    return Counter([*map(str, links), *(BYTES for _ in test_held.ATTACKS)])


def test_there_are_at_least_eighty_and_every_link_has_one() -> None:
    found = counted()
    # Forged steps are found by doing them again: tests/train/test_again.py.
    links = set(ChainLink) - {ChainLink.REPLAY}
    assert found.keys() == {BYTES, *map(str, links)}
    assert found.total() >= 80
    assert found[str(ChainLink.ROWS)] >= 9
    assert found[str(ChainLink.GRADIENTS)] >= 10
    assert found[str(ChainLink.TABLES)] >= 20
    assert found[BYTES] >= 30


def test_each_of_them_is_another_one() -> None:
    tables = (test_packs.LIES, test_steps.LIES, test_held.ATTACKS)
    made = [make for table_ in tables for _, make in table_.values()] + [*test_tables.LIES.values()]
    assert len({id(make) for make in made}) == len(made)


def test_eighty_are_taken_with_their_own_checks_off() -> None:
    """The table has each attack and no other; most are taken once the checks in their way are off,
    without the container's own. Of the others nothing is left to judge, or their parser refuses.
    """
    found = table()
    assert {suite: set(attacks) for suite, attacks in found.items()} == {
        suite: set(attacks) for suite, attacks in SUITES.items()
    }
    taken = {
        suite: sum(one["then"] == TAKEN for one in attacks.values())
        for suite, attacks in found.items()
    }
    assert sum(taken.values()) - taken["container"] >= 80
    assert taken["container"] >= 50
    for attacks in found.values():
        for name, one in attacks.items():
            assert one["then"] != TAKEN or one["checks"], f"{name} is taken, and nothing refused it"


def test_one_check_stands_in_the_way_of_most() -> None:
    """So that each of these attacks shows what that check is for."""
    taken = [
        one["checks"] for of in table().values() for one in of.values() if one["then"] == TAKEN
    ]
    alone = {checks[0] for checks in taken if len(checks) == 1}
    assert len(alone) >= 35
    assert sum(len(checks) == 1 for checks in taken) >= len(taken) // 2
