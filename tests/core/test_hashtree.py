# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.hashtree import (
    DIGEST_SIZE,
    MAX_LEAF,
    PAGE_LEAVES,
    HashAlgorithm,
    TreeParams,
    TreeWriter,
    pages_of,
    root_of,
)
from tests.trees import tree_of
from tests.vocabulary import refused

SMALL = TreeParams(leaf_size=1024)


@given(st.binary(max_size=5000), st.lists(st.integers(1, 3000), max_size=8))
def test_the_tree_does_not_depend_on_the_pieces(data, cuts):
    writer = TreeWriter(SMALL)
    rest = data
    for cut in cuts:
        writer.update(rest[:cut])
        rest = rest[cut:]
    writer.update(memoryview(rest))
    assert writer.finish() == tree_of(SMALL, data)


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_any_flipped_bit_changes_the_root(data, draw):
    at = draw.draw(st.integers(0, len(data) * 8 - 1))
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    good, bad = tree_of(SMALL, data), tree_of(SMALL, changed)
    assert good.root != bad.root
    place = at // 8 // 1024 * DIGEST_SIZE
    assert good.leaves[place : place + DIGEST_SIZE] != bad.leaves[place : place + DIGEST_SIZE]


def test_size_order_and_padding_are_bound():
    data = os.urandom(3072)
    roots = {
        tree_of(SMALL, data).root,
        tree_of(SMALL, data + b"\0").root,
        tree_of(SMALL, data[:-1]).root,
        tree_of(SMALL, data[1024:2048] + data[:1024] + data[2048:]).root,
        tree_of(SMALL, b"").root,
        tree_of(SMALL, b"\0").root,
    }
    assert len(roots) == 6


def test_parameters_are_bound():
    data = b"x" * 3000
    roots = {
        tree_of(TreeParams(algorithm=algorithm, leaf_size=leaf), data).root
        for algorithm in HashAlgorithm
        for leaf in (1024, 4096)
    }
    assert len(roots) == 4


def test_leaf_page_and_root_hashes_never_meet():
    data = b"x" * 32
    assert len({SMALL.leaf(0, data), SMALL.page(0, data), SMALL.root(0, data)}) == 3
    # The same leaf elsewhere has another hash.
    assert SMALL.leaf(0, data) != SMALL.leaf(1, data)
    assert SMALL.page(0, data) != SMALL.page(1, data)


def test_two_levels():
    size = 1024 * (PAGE_LEAVES + 3) + 5
    tree = tree_of(SMALL, bytes(size))
    assert len(tree.leaves) == SMALL.num_leaves(size) * DIGEST_SIZE == (PAGE_LEAVES + 4) * 32
    pages = pages_of(SMALL, tree.leaves)
    assert len(pages) == 2 * DIGEST_SIZE
    cut = PAGE_LEAVES * DIGEST_SIZE
    assert pages[32:] == SMALL.page(1, tree.leaves[cut:])
    assert tree.root == SMALL.root(size, pages) == root_of(SMALL, size, tree.leaves)


def test_a_table_of_the_wrong_length_is_an_error():
    tree = tree_of(SMALL, b"x" * 3000)
    for leaves in (tree.leaves[:-1], tree.leaves + b"\0" * 32, b""):
        refused(ValueError, "does not fit", root_of, SMALL, 3000, leaves)


@pytest.mark.parametrize("size", [0, 1, 512, 1023, 1025, 3000, MAX_LEAF * 2, 1 << 40, -1024])
def test_leaf_sizes_are_bounded_powers_of_two(size):
    refused(ValueError, "leaf_size", TreeParams, leaf_size=size)


KNOWN = {
    HashAlgorithm.BLAKE3: "0493cabc09e52d0ea11f25b1938a471646f75d2a2b28c908a0de8f2fa1d7c1cc",
    HashAlgorithm.SHA256: "4402944d56eaae9aa3a6b1f7af7b8c0cd1b7036549e6eb2358faa6181c92e25d",
}
DATA = bytes(range(256)) * 9


@pytest.mark.parametrize("algorithm", HashAlgorithm)
def test_known_values(algorithm):
    # Fixed for ever: what was signed must stay verifiable.
    tree = tree_of(TreeParams(algorithm=algorithm, leaf_size=1024), DATA)
    assert tree.root.hex() == KNOWN[algorithm]


def test_the_construction_written_out_by_hand():
    def digest(domain: bytes, number: int, data: bytes) -> bytes:
        name = (b"securetrain/tree/2/" + domain).ljust(24, b"\0")
        return hashlib.sha256(data + name + struct.pack("<QQ", 1024, number)).digest()

    leaves = b"".join(digest(b"leaf", n, DATA[n * 1024 : (n + 1) * 1024]) for n in range(3))
    root = digest(b"root", len(DATA), digest(b"page", 0, leaves))
    assert root.hex() == KNOWN[HashAlgorithm.SHA256]
