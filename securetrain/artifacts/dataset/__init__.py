# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Datasets where they lie: sign them in place, let them grow, and read them as programs do."""
