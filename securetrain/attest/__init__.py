# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attestation in a job: evidence of a node, sessions that judge it, and the fleet."""
