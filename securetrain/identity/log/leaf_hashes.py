# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The tree over a list of leaves that is in memory, for those who have no tiles."""

from collections.abc import Sequence

from securetrain.identity.log.merkle import Hashes, node_hash


def hashes_of(leaves: Sequence[bytes]) -> Hashes:
    """All complete subtrees of some leaf hashes, computed once; what `merkle` makes proofs from."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([node_hash(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)])
    return lambda level, index: levels[level][index]
