# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Gates that keep the house small: failing checks over the text of the tree.

    python -m tools.gates              judge the tree, as `make lint` does
    python -m tools.gates --shrink     lower the list of violations and the budgets to today's

Each gate is one row of `tools.gates.table`, a function from a `Tree` to its faults. What violates
a gate today is listed in `violations.json`, which may only shrink.
"""
