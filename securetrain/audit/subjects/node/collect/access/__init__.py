# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ways into a machine: accounts, keys, identities, sudo and ssh."""
