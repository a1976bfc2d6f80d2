# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The process of a rank, and the shim that closes its seams before the script runs."""
