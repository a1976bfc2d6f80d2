# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the tests of a launch are made of: payloads, runs, machines and the programs they start."""

import os

from securetrain.drills.pickles import Call


def bomb(path):
    """An object that makes a directory where it is unpickled."""
    return Call(os.makedirs, str(path), 0o777, True)
