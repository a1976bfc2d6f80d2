# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Types of facts: the common ones, and a module for each kind of asset."""
