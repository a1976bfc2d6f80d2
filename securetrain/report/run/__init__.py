# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The content of a run directory, judged against its trust root, and its answer as a document."""
