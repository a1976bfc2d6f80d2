# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The node of a launch: checked before workers start, confined, and its refusals recorded."""
