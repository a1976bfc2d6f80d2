# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Randomness that no rank knows before its gradient is delivered: commit and reveal by hash chains.

A sketch whose seed is known can be evaded (sketch.py), so the seed must not exist before the
gradient has left the rank. Rules, in order:

1. **commit.** Each rank draws 32 secret bytes `x`, hashes them `n` times and all-gathers the end
   of the chain, `H^n(x)`. This commits it to the next `n` draws at once (Lamport's one-time
   chains, 1981), so that a draw costs **one** all-gather of 32 bytes instead of two.
2. **deliver.** The ordinary collective (reduce-scatter, all-reduce) of a batch of gradients ends.
3. **reveal.** Each rank all-gathers the next preimage of its chain; every rank checks that it
   hashes to the value before. A value that does not is a fault of that rank, and is left out.
   The hash of the last step's table travels along, so that it needs no all-gather of its own.
4. seed = SHA-256(label, context, all preimages in order of rank).

Argument. One honest rank's preimage is unpredictable until step 3 and enters the seed, so nobody
knows the seed in step 2. All others are bound by step 1: the last to speak can withhold its value
(the collective then never ends: a loud failure) but cannot choose it. Copying another rank's
chain gains nothing, for the honest values stay in the hash. The gradient sketched after step 3 is
the one delivered in step 2, because a rank that sketches something else breaks `sketch(reduced) =
mean of sketches` (integrity.py) under a seed that it did not know.

What it does not give: on an accelerator a collective ends when the device has run it, so the
caller synchronises before it draws (hooks.py does). Preimages are secret until used, live in
memory only and never enter a checkpoint. A library collective is not a broadcast channel: ranks
that were told different values derive different seeds, which the transcript digest in the table
of sketches shows (guard.py, ST-GRAD-004). Who does that more than once is in no seed (`quiet`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from securetrain.guard.group_channel import Channel
from securetrain.guard.openings import SIZE, anchors_of, hash_of, opening_of

CHAIN: Final = 4096
"""Draws per commitment: 128 KiB of memory and a few milliseconds of hashing."""


class HashChain:
    """One rank's chain: `anchor`, then its preimages one by one."""

    def __init__(self, secret: bytes, length: int = CHAIN) -> None:
        if len(secret) != SIZE or length < 1:
            raise ValueError(f"a chain needs {SIZE} secret bytes and a length of at least 1")
        self._links = [secret]
        for _ in range(length):
            self._links.append(hash_of(self._links[-1]))
        self.anchor = self._links.pop()

    @property
    def remaining(self) -> int:
        """Preimages left."""
        return len(self._links)

    def next(self) -> bytes:
        """The next preimage; each is given once."""
        return self._links.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One seed, and which ranks did not open their commitment."""

    seed: bytes
    unopened: tuple[int, ...]
    opening: bytes = b""
    """Everything that the seed is the SHA-256 of: context and preimages."""
    told: tuple[bytes, ...] = ()
    """What each rank told with its value."""


class Beacon:
    """The group's shared randomness. All methods are collective.

    Args:
        channel: the group.
        randomness: gives n unpredictable bytes (`secrets.token_bytes`).
        length: draws per commitment.
    """

    def __init__(
        self, channel: Channel, randomness: Callable[[int], bytes], length: int = CHAIN
    ) -> None:
        self._channel = channel
        self._randomness = randomness
        self._length = length
        self._chain: HashChain | None = None
        self._last: list[bytes] = []
        self._anchors = b""
        self.tell = bytes(SIZE)
        """Travels with every value; has no part in the seed."""
        self.quiet: frozenset[int] = frozenset()
        """Ranks whose values are in no seed; the same on all honest ranks."""

    def commit(self) -> None:
        """Draw a new chain and exchange the anchors."""
        self._chain = HashChain(self._randomness(SIZE), self._length)
        self._last = self._channel.all_gather(self._chain.anchor)
        self._anchors = anchors_of(self._last)

    def take_anchors(self) -> bytes:
        """The commitments since the last call (`anchors_of`); empty if there are none."""
        anchors, self._anchors = self._anchors, b""
        return anchors

    def draw(self, context: str) -> Draw:
        """Reveal, check and combine. Call it only after what the seed must not influence."""
        if self._chain is None or not self._chain.remaining:
            self.commit()
        assert self._chain is not None
        rows = self._channel.all_gather(self._chain.next() + self.tell)
        revealed = [row[:SIZE] for row in rows]
        unopened = tuple(
            rank
            for rank, (value, last) in enumerate(zip(revealed, self._last, strict=True))
            if rank not in self.quiet and hash_of(value) != last
        )
        self._last = revealed
        # Who did not open its commitment chose its value, perhaps after it heard the others'.
        out = self.quiet.union(unopened)
        values = [bytes(SIZE) if rank in out else value for rank, value in enumerate(revealed)]
        opening = opening_of(context, values)
        seed = hashlib.sha256(opening).digest()
        told = tuple(row[SIZE:] for row in rows)
        return Draw(seed=seed, unopened=unopened, opening=opening, told=told)
