# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parallel training over named mesh axes. Importing this package does not import torch."""
