# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Carry between nodes, through the coordinator, the newest checkpoints that they saw.

A node whose disk was put back to an older state cannot know it; the others can. Rules:

1. with every Ready a node shows at most `MAX_FLOORS` floors of at most `FLOOR_LIMIT` bytes. To the
   rendezvous they are bytes: it neither opens nor believes them, so that nothing in this room needs
   to know what a checkpoint is, and no lie of one node can change what another one is told;
2. the coordinator hands on each of them once, with the first node that showed it, in the signed
   membership: at most `MAX_SHOWN`. When there are more, every node's first ones come before the
   second ones, and what more nodes showed comes first. Honest nodes mostly show the same bytes;
3. a node judges what it is told by its own trust root, in its launcher (`launch.newest`): a floor
   that is not proven raises nothing, and nothing that anybody says lowers one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from securetrain.rendezvous.wire.membership import Shown
from securetrain.rendezvous.wire.protocol import MAX_SHOWN


def gather(shown: Mapping[str, Sequence[bytes]]) -> tuple[Shown, ...]:
    """The floors that a membership names: rule 2.

    Args:
        shown: What each node showed, by its name.
    """
    nodes = sorted(shown)
    count = Counter(floor for node in nodes for floor in dict.fromkeys(shown[node]))
    first: dict[bytes, tuple[int, str]] = {}
    for node in nodes:
        for place, floor in enumerate(shown[node]):
            if floor not in first or place < first[floor][0]:
                first[floor] = place, node
    order = sorted(first, key=lambda floor: (first[floor][0], -count[floor], floor))
    return tuple(Shown(node=first[floor][1], floor=floor) for floor in order[:MAX_SHOWN])
