# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hash trees of bytes in memory: what a test signs or compares with."""

from securetrain.core.hashtree import Tree, TreeParams, TreeWriter


def tree_of(params: TreeParams, data: bytes | bytearray | memoryview) -> Tree:
    """The tree of a byte string that is in memory."""
    writer = TreeWriter(params)
    writer.update(data)
    return writer.finish()
