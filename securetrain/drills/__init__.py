# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Drills: real attacks on the plain stack and on the hardened one, side by side."""

from securetrain.drills.registry import DRILLS, Drill, DrillResult, Outcome, run_drill

__all__ = ["DRILLS", "Drill", "DrillResult", "Outcome", "run_drill"]
