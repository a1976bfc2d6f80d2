# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain log witness`` and ``witness-key``: who cosigns what a log says."""

import os
from pathlib import Path
from typing import Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.identity.log.options import LogKey, LogTrust
from securetrain.cli.options import STATE
from securetrain.report import Document


@verb()
def witness(
    *,
    folder: Path,
    key: LogKey,
    name: Annotated[str, Option("--name", "The witness's name, like a URL without a scheme.")],
    state: Annotated[
        Path, STATE.told("Folder of what it has seen: its own, durable, and never removed.")
    ],
    trust: LogTrust,
    only_print: Annotated[
        bool, Option("--print", "Print the line instead of adding it to FOLDER.")
    ],
) -> Document:
    """Cosign what the log in FOLDER says now, if it extends what this witness has seen.

    FOLDER is the log's own or a copy of it. A log that contradicts what it has
    seen is never signed, and is kept in the state's folder as proof.
    """
    from securetrain.identity.log import Witness, request_for
    from securetrain.report import keys

    log = trust.log(folder)
    origin = log.policy.origin
    node = Witness(name, key.signer(), state, {origin: log.policy})
    text = log.state()[1].text
    line = node.cosign(request_for(log, node.seen(origin)), now())
    added = 0 if only_print else log.add_cosignatures(text, [line])
    size = node.seen(origin)
    return keys.cosigned(origin, size, str(line), added=added > 0, alone=only_print)


@verb()
def witness_key() -> Document:
    """Print the key with which this machine's agents cosign logs; made when first asked for.

    It is kept in SECURETRAIN_STATE, by default /var/lib/securetrain for root and
    ~/.local/state/securetrain for others.
    """
    from securetrain.identity.log import witness_key as read_witness_key
    from securetrain.launch import this_node
    from securetrain.report import keys

    path = this_node(os.environ).witness_key
    return keys.witness_key(read_witness_key(path), path)
