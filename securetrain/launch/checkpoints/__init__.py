# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The node's part in its run's checkpoints: log, newest head, and the effect of an eviction."""
