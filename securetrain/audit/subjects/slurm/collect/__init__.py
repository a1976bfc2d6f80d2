# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect the facts of one Slurm cluster from a directory; no process is started."""
