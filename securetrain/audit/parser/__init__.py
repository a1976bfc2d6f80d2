# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files to objects: bytes, templates, YAML with lines, and values with their state."""
