# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Exports of what a pack proves, for other tools: facts first, then one writer a format."""
