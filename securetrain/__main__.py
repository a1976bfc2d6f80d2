# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m securetrain`` is the ``securetrain`` command."""

import sys

from securetrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
