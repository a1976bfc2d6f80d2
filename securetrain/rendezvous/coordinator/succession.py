# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A coordinator's place among those of its job: it stands down for a later one.

What a node shows in its Hello is judged by the job CA (`wire.generation`). Once a later coordinator
is known, this one decides nothing any more: it admits nobody, loses nobody, writes no state.
"""

from collections.abc import Callable
from dataclasses import dataclass

from securetrain.core.errors import AdmissionError
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.coordinator.terms import Terms
from securetrain.rendezvous.wire.generation import check_generation, superseded


@dataclass(slots=True, kw_only=True)
class Succession:
    """The knowledge of one coordinator about the others. Nothing here locks."""

    terms: Terms
    journal: Journal
    subject: str
    """The coordinator's SPIFFE id."""
    error: AdmissionError | None = None
    """The reason for which it has stood down."""

    def check(self, session: Session, stand_down: Callable[[], None]) -> None:
        """Stand down when a node shows a later coordinator, and refuse everybody from then on.

        Raises:
            AdmissionError: ST-ADMN-041; ST-ADMN-006 when what it shows is none's.
        """
        if self.error is None and self._sees_later(session):
            stand_down()
        if self.error is not None:
            raise self.error

    def _sees_later(self, session: Session) -> bool:
        assert session.hello is not None, "it has said Hello"
        own, shown = self.terms.generation, session.hello.generation
        if shown is None:
            return False
        job, ca = self.terms.job, self.terms.ca.certificate
        later = check_generation(shown, job=job, ca=ca, where=session.subject)
        if not own.is_before(later):
            return False
        self.error = superseded(own, later, self.subject)
        self.journal.write(events.CoordinatorSuperseded.of(self.error, self.subject))
        return True
