# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed directories as bytes: names, hash trees, storage, indexes and encryption."""
