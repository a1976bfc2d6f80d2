# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints and datasets: write, verify, read.

The names below are loaded when they are used: importing this package, and everything that verifies,
needs no torch. Only `save` and `load` do.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "SaveContext": "securetrain.artifacts.context",
    "VerifiedDataset": "securetrain.artifacts.dataset",
    "load": "securetrain.artifacts.checkpoint.load",
    "save": "securetrain.artifacts.checkpoint.save",
    "verify_path": "securetrain.artifacts.verify",
}

__all__ = ["SaveContext", "VerifiedDataset", "load", "save", "verify_path"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
