# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""This machine's memory of fleets, as commands open it."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securetrain.attest.session import SealedState


def fleet_memory() -> "SealedState":
    """Open the state that this machine's coordinators share.

    Raises:
        AttestationError: ST-ATTS-015 and 017.
    """
    from securetrain.attest.session import open_fleet_state
    from securetrain.launch import this_node

    return open_fleet_state(this_node(os.environ).fleet)
