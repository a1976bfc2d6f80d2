# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The plain stack that drills attack: PyTorch, without which `audit` and `verify` work."""

from importlib.util import find_spec
from typing import Final

PACKAGES: Final = ("torch", "numpy")


def lacking() -> str:
    """Name what is not installed of the stack, and how it is; empty when all of it is there."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return ""
    names = " and ".join(missing)
    return f"the stack that is attacked: no {names} (in a checkout: pip install -e '.[train]')"
