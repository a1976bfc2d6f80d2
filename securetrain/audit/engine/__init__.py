# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks over facts: their form, the registry of functions, and the one judgement of both."""
