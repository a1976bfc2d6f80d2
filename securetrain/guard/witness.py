# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Have the words of a disputed reduction signed, and keep them for those who judge later.

The table of a reduction in the open is read by the ranks themselves (dispute.py), without any
signature: what they decide rests on what all hold. Signatures are for afterwards. When a table was
disputed, each rank has its launcher sign its digests and the table that it holds, and all exchange
the signatures, in one all-gather more. Nobody is found guilty for not signing (a launcher may be
gone), but the others have signed the table in which it spoke.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from securetrain.core.errors import SecureTrainError
from securetrain.guard.dispute import Digests
from securetrain.guard.group_channel import Channel
from securetrain.identity import words

_SIGNATURE: Final = 130
"""Bytes of an encoded signature at most, with its length."""
_CERTIFICATE: Final = (8 << 10) + 2


class WordSigner(Protocol):
    """A worker's way to the key that signs its words."""

    @property
    def run_id(self) -> str:
        """The run's."""
        ...

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        ...

    @property
    def certificate(self) -> str:
        """Of the key; empty where nobody has certified one."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Sign a word.

        Raises:
            SecureTrainError: it is not signed.
        """
        ...

    def keep(self, transcript: words.Transcript, step: int) -> None:
        """Keep the words of a step for those who judge later. Does not raise."""
        ...


@dataclass(slots=True, kw_only=True)
class Witness:
    """The signed words of one group of ranks.

    Args:
        channel: the group.
        ranks: their numbers in the job.
        guard: the number of the guard in its process.
        signer: signs this rank's; None where there is no launcher.
    """

    channel: Channel
    ranks: Sequence[int]
    guard: int
    signer: WordSigner | None
    _turn: int = 0
    _number: int = 0
    _attempts: list[words.Attempt] = field(default_factory=list)
    _certificates: list[str] = field(default_factory=list)

    def record(
        self, piece: bytes, table: bytes, owners: Sequence[int], said: Sequence[Digests]
    ) -> int:
        """Sign and exchange the words of a disputed table; returns bytes sent. Collective.

        Args:
            piece: digest of the names of what is reduced.
            table: digest of everybody's words, as this rank holds them.
            owners: of the parts, by place.
            said: the digests in the table, by place.
        """
        self._number += 1
        sent = self._exchange_certificates()
        mine = words.Attempt(
            number=self._number,
            piece=piece.hex(),
            table=table.hex(),
            owners=list(owners),
            said=list(map(_said, said)),
        )
        row = _padded(self._sign(mine), _SIGNATURE)
        rows = self.channel.all_gather(row)
        signed = [
            words.Said(
                whole=one.whole,
                sent=one.sent,
                heard=one.heard,
                sig=base64.b64encode(_unpadded(data)).decode(),
            )
            for one, data in zip(mine.said, rows, strict=True)
        ]
        if len(self._attempts) < words.MOST_ATTEMPTS:
            self._attempts.append(msgspec.structs.replace(mine, said=signed))
        return sent + len(row)

    def hand_over(self, step: int) -> None:
        """A step ends: its words are kept where somebody keeps them."""
        if self._attempts and self.signer is not None:
            self.signer.keep(self._transcript(self._attempts), step)
        self._attempts = []
        self._turn += 1

    def _transcript(self, attempts: list[words.Attempt]) -> words.Transcript:
        assert self.signer is not None
        return words.Transcript(
            run_id=self.signer.run_id,
            world_size=self.signer.world_size,
            ranks=list(self.ranks),
            guard=self.guard,
            turn=self._turn,
            attempts=list(attempts),
            certificates=list(self._certificates),
        )

    def _sign(self, attempt: words.Attempt) -> bytes:
        if self.signer is None or not self.signer.certificate:
            return b""
        word = words.word_of(self._transcript([attempt]), attempt, self.channel.rank)
        try:
            return self.signer.sign(words.message_of(word))
        except SecureTrainError:
            return b""  # the transcript says so

    def _exchange_certificates(self) -> int:
        """Once; who makes a new one later is not believed."""
        if self._certificates:
            return 0
        mine = "" if self.signer is None else self.signer.certificate
        row = _padded(mine.encode(), _CERTIFICATE)
        rows = self.channel.all_gather(row)
        self._certificates = [_unpadded(data).decode("ascii", "replace") for data in rows]
        return len(row)


def _said(one: Digests) -> words.Said:
    return words.Said(
        whole=one.whole.hex(),
        sent=[digest.hex() for digest in one.sent],
        heard=[digest.hex() for digest in one.heard],
    )


def _padded(data: bytes, size: int) -> bytes:
    fits = data if len(data) <= size - 2 else b""
    return (len(fits).to_bytes(2, "big") + fits).ljust(size, b"\0")


def _unpadded(row: bytes) -> bytes:
    return row[2 : 2 + int.from_bytes(row[:2], "big")]
