# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verbs about this machine, and what is decided for it: policies, schemas and threat models."""
