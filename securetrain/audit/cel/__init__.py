# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Expressions of CEL over the objects of manifests, for checks of a site's own."""
