# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The calls of torch and of frameworks that the shim wraps, a module a seam."""
