# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The witness that a machine is: its key, made when it is first asked for, and what it has seen.

The key is Ed25519, signs nothing but cosignatures, and is a file of this user alone without a
passphrase: a node's agent works unattended. Other witnesses are made with `log.witness` directly.
"""

from collections.abc import Mapping
from pathlib import Path

from securetrain.core.files import locked, make_missing_dir
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.checkpoint import LogPolicy
from securetrain.identity.log.witness import Witness


def witness_key(path: Path) -> PrivateKey:
    """This machine's key; made by the first who asks.

    Raises:
        IdentityError: ST-IDEN-001 or ST-IDEN-010 when the file is no good key.
        UsageError: ST-USAG-002.
    """
    make_missing_dir(path.parent)
    with locked(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            PrivateKey.generate().save(path)
        return PrivateKey.load(path)


def machine_witness(
    name: str, key: PrivateKey, seen: Path, logs: Mapping[str, LogPolicy]
) -> Witness:
    """The witness; `name` is the machine's, which a signature line can hold in this form only."""
    safe = "".join(char if char.isalnum() or char in "-._/" else "-" for char in name)
    return Witness(safe or "witness", key, seen, logs)
