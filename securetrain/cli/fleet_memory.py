# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""This machine's memory of fleets, as commands open it."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securetrain.attest.session import FleetState


def fleet_memory() -> "FleetState":
    """Open the state that this machine's coordinators share.

    Raises:
        AttestationError: ST-ATTS-015 and 017.
    """
    from securetrain.attest.session import FleetState
    from securetrain.launch import this_node

    return FleetState(this_node(os.environ).fleet)
