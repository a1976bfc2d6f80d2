# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed checkpoints and datasets: write, verify, read.

The names below are loaded when they are used: importing this package, and everything that verifies,
needs no torch. Only `save` and `load` do.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "Floors": "securetrain.artifacts.lineage.floors",
    "Freshness": "securetrain.artifacts.lineage.freshness",
    "RankSigner": "securetrain.artifacts.statement.members",
    "SaveContext": "securetrain.artifacts.statement.context",
    "SaveMode": "securetrain.artifacts.checkpoint.async_save",
    "VerifiedDataset": "securetrain.artifacts.dataset.verified",
    "async_save": "securetrain.artifacts.checkpoint.async_save",
    "load": "securetrain.artifacts.checkpoint.load",
    "save_safetensors": "securetrain.artifacts.checkpoint.save_safetensors",
    "sign_safetensors": "securetrain.artifacts.model.safetensors_folder",
    "save": "securetrain.artifacts.checkpoint.save",
    "verify_path": "securetrain.artifacts.verify",
}

__all__ = [
    "Floors",
    "Freshness",
    "RankSigner",
    "SaveContext",
    "SaveMode",
    "VerifiedDataset",
    "async_save",
    "load",
    "save",
    "save_safetensors",
    "sign_safetensors",
    "verify_path",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
