# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The share of one rank in its launcher's time, memory and disk.

A save takes one or two questions of each rank, a busy shim a few events a minute; the shares are a
thousand times that, and end a flood before it costs the launcher anything.
"""

from dataclasses import dataclass

from securetrain.core.errors import RuntimeRefusal

CODE = "ST-RUNT-034"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The share of a rank. Questions and bytes come back with time, the ledger's do not."""

    questions: int = 2_000
    questions_a_second: float = 20.0
    bytes: int = 256 << 20
    bytes_a_second: float = 8 << 20
    ledger_bytes: int = 8 << 20
    """In one launch."""


@dataclass(slots=True)
class Share:
    """The use that one rank has made of its quota."""

    quota: Quota
    since: float
    questions: float = 0.0
    bytes: float = 0.0
    ledger_bytes: int = 0
    left_out: int = 0
    """Events that were not written."""
    bytes_left_out: int = 0

    def question(self, size: int, now: float) -> None:
        """Count a question.

        Raises:
            RuntimeRefusal: ST-RUNT-034.
        """
        passed, self.since = max(0.0, now - self.since), now
        quota = self.quota
        self.questions = max(0.0, self.questions - passed * quota.questions_a_second)
        self.bytes = max(0.0, self.bytes - passed * quota.bytes_a_second)
        if self.questions + 1 > quota.questions:
            raise RuntimeRefusal(
                CODE,
                f"more than {quota.questions} questions, and {quota.questions_a_second:.0f} a"
                " second after that",
            )
        if self.bytes + size > quota.bytes:
            raise RuntimeRefusal(CODE, f"more than {quota.bytes >> 20} MiB of questions")
        self.questions += 1
        self.bytes += size

    def entry(self, size: int) -> bool:
        """Count an entry of the ledger; False for one above the share, which is left out."""
        if self.ledger_bytes + size > self.quota.ledger_bytes:
            self.left_out += 1
            self.bytes_left_out += size
            return False
        self.ledger_bytes += size
        return True
