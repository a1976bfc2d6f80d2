# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The places where a job's coordinator may be: the first one, and standbys.

Rules:

1. a node tries them in the order in which they are given, each in turn, and comes back to the one
   where it was before it tries the next;
2. one where nobody answers, or where a coordinator says that a later one has taken the job over, is
   passed over. Any other refusal is the answer: a standby would give the same;
3. a node that has found a later coordinator than it knew shows its statement at the other places
   until one of them has answered, so that an earlier one that still lives stands down soon.
"""

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from securetrain.core import Retry
from securetrain.core.errors import AdmissionError, SecureTrainError

T = TypeVar("T")
Place: TypeAlias = tuple[str, int]

HERALD_SECONDS: Final = 30.0
"""Between two attempts to show a later coordinator where an earlier one may be."""


class Places:
    """The list, and where a node is."""

    def __init__(self, places: Sequence[Place]) -> None:
        """Begin with the first of them."""
        self._places = list(dict.fromkeys(places))
        self._at = 0

    @property
    def here(self) -> Place:
        """The place to try."""
        return self._places[self._at]

    @property
    def others(self) -> list[Place]:
        """The rest."""
        return [place for place in self._places if place != self.here]

    def go_on(self) -> None:
        """Try the next one."""
        self._at = (self._at + 1) % len(self._places)

    def first_that(self, connect: Callable[[Place], T]) -> T:
        """The connection to the first one that answers: rules 1 and 2.

        Raises:
            SecureTrainError: a refusal, or why nobody answers.
        """
        problems: list[SecureTrainError] = []
        for _ in self._places:
            try:
                return connect(self.here)
            except SecureTrainError as error:
                if error.definition.retry is not Retry.LATER:
                    raise
                problems.append(error)
                self.go_on()
        if len(problems) == 1:
            raise problems[0]
        where = ", ".join(f"{host}:{port}" for host, port in self._places)
        what = "; ".join(error.what for error in problems)
        raise AdmissionError("ST-ADMN-007", what, where) from problems[0]


def reach(place: Place, timeout: float) -> socket.socket:
    """Connect to a coordinator's port.

    Raises:
        AdmissionError: ST-ADMN-007.
    """
    try:
        return socket.create_connection(place, timeout)
    except OSError as error:
        raise AdmissionError(
            "ST-ADMN-007",
            f"no coordinator answers: {error.strerror or error}",
            f"{place[0]}:{place[1]}",
            "start the coordinator first, and check the address and the firewall",
        ) from error


class Herald:
    """Shows a later coordinator where an earlier one may be: rule 3."""

    def __init__(self, show: Callable[[Place], None]) -> None:
        """Prepare.

        Args:
            show: says Hello at a place, and returns when it was heard.
        """
        self._show = show
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def go(self, places: Sequence[Place]) -> None:
        """Begin with these places, unless it is on its way."""
        if places and (self._thread is None or not self._thread.is_alive()):
            thread = threading.Thread(
                target=self._run, args=(list(places),), name="rendezvous-herald", daemon=True
            )
            thread.start()
            self._thread = thread  # one that runs: nobody can join what has not begun

    def stop(self) -> None:
        """Go nowhere any more."""
        self._over.set()

    def _run(self, places: list[Place]) -> None:
        while places and not self._over.is_set():
            for place in list(places):
                try:
                    self._show(place)
                except SecureTrainError:
                    continue  # nobody is there; perhaps later
                places.remove(place)
            self._over.wait(HERALD_SECONDS)
