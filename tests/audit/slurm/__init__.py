# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster's configuration as files, and what the audit says of it."""
