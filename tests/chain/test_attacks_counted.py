# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The attacks on a chain and its pack that are each taken with their check off: counted by link."""

from collections import Counter

from securetrain.core.vocabulary import ChainLink
from tests.chain import test_held, test_packs, test_steps, test_tables

BYTES = "the bytes in a pack"


def counted() -> Counter[str]:
    """By the link that names it; every one of them is run by its own test, with its control."""
    tables = (test_packs.LIES, test_steps.LIES, test_tables.LIES)
    links = [str(link) for lies in tables for link, _ in lies.values()]
    return Counter([*links, *(BYTES for _ in test_held.ATTACKS)])


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
    tables = (test_packs.LIES, test_steps.LIES, test_tables.LIES, test_held.ATTACKS)
    made = [make for table in tables for _, make in table.values()]
    assert len({id(make) for make in made}) == len(made)
