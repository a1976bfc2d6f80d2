# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""This machine's memory of fleets, as commands open it."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securetrain.attest.fleet import Desk
    from securetrain.attest.session import SealedState


def fleet_memory() -> "SealedState":
    """Open the state that this machine's coordinators share.

    Raises:
        AttestationError: ST-ATTS-015 and 017.
    """
    from securetrain.attest.session import open_fleet_state
    from securetrain.launch import this_node

    return open_fleet_state(this_node(os.environ).fleet)


@contextmanager
def fleet_desk() -> Iterator[tuple["Desk", "SealedState"]]:
    """The record of this machine's tokens and proofs, and the state that knows its last version.

    Raises:
        AdmissionError: ST-ADMN-023.
        AttestationError: ST-ATTS-015 and 017.
    """
    from securetrain.attest.fleet import Desk
    from securetrain.launch import this_node

    with (
        closing(fleet_memory()) as state,
        closing(Desk(this_node(os.environ).admission, state)) as desk,
    ):
        yield desk, state
