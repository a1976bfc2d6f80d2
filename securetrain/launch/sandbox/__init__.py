# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sandbox of a job's workers on one node: another user, own mounts and processes, few calls.

Read `sandbox` first, then `orders` (what is shown) and `holder` (how it is made).
"""
