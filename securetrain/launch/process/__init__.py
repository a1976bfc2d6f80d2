# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A process of a run as the kernel shows it, and its report to the launcher."""
