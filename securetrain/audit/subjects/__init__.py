# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The subjects of an audit: facts of each, their collection, and the functions over them."""
