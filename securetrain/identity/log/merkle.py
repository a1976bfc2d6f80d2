# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Merkle trees of RFC 6962 with SHA-256: roots, proofs, and how they are judged.

Hashes (section 2.1): a leaf is H(0x00 || entry), a node is H(0x01 || left || right), the empty tree
is H(). The algorithms that judge proofs are those of RFC 9162, sections 2.1.3.2 and 2.1.4.2. Rules:

1. sizes and indexes are at most 2^53 - 1, hashes exactly 32 bytes, and a proof has exactly as many
   hashes as its numbers call for: too few and too many are both refused;
2. a proof of consistency from size 0 is refused: it says nothing;
3. between equal sizes there is nothing to prove, and the roots must be equal.

Proofs are made from subtree hashes that `Hashes` gives: ``(level, index)`` is the root of the
complete subtree of 2^level leaves that begins at leaf index * 2^level.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from securetrain.core.errors import IdentityError

HASH_SIZE: Final = 32
MAX_SIZE: Final = (1 << 53) - 1
MAX_PROOF: Final = 64
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()

Hashes: TypeAlias = Callable[[int, int], bytes]


def leaf_hash(entry: bytes) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def range_hash(start: int, end: int, hashes: Hashes) -> bytes:
    """MTH(D[start:end]) for a range that is a subtree of some tree: what RFC 6962 recurses over."""
    if start == end:
        return EMPTY_ROOT
    size = end - start
    if size & (size - 1) == 0:  # then it begins at a multiple of its size
        level = size.bit_length() - 1
        return hashes(level, start >> level)
    middle = start + _split(size)
    return node_hash(range_hash(start, middle, hashes), range_hash(middle, end, hashes))


def root_hash(size: int, hashes: Hashes) -> bytes:
    """The root of the first `size` entries."""
    return range_hash(0, size, hashes)


def inclusion_proof(index: int, size: int, hashes: Hashes) -> list[bytes]:
    """PATH(index, D[size]) of RFC 6962, section 2.1.1.

    Raises:
        ValueError: There is no such entry.
    """
    if not 0 <= index < size:
        raise ValueError(f"there is no entry {index} in a tree of {size}")
    proof: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            proof.append(range_hash(middle, end, hashes))
            end = middle
        else:
            proof.append(range_hash(start, middle, hashes))
            start = middle
    return proof[::-1]


def consistency_proof(old: int, new: int, hashes: Hashes) -> list[bytes]:
    """PROOF(old, D[new]) of RFC 6962, section 2.1.2; empty between equal sizes.

    Raises:
        ValueError: Not 1 <= old <= new.
    """
    if not 1 <= old <= new:
        raise ValueError(f"no proof leads from size {old} to size {new}")
    proof: list[bytes] = []
    start, end, is_complete = 0, new, True
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            proof.append(range_hash(middle, end, hashes))
            end = middle
        else:
            proof.append(range_hash(start, middle, hashes))
            start, is_complete = middle, False
    if not is_complete:
        proof.append(range_hash(start, end, hashes))
    return proof[::-1]


def check_inclusion(  # noqa: PLR0917 - the names of the RFC, in its order
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes, where: str = ""
) -> None:
    """Check that a leaf hash stands at `index` of the tree with this size and root.

    Raises:
        IdentityError: ST-IDEN-041.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise _bad(f"index {index} in a tree of {size}", where)
    _check_lengths([leaf, root, *proof], where)
    number, last = index, size - 1
    found = leaf
    for sibling in proof:
        if last == 0:
            raise _bad("the proof is longer than the tree is high", where)
        if number & 1 or number == last:
            found = node_hash(sibling, found)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        number, last = number >> 1, last >> 1
    if last != 0:
        raise _bad("the proof is shorter than the tree is high", where)
    if found != root:
        raise _bad(f"entry {index} is not what the tree of {size} holds there", where)


def check_consistency(  # noqa: PLR0917 - the names of the RFC, in its order
    old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes], where: str = ""
) -> None:
    """Check that the tree of size `new` begins with the tree of size `old`.

    Raises:
        IdentityError: ST-IDEN-042 when it is smaller, ST-IDEN-043 when it does not begin with it,
            ST-IDEN-041 when the proof is malformed.
    """
    if not 0 <= new <= MAX_SIZE or old < 1:
        raise _bad(f"a proof from size {old} to size {new}", where)
    if new < old:
        raise _shrank(old, new, where)
    _check_lengths([old_root, new_root, *proof], where)
    if old == new:
        if proof:
            raise _bad("a proof between equal sizes", where)
        if old_root != new_root:
            raise _split_view(f"two trees of size {old} have different roots", where)
        return
    first, second = _replay(old, new, old_root, proof, where)
    if first != old_root or second != new_root:
        raise _split_view(f"the tree of {new} does not begin with that of {old}", where)


def _replay(
    old: int, new: int, old_root: bytes, proof: Sequence[bytes], where: str
) -> tuple[bytes, bytes]:
    """The two roots that a proof leads to."""
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not proof:
        raise _bad("an empty proof between different sizes", where)
    number, last = old - 1, new - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise _bad("the proof is longer than it can be", where)
        if number & 1 or number == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        number, last = number >> 1, last >> 1
    if last != 0:
        raise _bad("the proof is shorter than it must be", where)
    return first, second


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _check_lengths(hashes: Sequence[bytes], where: str) -> None:
    if len(hashes) > MAX_PROOF + 2:
        raise _bad(f"{len(hashes)} hashes", where)
    if any(len(value) != HASH_SIZE for value in hashes):
        raise _bad("a hash that is not 32 bytes long", where)


def _bad(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-041", what, where)


def _shrank(old: int, new: int, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-042", f"it had {old} entries, and now it has {new}", where)


def _split_view(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-043", what, where)
