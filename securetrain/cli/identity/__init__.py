# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verbs about keys, certificates, trust roots and the transparency log."""
