# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain run``: prepare a run, start torch's elastic agent, and protect its workers."""
