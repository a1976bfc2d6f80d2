# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sources of facts and of earlier results: files, folders, signatures, an inventory."""
