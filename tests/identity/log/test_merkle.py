# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import IdentityError
from securetrain.identity.log import merkle
from tests import vocabulary
from tests.tables import each

# The eight entries and the roots of their first 1 to 8, as the tests of Certificate Transparency's
# implementations have them (transparency-dev/merkle, testonly/reference.go; Apache-2.0).
ENTRIES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    bytes.fromhex(text)
    for text in (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    )
]
# From the same project's testdata/inclusion and testdata/consistency, the happy paths.
INCLUSION = [
    (
        5,
        8,
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    )
]
CONSISTENCY = [
    (
        1,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    )
]


def tree(entries):
    """Subtree hashes by the definition of RFC 6962, section 2.1, without any cleverness."""

    def root(items):
        if not items:
            return hashlib.sha256(b"").digest()
        if len(items) == 1:
            return hashlib.sha256(b"\x00" + items[0]).digest()
        k = 1
        while k * 2 < len(items):
            k *= 2
        return hashlib.sha256(b"\x01" + root(items[:k]) + root(items[k:])).digest()

    def hashes(level, index):
        part = entries[index << level : (index + 1) << level]
        assert len(part) == 1 << level, "an incomplete subtree was asked for"
        return root(part)

    return root, hashes


def test_the_published_roots():
    _, hashes = tree(ENTRIES)
    assert merkle.root_hash(0, hashes) == merkle.EMPTY_ROOT
    assert [merkle.root_hash(size, hashes) for size in range(1, 9)] == ROOTS


@each("index, size, proof", *INCLUSION)
def test_the_published_inclusion_proofs(index, size, proof):
    _, hashes = tree(ENTRIES)
    expected = [bytes.fromhex(value) for value in proof]
    assert merkle.inclusion_proof(index, size, hashes) == expected
    merkle.check_inclusion(merkle.leaf_hash(ENTRIES[index]), index, size, expected, ROOTS[size - 1])


@each("old, new, proof", *CONSISTENCY)
def test_the_published_consistency_proofs(old, new, proof):
    _, hashes = tree(ENTRIES)
    expected = [bytes.fromhex(value) for value in proof]
    assert merkle.consistency_proof(old, new, hashes) == expected
    merkle.check_consistency(old, new, ROOTS[old - 1], ROOTS[new - 1], expected)


def test_every_proof_of_every_small_tree():
    entries = [bytes([n]) for n in range(33)]
    root, hashes = tree(entries)
    for size in range(1, len(entries) + 1):
        whole = root(entries[:size])
        assert merkle.root_hash(size, hashes) == whole
        for index in range(size):
            proof = merkle.inclusion_proof(index, size, hashes)
            leaf = merkle.leaf_hash(entries[index])
            merkle.check_inclusion(leaf, index, size, proof, whole)
        for old in range(1, size + 1):
            proof = merkle.consistency_proof(old, size, hashes)
            merkle.check_consistency(old, size, root(entries[:old]), whole, proof)


def refused(code, function, *arguments, why="."):
    caught = vocabulary.refused(IdentityError, why, function, *arguments)
    assert caught.code == code, caught
    assert caught.exit_code == 18


SIZES = st.integers(1, 40)


@pytest.mark.forgery
@given(SIZES, st.data())
def test_no_inclusion_proof_can_be_bent(size, data):
    """T40."""
    entries = [bytes([n]) for n in range(size)]
    root, hashes = tree(entries)
    index = data.draw(st.integers(0, size - 1))
    proof = merkle.inclusion_proof(index, size, hashes)
    leaf, whole = merkle.leaf_hash(entries[index]), root(entries)
    check = merkle.check_inclusion
    other = data.draw(st.integers(0, size - 1).filter(lambda n: n != index)) if size > 1 else size
    refused("ST-IDEN-041", check, leaf, other, size, proof, whole)
    refused("ST-IDEN-041", check, merkle.leaf_hash(b"planted"), index, size, proof, whole)
    refused("ST-IDEN-041", check, leaf, index, size, [*proof, leaf], whole)
    refused("ST-IDEN-041", check, leaf, index, size, [leaf, *proof], whole)
    if proof:
        refused("ST-IDEN-041", check, leaf, index, size, proof[:-1], whole)
        at = data.draw(st.integers(0, len(proof) - 1))
        bent = [*proof]
        bent[at] = bytes([bent[at][0] ^ 1]) + bent[at][1:]
        refused("ST-IDEN-041", check, leaf, index, size, bent, whole)
        bent[at] = bent[at][:-1]
        refused("ST-IDEN-041", check, leaf, index, size, bent, whole)


@pytest.mark.forgery
@given(SIZES, SIZES, st.data())
def test_no_consistency_proof_can_be_bent(one, two, data):
    """T40."""
    old, new = sorted((one, two + 1))
    entries = [bytes([n]) for n in range(new)]
    root, hashes = tree(entries)
    proof = merkle.consistency_proof(old, new, hashes)
    before, after = root(entries[:old]), root(entries)
    check = merkle.check_consistency
    forked = root([b"planted", *entries[1:old]])
    refused("ST-IDEN-043", check, old, new, forked, after, proof)
    refused("ST-IDEN-043", check, old, new, before, forked, proof)
    refused("ST-IDEN-041", check, old, new, before, after, [*proof, before])
    if old < new:
        refused("ST-IDEN-042", check, new, old, after, before, proof)
        refused("ST-IDEN-041", check, old, new, before, after, proof[:-1])
        at = data.draw(st.integers(0, len(proof) - 1))
        bent = [*proof]
        bent[at] = bytes([bent[at][0] ^ 1]) + bent[at][1:]
        refused("ST-IDEN-043", check, old, new, before, after, bent)


def test_numbers_that_make_no_sense():
    leaf = merkle.leaf_hash(b"")
    for index, size in ((-1, 1), (1, 1), (0, 0), (0, -1), (0, merkle.MAX_SIZE + 1)):
        refused("ST-IDEN-041", merkle.check_inclusion, leaf, index, size, [], leaf, why="in a tree")
    for old, new in ((0, 1), (-1, 1), (1, merkle.MAX_SIZE + 1), (1, -1)):
        arguments = (old, new, leaf, leaf, [leaf])
        refused("ST-IDEN-041", merkle.check_consistency, *arguments, why="a proof from size")
    many = [leaf] * 1000
    refused("ST-IDEN-041", merkle.check_inclusion, leaf, 0, 2, many, leaf, why="1002 hashes")
    _, hashes = tree(ENTRIES)
    for index, size in ((8, 8), (-1, 8)):
        vocabulary.refused(ValueError, "no entry", merkle.inclusion_proof, index, size, hashes)
    for old, new in ((0, 8), (9, 8)):
        vocabulary.refused(ValueError, "no proof", merkle.consistency_proof, old, new, hashes)


@pytest.mark.forgery
def test_a_proof_of_another_length_is_refused_though_its_hashes_fit():
    """The size that was signed says how high the tree is."""
    a, b, c, d = (merkle.leaf_hash(bytes([n])) for n in range(4))
    both, bad, check = merkle.node_hash(a, b), "ST-IDEN-041", merkle.check_inclusion
    check(a, 0, 2, [b], both)
    refused(bad, check, b, 0, 1, [a], both, why="longer than the tree")
    refused(bad, check, a, 0, 4, [b], both, why="shorter than the tree")
    second = merkle.node_hash(a, b)
    roots, grow = (merkle.node_hash(c, a), merkle.node_hash(c, second)), merkle.check_consistency
    grow(3, 4, *roots, [a, b, c])
    refused(bad, grow, 3, 4, a, second, [a, b], why="shorter than it must be")
    roots = merkle.node_hash(d, roots[0]), merkle.node_hash(d, roots[1])
    refused(bad, grow, 3, 4, *roots, [a, b, c, d], why="longer than it can be")
    refused(bad, grow, 1, 2, a, both, [], why="an empty proof")


@pytest.mark.forgery
def test_a_leaf_is_never_taken_for_a_node():
    """The attack that the two prefixes are for."""
    left, right = merkle.leaf_hash(b"a"), merkle.leaf_hash(b"b")
    root = merkle.node_hash(left, right)
    assert merkle.leaf_hash(left + right) != root
    refused("ST-IDEN-041", merkle.check_inclusion, merkle.leaf_hash(left + right), 0, 1, [], root)
