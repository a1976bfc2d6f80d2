# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Findings, coverage, waivers, and the comparison with a baseline."""
