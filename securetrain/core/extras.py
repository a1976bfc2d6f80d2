# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way to install an extra of this package.

The package is on no index: a bare name given to pip would install whatever somebody put there.
"""


def install_hint(extra: str) -> str:
    """Say how an extra is installed."""
    return f"run pip install '.[{extra}]' in a checkout of securetrain"
