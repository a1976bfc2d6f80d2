# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verbs about jobs: start, plan, coordinate and follow them, and see what they did."""
