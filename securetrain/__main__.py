# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m securetrain`` is the ``securetrain`` command."""

from securetrain.cli import entry

if __name__ == "__main__":
    entry()
