# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network: which profile a job gets, and the environment that keeps workers inside it."""
