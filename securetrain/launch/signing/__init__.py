# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The launcher's signing socket, and what a launch binds to the statements that it signs."""
