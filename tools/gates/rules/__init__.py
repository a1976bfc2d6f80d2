# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rules that the gates hold, a noun a module: each is a function from a tree to its faults."""
