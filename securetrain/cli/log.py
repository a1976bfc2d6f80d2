# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain log``: keep a transparency log, witness it, and prove what stands in it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.cli.options import (
    KEY_FORMS,
    TRUST_VARIABLE,
    file_argument,
    file_option,
    json_option,
    secret_option,
)
from securetrain.cli.passphrase import asker
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.identity.keys import Signer
    from securetrain.identity.log import Log
    from securetrain.identity.trust import TrustRoot

EPILOG = """\
\b
Examples:
  securetrain log init log --origin log.example/team --key log.pem
  securetrain log append log statement.json --key log.pem --trust trust/root.json
  securetrain log witness log --key node-3.pem --name node-3.example --state /var/lib/witness \\
      --trust trust/root.json
  securetrain log witness-key
  securetrain log checkpoint log --trust trust/root.json
  securetrain log prove log statement.json --trust trust/root.json --out statement.tlog-proof
  securetrain log verify statement.json --proof statement.tlog-proof --trust trust/root.json

\b
The trust root names the log (its origin and keys) and its witnesses: how many of them must have
cosigned is the threshold of the role witness. The folder has the layout of https://c2sp.org, and
may be served by any web server.

\b
A run under a policy with checkpoint.log logs its checkpoints and keeps the proofs itself, and the
agents of its nodes are witnesses: 'witness-key' prints what the policy names this machine by.

\b
Exit codes: 0 it held; 2 bad arguments, or a key that cannot be used; 10 not an envelope; 11 a
signature does not verify; 12 a signer or trust root that is not trusted; 15 not cosigned lately;
18 no proof: not in the log, too few witnesses, a log that shrank or shows two histories, or damaged
files; 20 a file cannot be read or written.
"""

_FOLDER = file_argument("folder")
_ENVELOPE = file_argument("envelope")
_KEY = click.option("--key", required=True, help=f"The key: {KEY_FORMS}.")
_TRUST = file_option(
    "--trust",
    "trust_path",
    required=True,
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root: a file, or a folder that 'trust update' keeps.",
)


@click.group(name="log", epilog=EPILOG)
def command() -> None:
    """Keep a transparency log, which cannot tell two people two stories unnoticed."""


@command.command(name="init", epilog=EPILOG)
@_FOLDER
@click.option("--origin", required=True, help="Its name, like a URL without a scheme.")
@_KEY
@secret_option
@json_option
def init(folder: Path, origin: str, key: str, passphrase_file: Path | None, output: str) -> int:
    """Begin an empty log in FOLDER."""
    from securetrain.identity.log import Log, vkey
    from securetrain.report import keys

    signer = _signer(key, passphrase_file)
    Log.create(folder, origin, signer)
    page = keys.begun(folder, origin, vkey(origin, signer.public))
    return emit(page, output)


@command.command(name="append", epilog=EPILOG)
@_FOLDER
@file_argument("envelopes", nargs=-1, required=True)
@_KEY
@_TRUST
@secret_option
@json_option
def append(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    envelopes: tuple[Path, ...],
    key: str,
    trust_path: Path,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Log DSSE envelopes whose every signature verifies under a key of the trust root."""
    from securetrain.core.files import read_file
    from securetrain.identity.dsse import ENVELOPE_LIMIT
    from securetrain.identity.log import entry_of
    from securetrain.report import keys

    trust = _trust(trust_path)
    log = _log(folder, trust)
    entries = [
        entry_of(read_file(path, ENVELOPE_LIMIT), trust.keys, str(path)) for path in envelopes
    ]
    first = log.append_entries(entries, _signer(key, passphrase_file))
    return emit(keys.appended(envelopes, first), output)


@command.command(name="checkpoint", epilog=EPILOG)
@_FOLDER
@_TRUST
@click.option("--all", "whole", is_flag=True, help="Also read every entry and compare it.")
@file_option(
    "--add",
    help="Add the cosignature lines in this file, if they are of the trust root's witnesses.",
)
@json_option
def checkpoint(folder: Path, trust_path: Path, whole: bool, add: Path | None, output: str) -> int:
    """Show what the log in FOLDER says now, if it and enough witnesses signed it."""
    from securetrain.core.files import read_file
    from securetrain.identity.log import note, open_checkpoint
    from securetrain.report import keys

    log = _log(folder, _trust(trust_path))
    if add is not None:
        lines = note.parse_lines(read_file(add, note.LIMIT).decode("utf-8", "replace"), str(add))
        log.add_cosignatures(log.state()[1].text, lines)
    if whole:
        log.verify_all()
    data = log.state()[1].encode()
    found = open_checkpoint(data, log.policy, datetime.now(UTC), str(folder))
    return emit(keys.checkpoint(found, data.decode()), output)


@command.command(name="prove", epilog=EPILOG)
@_FOLDER
@_ENVELOPE
@_TRUST
@file_option("--out", help="The file to write; default: ENVELOPE.tlog-proof. It is replaced.")
@json_option
def prove(folder: Path, envelope: Path, trust_path: Path, out: Path | None, output: str) -> int:
    """Write the proof that ENVELOPE is in the log, as the newest checkpoint shows it."""
    from securetrain.core.errors import IdentityError
    from securetrain.core.files import read_file, write_atomic
    from securetrain.identity.dsse import ENVELOPE_LIMIT
    from securetrain.identity.log import SUFFIX, entry_of, verify_logged
    from securetrain.report import keys

    trust = _trust(trust_path)
    log = _log(folder, trust)
    data = read_file(envelope, ENVELOPE_LIMIT)
    index = log.find(entry_of(data, trust.keys, str(envelope)))
    if index is None:
        raise IdentityError(
            "ST-IDEN-041", "it is not in the log", str(envelope), "securetrain log append"
        )
    proof = log.prove(index)
    verify_logged(data, proof, trust.keys, log.policy, datetime.now(UTC), str(folder))
    target = out or envelope.with_name(f"{envelope.name}{SUFFIX}")
    write_atomic(target, proof)
    return emit(keys.proof(index, target), output)


@command.command(name="verify", epilog=EPILOG)
@_ENVELOPE
@file_option("--proof", help="The proof; default: ENVELOPE.tlog-proof.")
@_TRUST
@click.option(
    "--max-age-hours",
    type=click.FloatRange(0, min_open=True),
    help="Refuse a checkpoint without enough cosignatures that are younger.",
)
@json_option
def verify(
    envelope: Path, proof: Path | None, trust_path: Path, max_age_hours: float | None, output: str
) -> int:
    """Prove that ENVELOPE was logged. Needs no log: the proof holds what is needed.

    Every signature of the envelope must be by a key of the trust root, revoked or not: 'securetrain
    verify' decides whether its content counts.
    """
    from securetrain.core.files import read_file
    from securetrain.identity.dsse import ENVELOPE_LIMIT
    from securetrain.identity.log import LIMIT, SUFFIX, LogPolicy, verify_logged
    from securetrain.report import keys

    trust = _trust(trust_path)
    age = None if max_age_hours is None else timedelta(hours=max_age_hours)
    source = proof or envelope.with_name(f"{envelope.name}{SUFFIX}")
    found = verify_logged(
        read_file(envelope, ENVELOPE_LIMIT),
        read_file(source, LIMIT),
        trust.keys,
        LogPolicy.from_trust_root(trust, age),
        datetime.now(UTC),
        str(source),
    )
    return emit(keys.logged(found), output)


@command.command(name="witness", epilog=EPILOG)
@_FOLDER
@_KEY
@click.option("--name", required=True, help="The witness's name, like a URL without a scheme.")
@file_option(
    "--state",
    required=True,
    help="Folder of what it has seen: its own, durable, and never removed.",
)
@_TRUST
@click.option(
    "--print", "only_print", is_flag=True, help="Print the line instead of adding it to FOLDER."
)
@secret_option
@json_option
def witness(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    key: str,
    name: str,
    state: Path,
    trust_path: Path,
    only_print: bool,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Cosign what the log in FOLDER says now, if it extends what this witness has seen.

    FOLDER is the log's own or a copy of it. A log that contradicts what it has
    seen is never signed, and is kept in the state's folder as proof.
    """
    from securetrain.identity.log import Witness, request_for
    from securetrain.report import keys

    log = _log(folder, _trust(trust_path))
    origin = log.policy.origin
    node = Witness(name, _signer(key, passphrase_file), state, {origin: log.policy})
    text = log.state()[1].text
    line = node.cosign(request_for(log, node.seen(origin)), datetime.now(UTC))
    kept = 0 if only_print else log.add_cosignatures(text, [line])
    size = node.seen(origin)
    page = keys.cosigned(origin, size, str(line), added=kept > 0, alone=only_print)
    return emit(page, output)


@command.command(name="witness-key", epilog=EPILOG)
@json_option
def witness_key(output: str) -> int:
    """Print the key with which this machine's agents cosign logs; made when first asked for.

    It is kept in SECURETRAIN_STATE, by default /var/lib/securetrain for root and
    ~/.local/state/securetrain for others.
    """
    import os

    from securetrain.identity.log import witness_key as read_witness_key
    from securetrain.launch import this_node
    from securetrain.report import keys

    path = this_node(os.environ).witness_key
    return emit(keys.witness_key(read_witness_key(path), path), output)


def _signer(name: str, passphrase_file: Path | None) -> "Signer":
    from securetrain.identity import open_signer

    return open_signer(name, asker(passphrase_file))


def _trust(path: Path) -> "TrustRoot":
    from securetrain.identity import load_trust

    return load_trust(path, datetime.now(UTC))


def _log(folder: Path, trust: "TrustRoot") -> "Log":
    from securetrain.identity.log import Log, LogPolicy

    return Log(folder, LogPolicy.from_trust_root(trust))
