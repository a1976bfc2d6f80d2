# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous: admission, membership, leases, and the handler for torchrun."""
