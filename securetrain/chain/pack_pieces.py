# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The evidence in a pack, for the judges of links: by digest, and nothing that is no evidence."""

from collections.abc import Iterator
from dataclasses import dataclass

from securetrain.chain import packing
from securetrain.chain.container import Pack
from securetrain.chain.store import PIECE_LIMIT


@dataclass(frozen=True, slots=True)
class PackPieces:
    """The evidence in a pack (`store.Pieces`)."""

    pack: Pack

    def get(self, digest: str) -> bytes | None:
        """See `Pieces.get`."""
        return self.pack.read(digest, PIECE_LIMIT) if digest in self.pack else None

    def names(self) -> Iterator[str]:
        """See `Pieces.names`; what is no statement, proof or ledger."""
        others = {packing.STATEMENT_TYPE, packing.PROOF_TYPE, packing.LEDGER_TYPE}
        return (digest for digest, one in self.pack.layers.items() if one.media_type not in others)
