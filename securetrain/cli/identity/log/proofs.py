# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain log prove`` and ``verify``: that something was logged."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.identity.log.options import LogTrust
from securetrain.cli.options import OUT
from securetrain.report import Document


@verb()
def prove(
    *,
    folder: Path,
    envelope: Path,
    trust: LogTrust,
    out: Annotated[
        Path | None, OUT.told("The file to write; default: ENVELOPE.tlog-proof. It is replaced.")
    ],
) -> Document:
    """Write the proof that ENVELOPE is in the log, as the newest checkpoint shows it."""
    from securetrain.core.errors import IdentityError
    from securetrain.core.files import read_file, write_atomic
    from securetrain.identity.dsse import ENVELOPE_LIMIT
    from securetrain.identity.log import SUFFIX, entry_of, verify_logged
    from securetrain.report import keys

    root = trust.root()
    log = trust.log(folder, root)
    data = read_file(envelope, ENVELOPE_LIMIT)
    index = log.find(entry_of(data, root.keys, str(envelope)))
    if index is None:
        raise IdentityError(
            "ST-IDEN-041", "it is not in the log", str(envelope), "securetrain log append"
        )
    proof = log.prove(index)
    verify_logged(data, proof, root.keys, log.policy, now(), str(folder))
    target = out or envelope.with_name(f"{envelope.name}{SUFFIX}")
    write_atomic(target, proof)
    return keys.proof(index, target)


@verb()
def verify(
    *,
    envelope: Path,
    proof: Annotated[Path | None, Option("--proof", "The proof; default: ENVELOPE.tlog-proof.")],
    trust: LogTrust,
    max_age_hours: Annotated[
        float | None,
        Option(
            "--max-age-hours",
            "Refuse a checkpoint without enough cosignatures that are younger.",
            click.FloatRange(0, min_open=True),
        ),
    ],
) -> Document:
    """Prove that ENVELOPE was logged. Needs no log: the proof holds what is needed.

    Every signature of the envelope must be by a key of the trust root, revoked or not: 'securetrain
    verify' decides whether its content counts.
    """
    from securetrain.core.files import read_file
    from securetrain.identity.dsse import ENVELOPE_LIMIT
    from securetrain.identity.log import LIMIT, SUFFIX, LogPolicy, verify_logged
    from securetrain.report import keys

    root = trust.root()
    age = None if max_age_hours is None else timedelta(hours=max_age_hours)
    source = proof or envelope.with_name(f"{envelope.name}{SUFFIX}")
    data, shown = read_file(envelope, ENVELOPE_LIMIT), read_file(source, LIMIT)
    policy = LogPolicy.from_trust_root(root, age)
    return keys.logged(verify_logged(data, shown, root.keys, policy, now(), str(source)))
