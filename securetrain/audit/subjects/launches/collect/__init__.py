# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Launches: the commands of containers, batch scripts and shell scripts, read and never run."""
